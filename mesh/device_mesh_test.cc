// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/mesh/device_mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;
using Ranks = std::vector<int>;
using Groups = std::vector<Ranks>;
using Names = std::vector<std::string>;

// Counts how often groups are made, its own and those of what Split gives.
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(Communicator& inner, int* splits)
      : Communicator(inner.rank(), inner.world_ranks(), inner.name(), inner.rank_context()),
        inner_(inner),
        splits_(splits) {}
  CountingCommunicator(std::unique_ptr<Communicator> inner, int* splits)
      : CountingCommunicator(*inner, splits) {
    owned_ = std::move(inner);
  }

  void Fail(const absl::Status& cause) override { inner_.Fail(cause); }
  std::unique_ptr<Communicator> Split(int color, int key, std::string name) override {
    ++*splits_;
    auto group = inner_.Split(color, key, std::move(name));
    if (group == nullptr) return nullptr;
    return std::make_unique<CountingCommunicator>(std::move(group), splits_);
  }

 private:
  void ThrowIfFailed() override {}
  std::unique_ptr<Communicator> DoSubgroup(const std::vector<int>& members, std::string name,
                                           int /*ordinal*/) override {
    ++*splits_;
    return std::make_unique<CountingCommunicator>(inner_.Subgroup(members, std::move(name)),
                                                  splits_);
  }
  Work DoAllGather(std::vector<AllGatherItem> batch, std::string_view op) override {
    return inner_.AllGather(std::move(batch), op);
  }
  Work DoReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                       std::string_view op) override {
    return inner_.ReduceScatter(std::move(batch), reduction, op);
  }
  Work DoAllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                   std::string_view op) override {
    return inner_.AllReduce(std::move(batch), reduction, op);
  }
  Work DoAllToAll(std::vector<AllToAllItem> batch, std::string_view op) override {
    return inner_.AllToAll(std::move(batch), op);
  }
  Work DoBroadcast(std::vector<Tensor> tensors, int root, std::string_view op) override {
    return inner_.Broadcast(std::move(tensors), root, op);
  }
  void DoBarrier(std::string_view op) override { inner_.Barrier(op); }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;
  int* splits_;
};

void OnRanks(int ranks, absl::FunctionRef<void(Communicator&)> fn) {
  EXPECT_EQ(RunRanks(ranks, fn, {.timeout = absl::Seconds(60)}), absl::OkStatus());
}

// The group must be the one of `groups` that has this rank, members in that order, and must work.
void ExpectGroup(Communicator& group, const Groups& groups, const std::string& what) {
  bool found = false;
  for (const Ranks& ranks : groups) {
    if (std::find(ranks.begin(), ranks.end(), group.world_rank()) == ranks.end()) continue;
    EXPECT_EQ(group.world_ranks(), ranks) << what;
    found = true;
  }
  EXPECT_TRUE(found) << what;
  const int64_t own[] = {int64_t{1} << (group.world_rank() % 60)};
  const Tensor x = Tensor::FromValues<int64_t>(group.context(), {1}, own);
  group.AllReduce({{x, x}}, ReduceOp::kSum).Wait();
  int64_t expected = 0;
  for (const int rank : group.world_ranks()) expected += int64_t{1} << (rank % 60);
  EXPECT_EQ(x.ToVector<int64_t>()[0], expected) << what;
}

std::string MessageOf(absl::FunctionRef<void()> fn,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = Catch(fn);
  EXPECT_EQ(status.code(), code);
  return std::string(status.message());
}

// ---- Create ---------------------------------------------------------------------------------

TEST(DeviceMesh, IsRowMajorWithAGroupForEveryAxis) {
  OnRanks(6, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 3}});
    const int r = world.rank();
    EXPECT_EQ(mesh.ToString(), "[dp=2, tp=3]");
    EXPECT_TRUE(mesh.IsMember());
    EXPECT_EQ(mesh.ranks(), (Ranks{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(mesh.coord(), (Coord{r / 3, r % 3}));
    EXPECT_EQ(mesh.Size("tp"), 3);
    EXPECT_EQ(mesh.LocalRank("dp"), r / 3);
    EXPECT_EQ(mesh.LocalRank("tp"), r % 3);
    EXPECT_EQ(mesh.Group("dp").name(), "dp");
    EXPECT_EQ(mesh.Group("dp").rank(), r / 3);
    ExpectGroup(mesh.Group("dp"), {{0, 3}, {1, 4}, {2, 5}}, "dp");
    ExpectGroup(mesh.Group("tp"), {{0, 1, 2}, {3, 4, 5}}, "tp");
    ExpectGroup(mesh.WorldGroup(), {{0, 1, 2, 3, 4, 5}}, "whole");
    EXPECT_EQ(mesh.WorldGroup().name(), "dp+tp");
    EXPECT_EQ(&mesh.context(), &world.context());
    EXPECT_EQ(&mesh.locals(), &world.locals());
  });
}

TEST(DeviceMesh, OfOneRankIsNoSpecialCase) {
  OnRanks(1, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}, {"tp", 1}});
    EXPECT_EQ(mesh.coord(), (Coord{0, 0}));
    ExpectGroup(mesh.Group("tp"), {{0}}, "tp");
    ExpectGroup(mesh.Flatten({"dp", "tp"}, "all").Group("all"), {{0}}, "all");
    const DeviceMesh point = DeviceMesh::Create(world, MeshShape());
    EXPECT_EQ(point.coord(), Coord{});
    ExpectGroup(point.WorldGroup(), {{0}}, "no axes");
  });
}

TEST(DeviceMesh, ThatDoesNotFitTheWorldNamesBoth) {
  OnRanks(3, [](Communicator& world) {
    const std::string message = MessageOf([&] {
      DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
    });
    EXPECT_EQ(message, "mesh [dp=2, tp=2] needs 4 ranks, the world has 3");
    EXPECT_THAT(MessageOf([&] {
                  DeviceMesh::Create(world, {{"dp", 2}}, Ranks{0, 3});
                }),
                HasSubstr("rank 3"));
    EXPECT_THAT(MessageOf([&] {
                  DeviceMesh::Create(world, {{"dp", 2}}, Ranks{1, 1});
                }),
                HasSubstr("given twice"));
    EXPECT_THAT(MessageOf([&] {
                  DeviceMesh::Create(world, {{"dp", 2}}, Ranks{1});
                }),
                HasSubstr("2 ranks, 1 were"));
    // Nothing was posted: the ranks still agree.
    world.Barrier();
  });
}

TEST(DeviceMesh, ThatRanksMakeDifferentlyIsAnErrorOnAll) {
  const auto run = [](const MeshShape& a, const MeshShape& b) {
    return RunRanks(
        4, [&](Communicator& world) { DeviceMesh::Create(world, world.rank() == 1 ? a : b); },
        {.timeout = absl::Seconds(60)});
  };
  EXPECT_FALSE(run({{"dp", 2}, {"tp", 2}}, {{"tp", 2}, {"dp", 2}}).ok());
  EXPECT_FALSE(run({{"dp", 2}, {"tp", 2}}, {{"dp", 4}, {"tp", 1}}).ok());
  EXPECT_FALSE(run({{"dp", 4}}, {{"dp", 2}, {"tp", 2}}).ok());
}

TEST(DeviceMesh, TakesRanksInAnyOrder) {
  OnRanks(6, [](Communicator& world) {
    const Ranks ranks = {5, 0, 3, 1, 4, 2};
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 3}}, ranks);
    EXPECT_EQ(mesh.ranks(), ranks);
    ExpectGroup(mesh.Group("dp"), {{5, 1}, {0, 4}, {3, 2}}, "dp");
    ExpectGroup(mesh.Group("tp"), {{5, 0, 3}, {1, 4, 2}}, "tp");
    ExpectGroup(mesh.WorldGroup(), {ranks}, "whole");
    ExpectGroup(mesh.Flatten({"tp", "dp"}, "all").Group("all"), {{5, 1, 0, 4, 3, 2}}, "flattened");
  });
}

TEST(DeviceMesh, LeavesRanksOutside) {
  OnRanks(7, [](Communicator& world) {
    const Ranks ranks = {6, 1, 4, 2};
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}}, ranks);
    const bool inside = std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end();
    EXPECT_EQ(mesh.IsMember(), inside);
    EXPECT_EQ(mesh.ranks(), ranks);
    EXPECT_EQ(mesh.Size("dp"), 2);
    if (!inside) {
      EXPECT_THAT(MessageOf([&] { mesh.coord(); }),
                  HasSubstr("is not in the mesh [dp=2, tp=2] of ranks 6, 1, 4, 2"));
      MessageOf([&] { mesh.Group("dp"); });
      MessageOf([&] { mesh.WorldGroup(); });
      MessageOf([&] { mesh["dp"]; });
      EXPECT_FALSE(mesh.Flatten({"dp", "tp"}, "all").IsMember());
      return;
    }
    ExpectGroup(mesh.Group("dp"), {{6, 4}, {1, 2}}, "dp");
    ExpectGroup(mesh.Group("tp"), {{6, 1}, {4, 2}}, "tp");
    ExpectGroup(mesh.Flatten({"dp", "tp"}, "all").Group("all"), {ranks}, "all");
  });
}

// A message listed all ranks of a mesh of thousands.
TEST(DeviceMesh, NamesAtMostSixteenRanksInMessages) {
  OnRanks(24, [](Communicator& world) {
    Ranks ranks(23);
    std::iota(ranks.begin(), ranks.end(), 1);
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 23}}, ranks);
    if (world.rank() == 0) {
      EXPECT_THAT(MessageOf([&] { mesh.coord(); }), HasSubstr("14, 15, 16 and 7 more"));
    }
  });
}

// ---- Groups of several axes -----------------------------------------------------------------

// Elsewhere flattening dims that are not adjacent built the wrong groups.
void ExpectCubeGroups(Communicator& world, const Ranks& ranks) {
  const auto mapped = [&](Groups groups) {
    for (Ranks& group : groups) {
      for (int& rank : group) rank = ranks[rank];
    }
    return groups;
  };
  const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"cp", 2}, {"tp", 2}}, ranks);
  if (!mesh.IsMember()) return;
  const Groups dp_tp = mapped({{0, 1, 4, 5}, {2, 3, 6, 7}});
  const Groups dp_cp = mapped({{0, 2, 4, 6}, {1, 3, 5, 7}});

  const DeviceMesh outer = mesh.Flatten({"dp", "tp"}, "x");
  EXPECT_EQ(outer.ToString(), "[x=4, cp=2]");
  EXPECT_EQ(outer.ranks(), mapped({{0, 2, 1, 3, 4, 6, 5, 7}})[0]);
  ExpectGroup(outer.Group("x"), dp_tp, "dp, tp");
  ExpectGroup(outer.Group("cp"), mapped({{0, 2}, {1, 3}, {4, 6}, {5, 7}}), "cp beside x");
  EXPECT_EQ(outer.Group("x").name(), "x");

  const DeviceMesh data = mesh.Flatten({"dp", "cp"}, "data");
  EXPECT_EQ(data.ToString(), "[data=4, tp=2]");
  ExpectGroup(data.Group("data"), dp_cp, "dp, cp");
  // A slice of a flattened axis.
  const DeviceMesh slice = data["data"];
  EXPECT_EQ(slice.ToString(), "[data=4]");
  ExpectGroup(slice.Group("data"), dp_cp, "slice");
  ExpectGroup(slice.WorldGroup(), dp_cp, "whole of the slice");
  // Flattened twice.
  const DeviceMesh all = data.Flatten({"data", "tp"}, "all");
  EXPECT_EQ(all.ToString(), "[all=8]");
  ExpectGroup(all.Group("all"), mapped({{0, 1, 2, 3, 4, 5, 6, 7}}), "flattened twice");
  EXPECT_EQ(all.coord()[0], std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin());
  // Names out of order: tp is the outer one.
  const DeviceMesh reversed = mesh.Flatten({"tp", "dp"}, "y");
  EXPECT_EQ(reversed.ToString(), "[cp=2, y=4]");
  ExpectGroup(reversed.Group("y"), mapped({{0, 4, 1, 5}, {2, 6, 3, 7}}), "tp, dp");
  EXPECT_EQ(reversed.LocalRank("y"), mesh.LocalRank("tp") * 2 + mesh.LocalRank("dp"));
  // Of a slice, whose other ranks do the same.
  const DeviceMesh of_slice = mesh.Slice({"tp", "cp"}).Flatten({"tp", "cp"}, "z");
  EXPECT_EQ(of_slice.ToString(), "[z=4]");
  ExpectGroup(of_slice.Group("z"), mapped({{0, 2, 1, 3}, {4, 6, 5, 7}}), "flattened slice");

  // Merged, for collectives over two axes at once: mesh order whatever the order given.
  const int axes[] = {2, 0};
  ExpectGroup(mesh.Group(axes), dp_tp, "merged");
  EXPECT_EQ(mesh.Group(axes).name(), "dp+tp");
}

TEST(DeviceMesh, FlattensAxesThatAreNotAdjacent) {
  OnRanks(8, [](Communicator& world) {
    Ranks ranks(8);
    std::iota(ranks.begin(), ranks.end(), 0);
    ExpectCubeGroups(world, ranks);
    ExpectCubeGroups(world, {3, 1, 4, 0, 5, 7, 2, 6});
  });
}

TEST(DeviceMesh, FlattensAmongRanksOffsetByAHundred) {
  OnRanks(108, [](Communicator& world) {
    Ranks ranks(8);
    std::iota(ranks.begin(), ranks.end(), 100);
    ExpectCubeGroups(world, ranks);
  });
}

TEST(DeviceMesh, UnevenCubeHasExactGroups) {
  OnRanks(12, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"a", 2}, {"b", 3}, {"c", 2}});
    ExpectGroup(mesh.Flatten({"a", "c"}, "ac").Group("ac"),
                {{0, 1, 6, 7}, {2, 3, 8, 9}, {4, 5, 10, 11}}, "a, c");
    ExpectGroup(mesh.Flatten({"c", "b"}, "cb").Group("cb"),
                {{0, 2, 4, 1, 3, 5}, {6, 8, 10, 7, 9, 11}}, "c, b");
  });
}

TEST(DeviceMesh, RepeatingASliceOrFlattenIsEqualAndCreatesNoGroup) {
  OnRanks(8, [](Communicator& world) {
    int splits = 0;
    CountingCommunicator counted(world, &splits);
    const DeviceMesh mesh = DeviceMesh::Create(counted, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
    EXPECT_EQ(splits, 4);  // The whole, and one an axis.
    const DeviceMesh tp = mesh["tp"];
    EXPECT_EQ(tp, mesh.Slice({"tp"}));
    EXPECT_EQ(&tp.Group(0), &mesh.Group("tp"));
    EXPECT_EQ(&tp.WorldGroup(), &mesh.Group("tp"));
    EXPECT_EQ(splits, 4);
    EXPECT_FALSE(tp == mesh["cp"]);
    EXPECT_FALSE(mesh == DeviceMesh());
    EXPECT_EQ(DeviceMesh(), DeviceMesh());

    const DeviceMesh data = mesh.Flatten({"dp", "cp"}, "data");
    EXPECT_EQ(splits, 5);
    const int dp_cp[] = {0, 1};
    mesh.Group(dp_cp);  // The same ranks under the name of merged axes.
    EXPECT_EQ(splits, 6);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(mesh.Flatten({"dp", "cp"}, "data"), data);
      EXPECT_EQ(&mesh.Flatten({"dp", "cp"}, "data").Group("data"), &data.Group("data"));
      EXPECT_EQ(data["data"], data["data"]);
      EXPECT_EQ(&mesh.Group(dp_cp), &mesh.Slice({"dp", "cp"}).WorldGroup());
      EXPECT_EQ(&mesh.WorldGroup(), &mesh.WorldGroup());
    }
    EXPECT_EQ(splits, 7);  // And the group of all ranks.
    EXPECT_EQ(data["data"].ranks().size(), 4u);
  });
}

TEST(DeviceMesh, AGroupOfASliceIsTheBusinessOfItsRanksAlone) {
  // Stages of a pipeline run different programs: one works on all its ranks, the other on pairs.
  OnRanks(8, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const DeviceMesh stage = mesh.Slice({"dp", "tp"});
    const int stage_number = mesh.coord()[0];
    const auto sum_over = [&](Communicator& group) {
      const Tensor x = Tensor::FromValues<int32_t>(mesh.context(), {}, {1 << world.rank()});
      group.AllReduce({{x, x}}, ReduceOp::kSum, "stage").Wait();
      return x.IntegerItem();
    };
    if (stage_number == 0) {
      ExpectGroup(stage.WorldGroup(), {{0, 1, 2, 3}}, "the first stage");
      EXPECT_EQ(sum_over(stage.WorldGroup()), 0x0f);
    } else {
      EXPECT_EQ(sum_over(stage.Group("tp")), world.rank() < 6 ? 0x30 : 0xc0);
      const DeviceMesh flat = stage.Flatten({"tp", "dp"}, "all");
      EXPECT_EQ(sum_over(flat.Group("all")), 0xf0);
      ExpectGroup(flat.Group("all"), {{4, 6, 5, 7}}, "the second stage, flattened");
    }
    world.Barrier();
    EXPECT_EQ(sum_over(mesh.WorldGroup()), 0xff);
  });
}

TEST(DeviceMesh, SliceKeepsTheOrderGivenAndThisRanksCoordinates) {
  OnRanks(12, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"a", 2}, {"b", 3}, {"c", 2}});
    const DeviceMesh slice = mesh.Slice({"c", "a"});
    EXPECT_EQ(slice.ToString(), "[c=2, a=2]");
    const int b = mesh.LocalRank("b") * 2;
    EXPECT_EQ(slice.ranks(), (Ranks{b, 6 + b, 1 + b, 7 + b}));
    EXPECT_EQ(slice.coord(), (Coord{mesh.LocalRank("c"), mesh.LocalRank("a")}));
    EXPECT_EQ(slice.ranks()[slice.shape().RankOf(slice.coord())], world.rank());
    ExpectGroup(slice.WorldGroup(), {{0, 6, 1, 7}, {2, 8, 3, 9}, {4, 10, 5, 11}}, "c, a");
    EXPECT_EQ(slice["a"], mesh["a"]);
  });
}

TEST(DeviceMesh, UnflattenSplitsAnAxis) {
  OnRanks(8, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 4}, {"tp", 2}});
    const DeviceMesh split = mesh.Unflatten("dp", {{"replicate", 2}, {"shard", 2}});
    EXPECT_EQ(split.ToString(), "[replicate=2, shard=2, tp=2]");
    EXPECT_EQ(split.ranks(), mesh.ranks());
    ExpectGroup(split.Group("replicate"), {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, "replicate");
    ExpectGroup(split.Group("shard"), {{0, 2}, {1, 3}, {4, 6}, {5, 7}}, "shard");
    EXPECT_EQ(&split.Group("tp"), &mesh.Group("tp"));
    // There and back, and of a flattened axis at places where it was not joined.
    EXPECT_EQ(split.Flatten({"replicate", "shard"}, "dp"), mesh);
    const DeviceMesh flat =
        mesh.Flatten({"tp", "dp"}, "all").Unflatten("all", {{"x", 4}, {"y", 2}});
    ExpectGroup(flat.Group("y"), {{0, 2}, {4, 6}, {1, 3}, {5, 7}}, "y");
    EXPECT_THAT(MessageOf([&] {
                  mesh.Unflatten("dp", {{"x", 3}, {"y", 2}});
                }),
                HasSubstr("cannot become [x=3, y=2]"));
    EXPECT_THAT(MessageOf([&] {
                  mesh.Unflatten("tp", {{"dp", 2}, {"y", 1}});
                }),
                HasSubstr("\"dp\""));
  });
}

TEST(DeviceMesh, RefusesAxesItDoesNotHave) {
  OnRanks(4, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
    EXPECT_THAT(MessageOf([&] { mesh["pp"]; }), HasSubstr("\"pp\""));
    EXPECT_THAT(MessageOf([&] { mesh.Group("pp"); }), HasSubstr("\"pp\""));
    EXPECT_THAT(MessageOf([&] { mesh.Group(2); }), HasSubstr("2"));
    EXPECT_THAT(MessageOf([&] { mesh.Flatten({"dp", "pp"}, "x"); }), HasSubstr("\"pp\""));
    EXPECT_THAT(MessageOf([&] { mesh.Flatten({"dp", "dp"}, "x"); }), HasSubstr("twice"));
    EXPECT_THAT(MessageOf([&] { mesh.Flatten({"dp"}, "tp"); }), HasSubstr("\"tp\""));
    EXPECT_THAT(MessageOf([&] { mesh.Slice(Names{}); }), HasSubstr("at least one axis"));
    EXPECT_THAT(MessageOf([&] { mesh.Slice({"tp", "tp"}); }), HasSubstr("\"tp\""));
    const int twice[] = {1, 1};
    MessageOf([&] { mesh.Group(twice); });
    world.Barrier();
  });
}

TEST(DeviceMesh, TimeOutOfTheWorldHoldsInEveryGroup) {
  EXPECT_EQ(
      RunRanks(4,
               [](Communicator& world) {
                 const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
                 EXPECT_EQ(mesh.Group("tp").timeout(), absl::Seconds(17));
                 EXPECT_EQ(mesh.Flatten({"dp", "tp"}, "x").Group("x").timeout(), absl::Seconds(17));
               },
               {.timeout = absl::Seconds(17)}),
      absl::OkStatus());
}

TEST(DeviceMesh, IsAnErrorAfterItsRanksHaveReturned) {
  std::vector<DeviceMesh> kept(2);
  OnRanks(2, [&](Communicator& world) {
    kept[world.rank()] = DeviceMesh::Create(world, {{"dp", 2}});
  });
  const DeviceMesh& mesh = kept[1];
  EXPECT_EQ(mesh.ToString(), "[dp=2]");
  EXPECT_EQ(mesh.coord(), (Coord{1}));
  const auto expect_gone = [&](const std::function<void()>& use) {
    const std::string message = MessageOf(use, absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(message, HasSubstr("mesh [dp=2] belongs to rank 1 of a RunRanks"));
    EXPECT_THAT(message, HasSubstr("have returned"));
  };
  expect_gone([&] { mesh.context(); });
  expect_gone([&] { mesh.locals(); });
  expect_gone([&] { mesh.Group(0); });
  expect_gone([&] { mesh.WorldGroup(); });
  expect_gone([&] { mesh["dp"]; });
  expect_gone([&] { mesh.Unflatten("dp", {{"a", 2}, {"b", 1}}); });
}

TEST(DeviceMesh, ThatIsNoMeshNamesHowToMakeOne) {
  const DeviceMesh none;
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { none.shape(); }, [&] { none.coord(); }, [&] { none.context(); },
           [&] { none.locals(); }, [&] { none.WorldGroup(); }, [&] { none["dp"]; }}) {
    EXPECT_THAT(MessageOf(use), HasSubstr("no mesh was used; make one by DeviceMesh::Create"));
  }
}

}  // namespace
}  // namespace shardmesh
