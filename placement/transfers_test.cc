// SPDX-License-Identifier: Apache-2.0
//
// The transfer primitive: boxes of two layouts decide who sends what to whom.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {
namespace {

std::string MessageOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

/// The values of one rank: row-major over its box.
struct Local {
  Box box;
  std::vector<int64_t> values;

  int64_t& At(const Dims& index) {
    int64_t offset = 0;
    for (int d = 0; d < box.num_dims(); ++d)
      offset = offset * (box.end[d] - box.begin[d]) + index[d] - box.begin[d];
    return values[offset];
  }
};

/// Calls `fn` with every index of `box`.
template <typename Fn>
void ForEachIndex(const Box& box, Fn fn) {
  if (box.IsEmpty()) return;
  Dims index = box.begin;
  for (int64_t i = box.NumElements(); i > 0; --i) {
    fn(index);
    for (int d = box.num_dims() - 1; d >= 0 && ++index[d] == box.end[d]; --d)
      index[d] = box.begin[d];
  }
}

int64_t FlatIndex(const Dims& shape, const Dims& index) {
  int64_t flat = 0;
  for (int d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

/// What the rank at `coord` holds of an arange tensor.
Local ArangeShard(const Layout& layout, const Coord& coord) {
  Local local = {layout.LocalBox(coord), {}};
  ForEachIndex(local.box, [&](const Dims& index) {
    local.values.push_back(FlatIndex(layout.global_shape(), index));
  });
  return local;
}

/// Every layout without Partial: R, S(0), .., S(rank - 1) on each axis, in every split order.
std::vector<Layout> NonPartialLayouts(const MeshShape& mesh, const Dims& shape) {
  std::vector<Layout> layouts;
  const int choices = shape.size() + 1;
  int64_t codes = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) codes *= choices;
  for (int64_t code = 0; code < codes; ++code) {
    Placements placements;
    std::vector<int> order;
    int64_t rest = code;
    for (int axis = 0; axis < mesh.num_axes(); ++axis, rest /= choices) {
      placements.push_back(rest % choices == 0 ? Replicate()
                                               : Shard(static_cast<int>(rest % choices) - 1));
      if (placements.back().IsShard()) order.push_back(axis);
    }
    do {
      const Layout layout = Layout::Make(mesh, placements, shape, order);
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
        layouts.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return layouts;
}

/// TransfersOfRank gives each member its part of `transfers`.
void CheckShares(const Layout& from, const Layout& to, const AxisList& axes,
                 const std::vector<Coord>& members, const std::vector<Transfer>& transfers) {
  for (int member = 0; member < static_cast<int>(members.size()); ++member) {
    std::vector<Transfer> sends, receives;
    for (const Transfer& transfer : transfers) {
      if (transfer.source == member) sends.push_back(transfer);
      if (transfer.target == member) receives.push_back(transfer);
    }
    const RankTransfers own = TransfersOfRank(from, to, axes, members[member]);
    ASSERT_EQ(own.position, member);
    ASSERT_EQ(own.group_size, static_cast<int>(members.size()));
    ASSERT_EQ(own.sends, sends) << from << " -> " << to << " member " << member;
    ASSERT_EQ(own.receives, receives) << from << " -> " << to << " member " << member;
  }
}

/// Runs the transfers of all ranks and checks each target against the definition.
void CheckTransfers(const Layout& from, const Layout& to) {
  const MeshShape& mesh = from.mesh();
  AxisList all;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) all.push_back(axis);
  const std::vector<Coord> members = GroupCoords(mesh, all, mesh.CoordOf(0));
  std::vector<Local> sources, targets;
  for (const Coord& member : members) {
    sources.push_back(ArangeShard(from, member));
    const Box box = to.LocalBox(member);
    targets.push_back({box, std::vector<int64_t>(box.NumElements(), -1)});
  }
  const std::vector<Transfer> transfers = Transfers(from, to, all, mesh.CoordOf(0));
  CheckShares(from, to, all, members, transfers);
  for (const Transfer& transfer : transfers) {
    ASSERT_FALSE(transfer.box.IsEmpty());
    ASSERT_TRUE(sources[transfer.source].box.Contains(transfer.box)) << from << " -> " << to;
    ASSERT_TRUE(targets[transfer.target].box.Contains(transfer.box)) << from << " -> " << to;
    ForEachIndex(transfer.box, [&](const Dims& index) {
      int64_t& value = targets[transfer.target].At(index);
      ASSERT_EQ(value, -1) << "written twice: " << from << " -> " << to;
      value = sources[transfer.source].At(index);
    });
    // Whoever holds a box takes its own.
    if (transfer.source != transfer.target) {
      ASSERT_FALSE(sources[transfer.target].box.Contains(transfer.box)) << from << " -> " << to;
      for (int lower = 0; lower < transfer.source; ++lower) {
        ASSERT_FALSE(sources[lower].box.Contains(transfer.box)) << from << " -> " << to;
      }
    }
  }
  for (size_t member = 0; member < members.size(); ++member) {
    ASSERT_EQ(targets[member].values, ArangeShard(to, members[member]).values)
        << from << " -> " << to << " member " << member;
  }
  ASSERT_TRUE(
      std::is_sorted(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
        return a.target != b.target ? a.target < b.target : a.source < b.source;
      }));
}

TEST(Transfers, EveryPairOfLayoutsOfSmallMeshesMovesEveryElementOnce) {
  struct Row {
    MeshShape mesh;
    std::vector<Dims> shapes;
  };
  const std::vector<Row> rows = {
      {{{"x", 3}}, {{}, {7}, {5, 2}, {0, 3}, {2, 3, 2}}},
      {{{"x", 5}}, {{7, 3}, {1}}},
      {{{"x", 2}, {"y", 2}}, {{5, 3}, {3, 7}, {1, 1}, {0, 2}}},
      {{{"x", 3}, {"y", 2}}, {{7, 5}, {2, 3}}},
      {{{"x", 1}, {"y", 3}}, {{5, 4}}},
      {{{"x", 2}, {"y", 3}, {"z", 2}}, {{11}}},
  };
  for (const Row& row : rows) {
    for (const Dims& shape : row.shapes) {
      const std::vector<Layout> layouts = NonPartialLayouts(row.mesh, shape);
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) CheckTransfers(from, to);
      }
    }
  }
}

TEST(Transfers, ShareOfARankIsThatOfItsGroup) {
  const MeshShape mesh = {{"x", 3}, {"y", 2}, {"z", 2}};
  const Dims shape = {7, 5};
  // z splits rows outside the group, y inside; x replicates, so one of three members sends.
  const Layout from = Layout::Make(mesh, {Replicate(), Shard(0), Shard(0)}, shape, {2, 1});
  const Layout to = Layout::Make(mesh, {Shard(1), Replicate(), Shard(0)}, shape);
  for (const AxisList& axes : {AxisList{0, 1}, AxisList{1, 0}}) {
    for (const Coord& coord : {Coord{0, 0, 0}, Coord{0, 0, 1}}) {
      CheckShares(from, to, axes, GroupCoords(mesh, axes, coord), Transfers(from, to, axes, coord));
    }
  }
}

TEST(Transfers, OneOfSixteenThousandRanksTakesNoTimeAndRefusesWhatItLacks) {
  const MeshShape mesh = {{"x", 16384}};
  const Layout rows = Layout::Make(mesh, {Shard(0)}, {32768, 32768});
  const RankTransfers own = TransfersOfRank(rows, rows.With(0, Shard(1)), {0}, Coord{5});
  ASSERT_EQ(own.sends.size(), 16384u);
  ASSERT_EQ(own.receives.size(), 16384u);
  EXPECT_EQ(own.sends[7], (Transfer{5, 7, {{10, 14}, {12, 16}}}));
  EXPECT_EQ(own.receives[7], (Transfer{7, 5, {{14, 10}, {16, 12}}}));
  const MeshShape square = {{"a", 2}, {"b", 2}};
  const Layout halves = Layout::Make(square, {Shard(0), Replicate()}, {4});
  EXPECT_TRUE(absl::StrContains(
      MessageOf([&] {
        TransfersOfRank(halves, Layout::Replicated(square, {4}), {1}, Coord{0, 0});
      }),
      "no member holds all of [0:4], which the rank at (0, 0) needs"));
}

TEST(Transfers, GatherPutsRowsOfNestedSplitsInOrder) {
  // Seen elsewhere: a gather from left to right of FSDP-after-TP shards gives 0, 2, 1, 3.
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  const Layout from = Layout::Make(mesh, {Shard(0), Shard(0)}, {4, 1}, {1, 0});
  const std::vector<Transfer> transfers =
      Transfers(from, Layout::Replicated(mesh, {4, 1}), {0, 1}, Coord{0, 0});
  // To the first member: row 0 from (0,0), row 2 from (0,1), row 1 from (1,0), row 3 from (1,1).
  const std::vector<Transfer> want = {{0, 0, {{0, 0}, {1, 1}}},
                                      {1, 0, {{2, 0}, {3, 1}}},
                                      {2, 0, {{1, 0}, {2, 1}}},
                                      {3, 0, {{3, 0}, {4, 1}}}};
  EXPECT_EQ(std::vector<Transfer>(transfers.begin(), transfers.begin() + 4), want);
}

TEST(Transfers, GroupOfOneAxisStaysInItsSlice) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  const Layout from = Layout::Make(mesh, {Shard(0), Shard(1)}, {6, 5});
  const Layout to = Layout::Make(mesh, {Shard(0), Replicate()}, {6, 5});
  const std::vector<Transfer> want = {{0, 0, {{3, 0}, {6, 3}}},
                                      {1, 0, {{3, 3}, {6, 5}}},
                                      {0, 1, {{3, 0}, {6, 3}}},
                                      {1, 1, {{3, 3}, {6, 5}}}};
  EXPECT_EQ(Transfers(from, to, {1}, Coord{1, 0}), want);
  EXPECT_EQ(Transfers(from, to, {1}, Coord{1, 1}), want);
}

TEST(Transfers, PartialOutsideTheGroupIsAllowedAndInsideRefused) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  const Layout from = Layout::Make(mesh, {Partial(), Shard(0)}, {6});
  EXPECT_EQ(Transfers(from, from.With(1, Replicate()), {1}, Coord{1, 0}).size(), 4u);
  const std::string want =
      "no transfers from [6] [P(sum), S(0)] @ [dp=2, tp=2] to [6] [R, S(0)] @ [dp=2, tp=2] over "
      "axes {dp}: values would "
      "have to be reduced";
  EXPECT_EQ(MessageOf([&] { Transfers(from, from.With(0, Replicate()), {0}, Coord{0, 0}); }), want);
}

TEST(Transfers, GroupThatLacksABoxIsRefused) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  const Layout from = Layout::Make(mesh, {Shard(0), Shard(1)}, {6, 5});
  const Layout to = Layout::Make(mesh, {Replicate(), Shard(1)}, {6, 5});
  const std::string message = MessageOf([&] { Transfers(from, to, {1}, Coord{1, 0}); });
  EXPECT_TRUE(absl::StrContains(
      message, "over axes {tp}: no member holds all of [0:6, 0:3], which the rank at (1, 0) needs"))
      << message;
}

TEST(Transfers, LayoutsOfDifferentShapesAreRefused) {
  const MeshShape mesh = {{"dp", 2}};
  const std::string message = MessageOf([&] {
    Transfers(Layout::Replicated(mesh, {3}), Layout::Replicated(mesh, {4}), {0}, Coord{0});
  });
  EXPECT_EQ(message,
            "no transfers from [3] [R] @ [dp=2] to [4] [R] @ [dp=2]: mesh and global shape must be "
            "equal");
}

/// Ranks of the groups of `axes`, each once, by first member.
std::vector<std::vector<int64_t>> Groups(const MeshShape& mesh, const AxisList& axes) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
    std::vector<int64_t> group;
    for (const Coord& coord : GroupCoords(mesh, axes, mesh.CoordOf(rank)))
      group.push_back(mesh.RankOf(coord));
    if (group[0] == rank) groups.push_back(group);
  }
  return groups;
}

TEST(GroupCoords, GroupsOfAdjacentAndOtherAxes) {
  using Ranks = std::vector<std::vector<int64_t>>;
  const MeshShape mesh = {{"dp", 2}, {"cp", 2}, {"tp", 2}};
  EXPECT_EQ(Groups(mesh, {0, 2}), (Ranks{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(Groups(mesh, {0, 1}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(Groups(mesh, {1, 2}), (Ranks{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(Groups(mesh, {2}), (Ranks{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // Names out of order: the first given is the outermost.
  EXPECT_EQ(Groups(mesh, {2, 0}), (Ranks{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(Groups(mesh, {}), (Ranks{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(GroupCoords, AxesThatAreNoneOrTwiceAreRefused) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  for (const AxisList& axes : std::vector<AxisList>{{2}, {-1}, {0, 0}}) {
    const std::string message = MessageOf([&] { GroupCoords(mesh, axes, Coord{0, 0}); });
    EXPECT_TRUE(absl::StrContains(message, "must be distinct axes of the mesh [dp=2, tp=2]"))
        << message;
  }
  EXPECT_EQ(MessageOf([&] {
              GroupCoords(mesh, {0}, Coord{0, 2});
            }),
            "coordinate (0, 2) is not in the mesh [dp=2, tp=2]");
}

}  // namespace
}  // namespace shardmesh
