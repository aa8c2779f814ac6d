// SPDX-License-Identifier: Apache-2.0
//
// Gradients accumulated over micro-batches without synchronisation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/sgd.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Sync(Lab& lab, bool sync) {
  if (lab.is_sharded) SetRequiresGradientSync(*lab.tower, sync);
}

// Each window's last micro-batch uses some of the blocks only.
TEST(MicroBatches, ReduceWhatEarlierOnesHaveAccumulatedInUnitsThatTheLastDoesNotUse) {
  for (const bool has_root_unit : {true, false}) {
    LabOptions options;
    options.has_root_unit = has_root_unit;
    ExpectSameOnEachMesh(
        [](Lab& lab, Numbers& seen) {
          const std::vector<int> routes[][3] = {{{0, 1, 2}, {2, 0}, {1}}, {{1}, {1}, {0}}};
          for (const auto& window : routes) {
            for (int micro = 0; micro < 3; ++micro) {
              Sync(lab, micro == 2);
              lab.tower->route = window[micro];
              Backward(lab.Loss(micro));
            }
            seen.Add("norm", optim::ClipGradNorm(lab.tower->Parameters(), 1.0));
            seen.Gradients(lab);
            SgdStep(*lab.tower, 0.5);
            EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
          }
        },
        options);
  }
}

TEST(MicroBatches, AreRefusedByNameWhileTheyAreNotReduced) {
  OnEachMesh({}, [](Lab& lab) {
    optim::AdamW adamw(lab.tower->Parameters());
    optim::Sgd sgd(lab.tower->Parameters());
    {
      NoSync no_sync(*lab.tower);
      Backward(lab.Loss(0));
    }
    const auto refuses = [&](const char* user, const std::function<void()>& fn) {
      const absl::Status status = Catch(fn);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << user;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(user), HasSubstr("block0.up.weight"),
                        HasSubstr("that FullyShard has not reduced")));
    };
    refuses("AdamW::Step", [&] { adamw.Step(); });
    refuses("Sgd::Step", [&] { sgd.Step(); });
    refuses("ClipGradNorm", [&] { optim::ClipGradNorm(lab.tower->Parameters(), 1.0); });
    Backward(lab.Loss(1));
    EXPECT_GT(optim::ClipGradNorm(lab.tower->Parameters(), 1.0), 0);
    adamw.Step();
  });
}

TEST(MicroBatches, OfNestedNoSyncsEndWithTheOutermost) {
  OnEachMesh({}, [](Lab& lab) {
    const nn::Parameter head = lab.tower->head.weight(), inner = lab.block(1).up.weight();
    {
      NoSync outer(*lab.tower);
      { NoSync nested(lab.block(1)); }
      Backward(lab.Loss(0));
      EXPECT_TRUE(inner.HasUnreducedGradient());
      EXPECT_TRUE(head.HasUnreducedGradient());
    }
    SetRequiresGradientSync(lab.block(1), false);
    { NoSync again(*lab.tower); }
    Backward(lab.Loss(1));
    EXPECT_TRUE(inner.HasUnreducedGradient()) << "as it was";
    EXPECT_FALSE(head.HasUnreducedGradient());
    auto outlives = std::make_unique<NoSync>(*lab.tower);
    lab.tower.reset();
    outlives.reset();
  });
}

// The units of another model, whose window goes on, are left alone.
TEST(MicroBatches, OfOneModelDoNotEndThoseOfAnother) {
  OnEachMesh({}, [](Lab& lab) {
    Lab other;
    other.mesh = lab.mesh;
    other.tower = std::make_unique<Tower>(std::vector<int64_t>{5});
    FullyShard(*other.tower, lab.mesh);
    other.tower->Initialize(2);
    NoSync no_sync(*other.tower);
    Backward(other.Loss(0));
    Backward(lab.Loss(0));
    EXPECT_TRUE(other.tower->head.weight().HasUnreducedGradient());
    EXPECT_FALSE(lab.tower->head.weight().HasUnreducedGradient());
    EXPECT_GT(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
  });
}

TEST(MicroBatches, LostByABackwardThatThrowsAreAnErrorOnce) {
  OnEachMesh({}, [](Lab& lab) {
    {
      NoSync no_sync(*lab.tower);
      Backward(lab.Loss(0));
    }
    const DTensor bad = WithBackwardCallback(lab.Loss(1), [] { throw std::runtime_error("bad"); });
    EXPECT_THROW(Backward(bad), std::runtime_error);
    // No gradient had been written, so nothing is lost.
    EXPECT_GT(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    EXPECT_TRUE(lab.tower->head.weight().HasUnreducedGradient());
    lab.block(1).AddForwardHook([](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
      outputs[0] =
          WithBackwardCallback(outputs[0], [] { throw std::runtime_error("in the middle"); });
    });
    const DTensor loss = lab.Loss(1);
    EXPECT_THROW(Backward(loss), std::runtime_error);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0) << "though the graph lives on";
    // Backward had come to some blocks; sums of the others would lack a micro-batch.
    for (const nn::Parameter& parameter : lab.tower->Parameters())
      EXPECT_FALSE(parameter.HasUnreducedGradient()) << parameter.name();
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    const absl::Status status = Catch([&] { lab.Loss(2); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("start the accumulation again"));
    lab.Loss(2);
  });
}

// ZeRO-2 gathers once a window.
TEST(MicroBatches, UnderShardGradOpStayGathered) {
  LabOptions options;
  options.fsdp.strategy = Strategy::kShardGradOp;
  ExpectSameOnEachMesh(
      [](Lab& lab, Numbers& seen) {
        for (int window = 0; window < 2; ++window) {
          CommTrace trace(lab.mesh);
          for (int micro = 0; micro < 3; ++micro) {
            Sync(lab, micro == 2);
            Backward(lab.Loss(micro));
          }
          if (lab.is_sharded && lab.mesh.Size("dp") > 1) {
            EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 4);
            EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 4);
          }
          EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
          seen.Gradients(lab);
          SgdStep(*lab.tower, 0.5);
        }
      },
      options);
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
