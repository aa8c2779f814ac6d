// SPDX-License-Identifier: Apache-2.0
//
// What FullyShard refuses, before it has changed anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/linear.h"

namespace shardmesh::fsdp {
namespace {

using ::testing::HasSubstr;

class Pair : public nn::Module {
 public:
  Pair() {
    RegisterChild("first", first);
    RegisterChild("second", second);
  }
  nn::Linear first{5, 3}, second{3, 7};

 protected:
  Outputs Forward(const Inputs& x) override { return second(first(x[0])); }
};

void OnTwoRanks(const std::function<void(const DeviceMesh&)>& fn) {
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    fn(DeviceMesh::Create(world, {{"dp", 2}, {"tp", 1}}));
  });
  EXPECT_TRUE(status.ok()) << status;
}

// That `options` are refused, with `part` in the message, and that nothing has become a unit.
void ExpectRefused(const DeviceMesh& mesh, const FullyShardOptions& options, const char* part) {
  Pair pair;
  const absl::Status status = Catch([&] { FullyShard(pair, mesh, options); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  for (const nn::Parameter& parameter : pair.Parameters()) EXPECT_FALSE(parameter.IsPlaced());
  FullyShard(pair, mesh);
}

TEST(FullyShardErrors, OptionsThatMakeNoSense) {
  OnTwoRanks([](const DeviceMesh& mesh) {
    const auto axes = [](std::vector<std::string> names) {
      FullyShardOptions options;
      options.shard_axes = std::move(names);
      return options;
    };
    ExpectRefused(mesh, axes({"fsdp"}),
                  "mesh [dp=2, tp=1] has no axis 'fsdp', which shard_axes names; it has dp, tp");
    ExpectRefused(mesh, axes({""}), "has no axis ''");
    ExpectRefused(mesh, axes({"dp", "dp"}), "names axis 'dp' twice");
    FullyShardOptions replicate = axes({"dp"});
    replicate.strategy = Strategy::kReplicate;
    ExpectRefused(mesh, replicate, "kReplicate shards nothing, and shard_axes is [dp]");
    ExpectRefused(mesh, {.shard_dim = [](const nn::Parameter&) { return 2; }},
                  "shard_dim gives dim 2 for parameter first.weight");
    ExpectRefused(mesh, {.mixed_precision = {.param_dtype = DType::kI32}}, "param_dtype is i32");
    ExpectRefused(mesh, {.mixed_precision = {.reduce_dtype = DType::kI64}}, "reduce_dtype is i64");
    ExpectRefused(mesh, {.mixed_precision = {.reduce_dtype = DType::kBF16}},
                  "reduce_dtype bf16 is narrower than param_dtype f32 of parameter first.weight");
  });
}

TEST(FullyShardErrors, AModuleGivenTwiceIsNamedAndNothingIsChanged) {
  OnTwoRanks([](const DeviceMesh& mesh) {
    Pair pair;
    const absl::Status status = Catch([&] { FullyShard({&pair, &pair}, mesh); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is given twice"));
    for (const nn::Parameter& parameter : pair.Parameters()) EXPECT_FALSE(parameter.IsPlaced());
    FullyShard(pair, mesh);
  });
}

TEST(FullyShardErrors, AParameterOfAnotherUnitIsNamedAndNothingIsChanged) {
  OnTwoRanks([](const DeviceMesh& mesh) {
    for (const std::vector<std::string>& axes : {std::vector<std::string>{"dp"}, {}}) {
      Pair pair;
      nn::Linear user(pair.second.weight());  // Tied, and in no module of the pair.
      FullyShard(user, mesh, {.shard_axes = axes});
      const absl::Status status = Catch([&] { FullyShard(pair, mesh, {.shard_axes = axes}); });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to another unit already"));
      EXPECT_FALSE(pair.first.weight().IsPlaced());
    }
  });
}

TEST(FullyShardErrors, AnAxisThatShardsAlready) {
  OnTwoRanks([](const DeviceMesh& mesh) {
    Pair pair;
    const Layout sharded = Layout::Make(mesh.shape(), {Shard(1), Replicate()}, {7, 3});
    nn::Parameter weight = pair.second.weight();
    weight.Place(mesh, sharded);
    const absl::Status status = Catch([&] { FullyShard(pair, mesh); });
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("second.weight f32[7,3] [S(1), R] @ [dp=2, tp=1] is not replicated along "
                          "axis dp"));
    EXPECT_FALSE(pair.first.weight().IsPlaced());
  });
}

TEST(FullyShardErrors, GradientSyncOfWhatHasNoUnit) {
  OnTwoRanks([](const DeviceMesh& mesh) {
    Pair pair;
    const auto sync = [&](nn::Module& module) {
      return std::string(Catch([&] { SetRequiresGradientSync(module, false); }).message());
    };
    EXPECT_THAT(sync(pair), HasSubstr("has no FullyShard unit"));
    FullyShard(pair.first, mesh);
    EXPECT_THAT(sync(pair.second), HasSubstr("has no FullyShard unit"));
    EXPECT_EQ(sync(pair), "");
    EXPECT_EQ(sync(pair.first), "");
  });
}

}  // namespace
}  // namespace shardmesh::fsdp
