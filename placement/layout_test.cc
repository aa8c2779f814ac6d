// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/layout.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

const MeshShape kMesh = {{"dp", 2}, {"tp", 3}};

std::string MessageOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

TEST(Placement, TextForms) {
  EXPECT_EQ(Replicate().ToString(), "R");
  EXPECT_EQ(Shard(1).ToString(), "S(1)");
  EXPECT_EQ(Shard(-1).ToString(), "S(-1)");
  EXPECT_EQ(Partial().ToString(), "P(sum)");
  EXPECT_EQ(Partial(ReduceOp::kMin).ToString(), "P(min)");
  EXPECT_EQ(Partial(ReduceOp::kMax).ToString(), "P(max)");
  EXPECT_EQ(Partial(ReduceOp::kProduct).ToString(), "P(product)");
}

TEST(Placement, EqualityLooksAtKindDimAndOp) {
  EXPECT_EQ(Shard(0), Shard(0));
  EXPECT_NE(Shard(0), Shard(1));
  EXPECT_NE(Shard(0), Replicate());
  EXPECT_NE(Partial(), Replicate());
  EXPECT_NE(Partial(), Partial(ReduceOp::kMax));
  EXPECT_EQ(Placement(), Replicate());
}

TEST(Layout, EqualLayoutsAreOnePointer) {
  const Layout a = Layout::Make(kMesh, {Shard(0), Shard(1)}, {7, 5});
  const Layout b = Layout::Make({{"dp", 2}, {"tp", 3}}, {Shard(0), Shard(1)}, {7, 5});
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
}

TEST(Layout, AnyDifferenceMakesAnotherLayout) {
  const Layout base = Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5});
  const std::vector<Layout> others = {
      Layout::Make({{"dp", 3}, {"tp", 2}}, {Shard(0), Shard(0)}, {7, 5}),
      Layout::Make({{"dp", 2}, {"cp", 3}}, {Shard(0), Shard(0)}, {7, 5}),
      Layout::Make(kMesh, {Shard(0), Shard(1)}, {7, 5}),
      Layout::Make(kMesh, {Shard(0), Replicate()}, {7, 5}),
      Layout::Make(kMesh, {Shard(0), Partial()}, {7, 5}),
      Layout::Make(kMesh, {Shard(0), Shard(0)}, {5, 7}),
      Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}, {1, 0}),
  };
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(others[i] == base) << others[i];
    for (size_t j = 0; j < i; ++j)
      EXPECT_FALSE(others[i] == others[j]) << others[i] << " " << others[j];
  }
  EXPECT_FALSE(base == Layout());
  EXPECT_FALSE(Layout());
  EXPECT_EQ(Layout(), Layout());
}

TEST(Layout, NegativeDimsAreTheSameLayout) {
  EXPECT_EQ(Layout::Make(kMesh, {Shard(-1), Shard(-2)}, {7, 5}),
            Layout::Make(kMesh, {Shard(1), Shard(0)}, {7, 5}));
}

TEST(Layout, SplitOrderCountsOnlyAmongSplitsOfOneDim) {
  // Axes that split different dims do not meet: their order is no part of the layout.
  EXPECT_EQ(Layout::Make(kMesh, {Shard(0), Shard(1)}, {7, 5}, {1, 0}),
            Layout::Make(kMesh, {Shard(0), Shard(1)}, {7, 5}));
  EXPECT_EQ(Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}, {0, 1}),
            Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}));
}

TEST(Layout, SplitOrderMakesTheSameLayoutAgain) {
  const MeshShape mesh = {{"a", 2}, {"b", 3}, {"c", 2}, {"d", 2}};
  const Layout layout =
      Layout::Make(mesh, {Shard(1), Shard(0), Partial(), Shard(1)}, {7, 5}, {3, 1, 0});
  EXPECT_EQ(layout.SplitAxes(0), (AxisList{1}));
  EXPECT_EQ(layout.SplitAxes(1), (AxisList{3, 0}));
  EXPECT_EQ(Layout::Make(mesh, layout.placements(), {7, 5}, layout.SplitOrder()), layout);
}

TEST(Layout, ThreadsThatMakeTheSameLayoutGetTheSamePointer) {
  constexpr int kThreads = 4, kLayouts = 50;
  std::vector<std::vector<Layout>> made(kThreads);
  std::vector<std::thread> threads;
  for (std::vector<Layout>& own : made) {
    threads.emplace_back([&own] {
      for (int64_t n = 0; n < kLayouts; ++n)
        own.push_back(Layout::Make(kMesh, {Shard(0), Partial()}, {n, 991}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Layout>& own : made) EXPECT_EQ(own, made[0]);
}

TEST(Layout, TextIsTheCanonicalForm) {
  EXPECT_EQ(Layout::Make(kMesh, {Shard(0), Replicate()}, {512, 64}).ToString(),
            "[512,64] [S(0), R] @ [dp=2, tp=3]");
  EXPECT_EQ(Layout::Make(kMesh, {Partial(ReduceOp::kMax), Shard(-1)}, {5}).ToString(),
            "[5] [P(max), S(0)] @ [dp=2, tp=3]");
  EXPECT_EQ(Layout::Replicated({}, {}).ToString(), "[] [] @ []");
  EXPECT_EQ(Layout().ToString(), "(no layout)");
  std::ostringstream out;
  out << Layout::Replicated(kMesh, {0, 7});
  EXPECT_EQ(out.str(), "[0,7] [R, R] @ [dp=2, tp=3]");
}

TEST(Layout, TextShowsASplitOrderOtherThanMeshOrder) {
  const MeshShape mesh = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_EQ(Layout::Make(mesh, {Shard(0), Shard(0), Shard(0)}, {8}).PlacementsToString(),
            "[S(0), S(0), S(0)]");
  EXPECT_EQ(Layout::Make(kMesh, {Shard(0), Shard(0)}, {8}, {1, 0}).PlacementsToString(),
            "[S(0)/1, S(0)/0]");
  EXPECT_EQ(Layout::Make(mesh, {Shard(0), Shard(0), Shard(0)}, {8}, {1, 2, 0}).PlacementsToString(),
            "[S(0)/2, S(0)/0, S(0)/1]");
  // Only the dim whose order is unusual shows it.
  EXPECT_EQ(
      Layout::Make(mesh, {Shard(0), Shard(1), Shard(0)}, {8, 8}, {2, 1, 0}).PlacementsToString(),
      "[S(0)/1, S(1), S(0)/0]");
}

TEST(Layout, BadRequestsNameMeshPlacementsShapeAndFault) {
  struct Row {
    Placements placements;
    Dims shape;
    std::string want;
  };
  for (const Row& row : std::vector<Row>{
           {{Shard(0)}, {7, 5}, "layout [7,5] [S(0)] @ [dp=2, tp=3]: 1 placements for 2 mesh axes"},
           {{Shard(0), Shard(2)},
            {7, 5},
            "layout [7,5] [S(0), S(2)] @ [dp=2, tp=3]: S(2) is out of range for a tensor of 2 "
            "dims"},
           {{Shard(-3), Replicate()},
            {7, 5},
            "layout [7,5] [S(-3), R] @ [dp=2, tp=3]: S(-3) is out of range for a tensor of 2 dims"},
           {{Shard(0), Replicate()},
            {},
            "layout [] [S(0), R] @ [dp=2, tp=3]: S(0) is out of range for a tensor of 0 dims"},
           {{Replicate(), Replicate()},
            {7, -5},
            "layout [7,-5] [R, R] @ [dp=2, tp=3]: extent -5 is negative"},
           {{Partial(), Partial(ReduceOp::kMax)},
            {7},
            "layout [7] [P(sum), P(max)] @ [dp=2, tp=3]: P(sum) and P(max) in one layout have no "
            "defined value; reduce "
            "one of them first"}}) {
    EXPECT_EQ(MessageOf([&] { Layout::Make(kMesh, row.placements, row.shape); }), row.want);
  }
}

TEST(Layout, BadSplitOrdersAreRefused) {
  for (const AxisList& order : std::vector<AxisList>{{}, {0}, {0, 0}, {0, 1, 1}, {0, 2}, {0, -1}}) {
    const std::string message = MessageOf([&] {
      Layout::Make(kMesh, std::vector<Placement>{Shard(0), Shard(0)}, {7}, order);
    });
    EXPECT_TRUE(absl::StrContains(message, "must list each sharding axis once: {0, 1}")) << message;
  }
  EXPECT_EQ(MessageOf([&] {
              Layout::Make(kMesh, {Shard(0), Replicate()}, {7}, {0, 1});
            }),
            "layout [7] [S(0), R] @ [dp=2, tp=3]: split order {0, 1} must list each sharding axis "
            "once: {0}");
}

TEST(Layout, ShapesWhoseBytesOverflowAreRefused) {
  const int64_t big = int64_t{1} << 40;
  for (const Dims& shape :
       {Dims{big, big}, Dims{big, big, 0}, Dims{0, big, big}, Dims{int64_t{1} << 62}}) {
    const std::string message = MessageOf([&] { Layout::Replicated(kMesh, shape); });
    EXPECT_TRUE(absl::StrContains(message, "more than 144115188075855871 elements")) << message;
  }
  EXPECT_EQ(Layout::Replicated(kMesh, {big, 7, 0}).LocalBox({0, 0}).NumElements(), 0);
}

TEST(Layout, WithAppendsTheInnermostSplit) {
  // FSDP after TP: tp splits the whole dim, dp each piece.
  const Layout tp = Layout::Make(kMesh, {Replicate(), Shard(0)}, {7, 5});
  EXPECT_EQ(tp.With(0, Shard(0)), Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}, {1, 0}));
  EXPECT_EQ(tp.With(0, Shard(-1)), Layout::Make(kMesh, {Shard(1), Shard(0)}, {7, 5}));
  EXPECT_EQ(tp.With(1, Partial()), Layout::Make(kMesh, {Replicate(), Partial()}, {7, 5}));
}

TEST(Layout, WithKeepsTheOrderOfTheOtherSplits) {
  const MeshShape mesh = {{"a", 2}, {"b", 3}, {"c", 2}, {"d", 5}};
  const Layout layout =
      Layout::Make(mesh, {Shard(0), Shard(0), Shard(0), Replicate()}, {60, 7}, {2, 0, 1});
  EXPECT_EQ(layout.With(0, Replicate()).SplitAxes(0), (AxisList{2, 1}));
  EXPECT_EQ(layout.With(3, Shard(0)).SplitAxes(0), (AxisList{2, 0, 1, 3}));
  EXPECT_EQ(layout.With(2, Shard(1)).SplitAxes(0), (AxisList{0, 1}));
  EXPECT_EQ(layout.With(2, Shard(1)).SplitAxes(1), (AxisList{2}));
}

TEST(Layout, WithTheSamePlacementChangesNothing) {
  const Layout layout = Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}, {1, 0});
  EXPECT_EQ(layout.With(1, Shard(0)), layout);
  EXPECT_EQ(layout.With(1, Shard(-2)), layout);
}

TEST(Layout, WithRefusesWhatMakeRefuses) {
  const Layout layout = Layout::Make(kMesh, {Partial(), Replicate()}, {7, 5});
  EXPECT_TRUE(
      absl::StrContains(MessageOf([&] { layout.With(1, Shard(2)); }), "dim 2 is out of range"));
  EXPECT_TRUE(absl::StrContains(MessageOf([&] { layout.With(1, Partial(ReduceOp::kMin)); }),
                                "P(sum) and P(min)"));
  EXPECT_TRUE(absl::StrContains(MessageOf([&] { layout.With(2, Shard(0)); }),
                                "axis 2 is not an axis of [7,5]"));
}

TEST(Layout, WithShapeKeepsPlacementsAndSplitOrder) {
  const Layout layout = Layout::Make(kMesh, {Shard(0), Shard(0)}, {7, 5}, {1, 0});
  EXPECT_EQ(layout.WithShape({11, 2}), Layout::Make(kMesh, {Shard(0), Shard(0)}, {11, 2}, {1, 0}));
  EXPECT_TRUE(
      absl::StrContains(MessageOf([&] { layout.WithShape({11}); }), "has not as many dims"));
}

TEST(Layout, PartialAsReplicateLeavesTheShards) {
  const MeshShape mesh = {{"a", 2}, {"b", 3}, {"c", 2}};
  const Layout layout = Layout::Make(mesh, {Shard(0), Partial(), Shard(0)}, {7}, {2, 0});
  EXPECT_TRUE(layout.HasPartial());
  const Layout read = layout.PartialAsReplicate();
  EXPECT_EQ(read, Layout::Make(mesh, {Shard(0), Replicate(), Shard(0)}, {7}, {2, 0}));
  EXPECT_FALSE(read.HasPartial());
  EXPECT_EQ(read.PartialAsReplicate(), read);
}

TEST(Layout, SummariesOfThePlacements) {
  EXPECT_TRUE(Layout::Replicated(kMesh, {7}).IsFullyReplicated());
  EXPECT_FALSE(Layout::Make(kMesh, {Replicate(), Partial()}, {7}).IsFullyReplicated());
  EXPECT_FALSE(Layout::Make(kMesh, {Replicate(), Shard(0)}, {7}).IsFullyReplicated());
  EXPECT_EQ(Layout::Make(kMesh, {Replicate(), Shard(0)}, {7}).placement("tp"), Shard(0));
}

TEST(Layout, CoordinatesOutsideTheMeshAreRefused) {
  const Layout layout = Layout::Make(kMesh, {Shard(0), Replicate()}, {7});
  EXPECT_EQ(MessageOf([&] {
              layout.LocalBox({2, 0});
            }),
            "coordinate (2, 0) is not in the mesh [dp=2, tp=3]");
  EXPECT_EQ(MessageOf([&] { layout.LocalBox({1}); }),
            "coordinate (1) is not in the mesh [dp=2, tp=3]");
}

TEST(Layout, OnesWithoutHandlesAreFreed) {
  // Every new sequence length is a new layout.
  const size_t before = Layout::NumInterned();
  std::vector<Layout> kept;
  size_t most = 0;
  for (int64_t n = 1; n <= 100'000; ++n) {
    Layout layout = Layout::Make(kMesh, {Shard(0), Replicate()}, {n, 3});
    if (n % 1000 == 0) kept.push_back(layout);
    most = std::max(most, Layout::NumInterned());
  }
  EXPECT_LE(most - before, 8192u);
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto n = static_cast<int64_t>(i + 1) * 1000;
    EXPECT_EQ(kept[i].ToString(), absl::StrCat("[", n, ",3] [S(0), R] @ [dp=2, tp=3]"));
    EXPECT_EQ(kept[i], Layout::Make(kMesh, {Shard(0), Replicate()}, {n, 3}));
  }
}

TEST(Layout, HandlesCountThroughCopiesMovesAndAssignments) {
  const auto make = [](int64_t n) { return Layout::Make(kMesh, {Shard(0), Partial()}, {n, 11}); };
  const auto sweep = [] {  // Makes so many that those without handles are freed.
    for (int64_t n = 0; n < 50'000; ++n) Layout::Make(kMesh, {Replicate(), Shard(1)}, {n, 5});
  };
  Layout a = make(1), b = make(2), empty;
  const Layout copy = a;
  a = b;  // The first one is left to `copy`.
  Layout moved = std::move(b);
  b = std::move(moved);  // Swapped with nothing.
  moved = b;
  Layout& self = moved;
  moved = self;
  moved = std::move(self);
  empty = copy;
  empty = Layout();
  std::vector<Layout> many(7, a);
  many.erase(many.begin(), many.begin() + 6);
  a = Layout();
  sweep();
  EXPECT_EQ(copy, make(1));
  EXPECT_EQ(copy.ToString(), "[1,11] [S(0), P(sum)] @ [dp=2, tp=3]");
  EXPECT_EQ(many[0], make(2));
  EXPECT_EQ(many[0], b);
  EXPECT_FALSE(a);
  EXPECT_FALSE(empty);
}

TEST(Layout, ThreadsMayPassHandlesToEachOther) {
  // Each thread makes layouts that others make too, and drops what another one has made, while
  // those without handles are freed.
  constexpr int kThreads = 11;  // More than have counters of their own.
  std::mutex mutex;
  std::vector<std::pair<int64_t, Layout>> shared(kThreads);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 10'000; ++i) {
        const int64_t n = i * (1 + t % 2);
        Layout layout = Layout::Make(kMesh, {Shard(1), Replicate()}, {n, 7});
        Layout again = layout;
        std::pair<int64_t, Layout> taken = {n, std::move(again)};
        {
          const std::lock_guard lock(mutex);
          std::swap(taken, shared[(t + i) % kThreads]);
        }
        const auto [extent, theirs] = taken;
        taken.second = Layout();
        if (theirs && theirs.global_shape() != Dims{extent, 7}) ++wrong;
        if (theirs && theirs != Layout::Make(kMesh, {Shard(1), Replicate()}, {extent, 7})) ++wrong;
        if (layout.global_shape() != Dims{n, 7}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace shardmesh
