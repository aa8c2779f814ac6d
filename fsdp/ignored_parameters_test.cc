// SPDX-License-Identifier: Apache-2.0
//
// Parameters that FullyShard ignores: in no unit, as placed, with right gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/optim/clip.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of each block the biases; of the head the weight.
bool IsIgnored(const nn::Parameter& parameter) {
  return (parameter.name().starts_with("block") && parameter.name().ends_with("bias")) ||
         parameter.name() == "head.weight";
}

LabOptions Ignoring(Strategy strategy) {
  LabOptions options;
  options.fsdp.strategy = strategy;
  options.fsdp.ignored = IsIgnored;
  return options;
}

TEST(IgnoredParameters, TrainAlike) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp,
                                  Strategy::kOptimizerState, Strategy::kReplicate}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    ExpectSameOnEachMesh(
        [](Lab& lab, Numbers& seen) {
          for (int step = 0; step < 3; ++step) {
            for (int micro = 0; micro < 2; ++micro) {
              if (lab.is_sharded) SetRequiresGradientSync(*lab.tower, micro == 1);
              Backward(lab.Loss(2 * step + micro));
            }
            seen.Add("norm", optim::ClipGradNorm(lab.tower->Parameters(), 1.0));
            seen.Gradients(lab);
            SgdStep(*lab.tower, 0.3);
          }
          seen.Parameters(lab);
        },
        Ignoring(strategy));
  }
}

TEST(IgnoredParameters, AreInNoUnit) {
  OnEachMesh(Ignoring(Strategy::kFullShard), [](Lab& lab) {
    const int dp = lab.mesh.shape().Index("dp");
    int64_t block0 = 0, gathered_of_root = 0;
    for (const nn::Parameter& parameter : lab.tower->Parameters()) {
      EXPECT_EQ(parameter.layout().placement(dp).IsReplicate(), IsIgnored(parameter))
          << parameter.ToString();
      EXPECT_EQ(parameter.IsPlacementFixed(), !IsIgnored(parameter)) << parameter.name();
      const Layout gathered = parameter.layout().With(dp, Replicate());
      const int64_t bytes = gathered.LocalShape(lab.mesh.coord()).NumElements() * 8;
      if (IsIgnored(parameter)) continue;
      if (parameter.name().starts_with("block0")) block0 += bytes;
      if (parameter.name().starts_with("head")) gathered_of_root += bytes;
    }
    int64_t in_block0 = 0;
    lab.block(0).in_forward = [&] { in_block0 = lab.Bytes(MemoryCategory::kUnshardedParameters); };
    const DTensor loss = lab.Loss(0);
    EXPECT_EQ(in_block0, block0 + gathered_of_root);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), gathered_of_root);
    CommTrace trace(lab.mesh);
    Backward(loss);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    if (lab.mesh.shape().axes().size() == 1 && lab.mesh.Size("dp") > 1) {
      // Five biases... of three blocks two each, and the head's weight.
      EXPECT_EQ(trace.Count("dp", "all_reduce", "accumulate_grad"), 3 * 2 + 1);
      EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 4);
    }
  });
}

TEST(IgnoredParameters, OfAnInnerCallAreInNoOuterUnit) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Tower tower({11, 5});
    const nn::Parameter bias = tower.blocks[0]->up.bias(), head = tower.head.weight();
    FullyShard(*tower.blocks[0], lab.mesh, {.ignored = OneOf({bias, head})});
    EXPECT_EQ(bias.layout().ToString(), "[11] [R] @ [dp=2]") << "placed by FullyShard";
    EXPECT_FALSE(head.IsPlaced()) << "not of this call's modules";
    FullyShard(tower, lab.mesh);
    EXPECT_EQ(bias.layout().ToString(), "[11] [R] @ [dp=2]");
    EXPECT_EQ(head.layout().ToString(), "[3,7] [S(0)] @ [dp=2]")
        << "ignored by no call that has it";
    tower.Initialize(1);
    Backward(MseLoss(tower(lab.Batch(0)), lab.Batch(1, kOutputs)));
    EXPECT_EQ(bias.data().grad().layout().ToString(), "[11] [R] @ [dp=2]");
    nn::Parameter moved = bias;
    moved.Place(lab.mesh, Layout::Make(lab.mesh.shape(), {shardmesh::Shard(0)}, {11}));
  });
}

// An outer call's predicate also sees parameters that an earlier call has ignored.
TEST(IgnoredParameters, MayBeIgnoredTwice) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Tower tower({11});
    const FullyShardOptions options = {.ignored = IsIgnored};
    FullyShard(*tower.blocks[0], lab.mesh, options);
    FullyShard(tower, lab.mesh, options);
    EXPECT_EQ(tower.head.weight().layout().ToString(), "[3,7] [R] @ [dp=2]");
  });
}

TEST(IgnoredParameters, KeepTheirDType) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    nn::Linear linear(kFeatures, 3, {.bias = true});
    FullyShardOptions options;
    options.mixed_precision = {.param_dtype = DType::kBF16, .cast_forward_inputs = false};
    options.ignored = OneOf({linear.weight(), linear.bias()});
    FullyShard(linear, lab.mesh, options);
    linear.Initialize(1);
    EXPECT_EQ(linear(Cast(lab.Batch(0), DType::kF32)).dtype(), DType::kF32);
  });
}

TEST(IgnoredParameters, ThatAnEarlierCallHasShardedAreRefused) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Tower tower({11});
    FullyShard(*tower.blocks[0], lab.mesh);
    const absl::Status status = Catch([&] { FullyShard(tower, lab.mesh, {.ignored = IsIgnored}); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("parameter block0.up.bias f64[11]"),
                      HasSubstr("is ignored, and an earlier call has made it part of a unit")));
    EXPECT_FALSE(tower.head.weight().IsPlaced());
    EXPECT_THAT(std::string(Catch([&] {
                              OneOf({tower.head.weight(), {}});
                            }).message()),
                HasSubstr("OneOf: parameter 1 of 2 is undefined"));
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
