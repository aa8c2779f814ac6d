// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing with FullyShard: the numbers of one rank with neither, no gather more
// than without, and the memory of one block's activations.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/checkpoint.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/nn/checkpoint.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

struct Way {
  std::string name;
  std::function<void(Tower&)> apply;
};

// Units call checkpointed parts, lie within them, and share their module.
const std::vector<Way>& Ways() {
  static const std::vector<Way>* const ways = new std::vector<Way>{
      {"none", [](Tower&) {}},
      {"blocks",
       [](Tower& tower) {
         for (auto& block : tower.blocks) nn::CheckpointActivations(*block);
       }},
      {"layers in units",
       [](Tower& tower) {
         for (auto& block : tower.blocks) {
           nn::CheckpointActivations(block->up);
           nn::CheckpointActivations(block->down);
         }
         nn::CheckpointActivations(tower.head);
       }},
      {"the whole", [](Tower& tower) { nn::CheckpointActivations(tower); }},
      {"nested",
       [](Tower& tower) {
         nn::CheckpointActivations(tower);
         for (auto& block : tower.blocks) {
           nn::CheckpointActivations(*block);
           nn::CheckpointActivations(block->down);
         }
       }},
      {"selective",
       [](Tower& tower) {
         nn::CheckpointActivations(*tower.blocks[0]);
         nn::KeepActivations(tower.blocks[0]->up);
         nn::CheckpointActivations(*tower.blocks[1],
                                   {.keep = [](std::string_view op) { return op == "linear"; }});
       }},
  };
  return *ways;
}

TEST(Checkpoint, GivesTheNumbersOfOneRankWithNeither) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp,
                                  Strategy::kOptimizerState, Strategy::kReplicate}) {
    for (const bool has_root_unit : {true, false}) {
      for (const Way& way : Ways()) {
        SCOPED_TRACE(way.name);
        LabOptions options = {.has_root_unit = has_root_unit};
        options.fsdp.strategy = strategy;
        ExpectSameOnEachMesh(
            [&](Lab& lab, Numbers& seen) {
              if (lab.is_sharded) way.apply(*lab.tower);
              for (int step = 0; step < 2; ++step) {
                {
                  // Two micro-batches, of which one does not reduce.
                  std::unique_ptr<NoSync> no_sync;
                  if (lab.is_sharded) no_sync = std::make_unique<NoSync>(*lab.tower);
                  Backward(lab.Loss(10 + step));
                }
                Backward(lab.Loss(step));
                seen.Gradients(lab);
                SgdStep(*lab.tower, 0.1);
                seen.Parameters(lab);
                if (lab.is_sharded && strategy != Strategy::kOptimizerState) {
                  EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0) << way.name;
                }
                EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0) << way.name;
              }
            },
            options);
      }
    }
  }
}

TEST(Checkpoint, GathersNoMoreThanThePlainModel) {
  for (const Way& way : Ways()) {
    OnEachMesh({}, [&](Lab& lab) {
      way.apply(*lab.tower);
      Backward(lab.Loss(0));  // Replicas are compared in the first.
      const CommTrace trace(lab.mesh);
      Backward(lab.Loss(1));
      // Three blocks, twice; the root unit keeps its own.
      const int64_t gathers = trace.Count("dp", "all_gather", "fsdp_gather");
      EXPECT_EQ(gathers, lab.mesh.WorldGroup().size() == 1 ? 0 : 3 * 2 + 1) << way.name;
    });
  }
}

TEST(Checkpoint, RefusesWeightsThatChangedBeforeBackward) {
  OnEachMesh({}, [&](Lab& lab) {
    nn::CheckpointActivations(lab.block(1));
    const DTensor loss = lab.Loss(0);
    {
      const NoGrad no_grad(lab.mesh);
      MulInPlace(lab.block(1).up.weight().data(), 2.0);
    }
    const absl::Status status = Catch([&] { Backward(loss); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("written in place"));
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
    Backward(lab.Loss(1));
  });
}

TEST(Checkpoint, OfAModelThatIsGoneSaysSo) {
  OnEachMesh({}, [&](Lab& lab) {
    nn::CheckpointActivations(lab.block(1));
    const DTensor loss = lab.Loss(0);
    lab.tower = nullptr;
    const absl::Status status = Catch([&] { Backward(loss); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("checkpointed module block1"));
  });
}

TEST(Checkpoint, RecoversFromExceptionsInTheRecomputation) {
  OnEachMesh({}, [&](Lab& lab) {
    for (auto& block : lab.tower->blocks) nn::CheckpointActivations(*block);
    bool throws = false;
    lab.block(1).in_forward = [&] {
      if (throws && IsRecomputing(lab.mesh)) ThrowInvalid("in the recomputation");
    };
    throws = true;
    const absl::Status status = Catch([&] { Backward(lab.Loss(0)); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("in the recomputation"));
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    for (const nn::Parameter& parameter : lab.tower->Parameters())
      EXPECT_FALSE(parameter.data().grad()) << parameter.name();
    throws = false;
    Backward(lab.Loss(0));
    for (const nn::Parameter& parameter : lab.tower->Parameters())
      EXPECT_TRUE(parameter.data().grad()) << parameter.name();
  });
}

// Bytes of activations on rank 0, by mesh.
struct Bytes {
  int64_t after_forward = 0;
  int64_t peak = 0;               // Of backward.
  int64_t input = 0, hidden = 0;  // Of one block.
};
std::map<std::string, Bytes> BytesOfATower(int num_blocks, bool is_checkpointed) {
  std::map<std::string, Bytes> bytes;
  OnEachMesh({.widths = std::vector<int64_t>(num_blocks, 40)}, [&](Lab& lab) {
    // Where layers split features, ops keep operands that they have moved, too.
    if (lab.mesh.shape().Has("tp")) return;
    if (is_checkpointed) {
      for (auto& block : lab.tower->blocks) nn::CheckpointActivations(*block);
    }
    const DTensor x = lab.Batch(0);
    Backward(Sum((*lab.tower)(x)));
    const int64_t before = lab.Bytes(MemoryCategory::kActivations);
    const DTensor y = (*lab.tower)(x);
    const int64_t rows = 8 * x.local().dim(0);
    Bytes own = {.input = rows * kFeatures, .hidden = rows * 40};
    own.after_forward = lab.Bytes(MemoryCategory::kActivations) - before - y.local().Bytes();
    lab.mesh.context().allocator()->ResetPeaks();
    Backward(Sum(y));
    own.peak = lab.Peak(MemoryCategory::kActivations) - before;
    if (lab.mesh.WorldGroup().rank() == 0) bytes[lab.mesh.ToString()] = own;
  });
  return bytes;
}

TEST(Checkpoint, HoldsTheInputsOfBlocksAndTheActivationsOfOne) {
  const auto plain3 = BytesOfATower(3, false), plain6 = BytesOfATower(6, false);
  const auto three = BytesOfATower(3, true), six = BytesOfATower(6, true);
  EXPECT_EQ(six.size(), 4u);
  for (const auto& [mesh, bytes] : six) {
    SCOPED_TRACE(mesh);
    // The inputs of all blocks but the first, which the caller holds, and of the head.
    EXPECT_EQ(bytes.after_forward, 6 * bytes.input);
    EXPECT_EQ(plain6.at(mesh).after_forward, 6 * (bytes.input + bytes.hidden));
    // Beyond these, backward needs the same for any number of blocks.
    EXPECT_EQ(bytes.peak - three.at(mesh).peak, 3 * bytes.input);
    EXPECT_EQ(plain6.at(mesh).peak - plain3.at(mesh).peak, 3 * (bytes.input + bytes.hidden));
    EXPECT_LT(bytes.peak, plain6.at(mesh).peak);
  }
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
