// SPDX-License-Identifier: Apache-2.0
//
// Slices along some of the shard axes between forward and backward: the bytes of each phase, the
// memory, and the same numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/nn/checkpoint.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/grad_scaler.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

// Among them extents of 1 and 3, of which some ranks hold nothing.
LabOptions WithSlices() {
  LabOptions options;
  options.widths = {11, 1, 13};
  options.fsdp.shard_axes = {"node", "local"};
  options.fsdp.reshard_after_forward_axes = {"local"};
  return options;
}

std::vector<LabMesh> SliceMeshes() {
  return {{{{"node", 1}, {"local", 1}}, /*releases_on_one_rank=*/true},
          {{{"node", 2}, {"local", 2}}},
          {{{"node", 2}, {"local", 3}}},
          {{{"node", 3}, {"local", 2}}},
          {{{"local", 2}, {"node", 2}}},
          {{{"node", 1}, {"local", 3}}},
          {{{"node", 3}, {"local", 1}}},
          {{{"node", 2}, {"local", 2}, {"tp", 2}}},
          {{{"dp_replicate", 2}, {"node", 2}, {"local", 2}}}};
}

// Those on which a slice is neither the shard nor the whole.
void OnTrueSliceMeshes(const std::function<void(Lab&)>& program) {
  for (const LabMesh& mesh : SliceMeshes()) {
    if (mesh.shape.Size("node") == 1 || mesh.shape.Size("local") == 1) continue;
    OnLabMesh(mesh, WithSlices(), program);
  }
}

int64_t Gathered(const Lab& lab) { return lab.Bytes(MemoryCategory::kUnshardedParameters); }

int64_t Whole(const Lab& lab, nn::Module& module) {
  return GatheredBytes(lab, module, {"node", "local"});
}

// Of this rank: its ceil-chunk along "local" of dim 0 of its gathered form.
int64_t Slice(const Lab& lab, nn::Module& module) {
  const int64_t p = lab.mesh.Size("local"), rank = lab.mesh.LocalRank("local");
  int64_t bytes = 0;
  for (const nn::Parameter& parameter : module.Parameters()) {
    const Layout gathered = parameter.layout()
                                .With(lab.mesh.shape().Index("node"), Replicate())
                                .With(lab.mesh.shape().Index("local"), Replicate());
    const Dims shape = gathered.LocalShape(lab.mesh.coord());
    const int64_t chunk = (shape[0] + p - 1) / p;
    const int64_t begin = std::min(shape[0], rank * chunk);
    const int64_t rows = std::min(shape[0], begin + chunk) - begin;
    if (shape[0] > 0) bytes += 8 * rows * (shape.NumElements() / shape[0]);
  }
  return bytes;
}

int64_t Shard(nn::Module& module) {
  int64_t bytes = 0;
  for (const nn::Parameter& parameter : module.Parameters())
    bytes += parameter.data().local().Bytes();
  return bytes;
}

void Train(Lab& lab, Numbers& seen) {
  const std::vector<int> routes[] = {{0, 1, 2}, {0, 1, 2}, {2, 0, 0}, {1}};
  for (int step = 0; step < 4; ++step) {
    {
      const NoGrad no_grad(lab.mesh);
      seen.Add("evaluation", Item(lab.Loss(100 + step)));
    }
    for (int micro = 0; micro < 2; ++micro) {
      if (lab.is_sharded) SetRequiresGradientSync(*lab.tower, micro == 1);
      lab.tower->route = routes[step];
      const DTensor loss = lab.Loss(step);
      Backward(loss);
      seen.Add("loss", Item(loss));
    }
    seen.Gradients(lab);
    EXPECT_EQ(Gathered(lab), 0);
    SgdStep(*lab.tower, 0.3);
  }
  seen.Parameters(lab);
}

TEST(Slices, TrainAlike) { ExpectSameOn(SliceMeshes(), WithSlices(), Train); }

TEST(Slices, TrainAlikeWithCheckpointsMicroBatchesAndAGradScaler) {
  ExpectSameOn(SliceMeshes(), WithSlices(), [](Lab& lab, Numbers& seen) {
    if (lab.is_sharded) {
      nn::CheckpointActivations(lab.block(0));
      nn::CheckpointActivations(lab.block(2).up);
    }
    optim::GradScaler scaler({.initial_scale = 0x1p60, .growth_interval = 2});
    optim::AdamW adamw(lab.tower->Parameters(), {.lr = 0.1});
    for (int step = 0; step < 6; ++step) {
      {
        std::unique_ptr<NoSync> no_sync;
        if (lab.is_sharded) no_sync = std::make_unique<NoSync>(*lab.tower);
        Backward(scaler.Scale(lab.Loss(10 + step)));
      }
      // The gradients of step 2 are inf.
      Backward(scaler.Scale(Mul(lab.Loss(step), step == 2 ? 1e300 : 0.5)));
      seen.Add("stepped", scaler.Step(adamw));
      scaler.Update();
      seen.Add("scale", scaler.scale());
      for (const nn::Parameter& parameter : lab.tower->Parameters())
        DTensor(parameter.data()).ZeroGrad();
      seen.Parameters(lab);
      if (lab.is_sharded) {
        EXPECT_EQ(Gathered(lab), 0);
      }
    }
    EXPECT_EQ(scaler.scale(), 0x1p61);  // Up after two steps, down, and up after two more.
  });
}

TEST(Slices, AreGatheredAlongTheirAxesOnly) {
  OnTrueSliceMeshes([](Lab& lab) {
    const int64_t nodes = lab.mesh.Size("node"), locals = lab.mesh.Size("local");
    const std::string both = lab.mesh.shape().Index("node") < lab.mesh.shape().Index("local")
                                 ? "node+local"
                                 : "local+node";
    for (int step = 0; step < 3; ++step) {
      CommTrace forward(lab.mesh);
      const DTensor loss = lab.Loss(step);
      EXPECT_EQ(forward.Count("", "", "fsdp_gather"), 4);
      EXPECT_EQ(forward.Bytes(both, "all_gather", "fsdp_gather"),
                (nodes * locals - 1) * Shard(*lab.tower));
      EXPECT_EQ(Gathered(lab), Slice(lab, *lab.tower)) << "the root's too";
      CommTrace backward(lab.mesh);
      Backward(loss);
      EXPECT_EQ(backward.Count("", "", "fsdp_gather"), 4);
      EXPECT_EQ(backward.Bytes("local", "all_gather", "fsdp_gather"),
                (locals - 1) * Slice(lab, *lab.tower));
      if (!lab.mesh.shape().Has("tp")) {  // There ops may make gradients without summands.
        EXPECT_EQ(backward.Count(both, "reduce_scatter", "fsdp_reduce"), 4);
        EXPECT_EQ(backward.Bytes(both, "reduce_scatter", "fsdp_reduce"),
                  Whole(lab, *lab.tower) - Shard(*lab.tower));
      }
      EXPECT_EQ(Gathered(lab), 0);
      SgdStep(*lab.tower, 0.1);
    }
  });
}

// Even extents: exactly 1/size(local) of the parameters.
TEST(Slices, AreTheirPartOfTheMemory) {
  LabOptions options = WithSlices();
  options.widths = {12, 12, 12};
  OnLabMesh({{{"node", 2}, {"local", 2}}}, options, [](Lab& lab) {
    Allocator& memory = *lab.mesh.context().allocator();
    for (int step = 0; step < 2; ++step) {
      memory.ResetPeaks();
      const DTensor loss = lab.Loss(step);
      int64_t up = 0, slices = 0;
      for (auto& block : lab.tower->blocks) {
        up += Whole(lab, block->up);
        slices += Slice(lab, block->up);
      }
      EXPECT_EQ(slices, up / 2);
      Backward(loss);
      const std::vector<UnitStats> units = GetUnitStats(*lab.tower);
      EXPECT_EQ(units[1].gathered_bytes, 0);
      // The whole, and the slice of the first parameter before the whole of it is released.
      const int64_t block = Whole(lab, lab.block(0));
      EXPECT_EQ(units[1].peak_gathered_bytes, block + Slice(lab, lab.block(0)));
      EXPECT_LE(lab.Peak(MemoryCategory::kUnshardedParameters),
                Slice(lab, *lab.tower) + Whole(lab, lab.tower->head) + 2 * block);
    }
  });
}

TEST(Slices, AreNotKeptWithoutABackward) {
  ExpectSameOn(SliceMeshes(), WithSlices(), [](Lab& lab, Numbers& seen) {
    for (int step = 0; step < 2; ++step) {
      {
        const NoGrad no_grad(lab.mesh);
        seen.Add("loss", Item(lab.Loss(step)));
        EXPECT_EQ(Gathered(lab), 0);
      }
      DTensor dropped = lab.Loss(step), other = lab.Loss(step + 1);
      const int64_t kept = Gathered(lab);
      dropped = DTensor();
      EXPECT_EQ(Gathered(lab), kept) << "for the other graph";
      other = DTensor();
      EXPECT_EQ(Gathered(lab), 0);
      lab.block(1).in_forward = [] { throw std::runtime_error("a bad batch"); };
      EXPECT_THROW(lab.Loss(step), std::runtime_error);
      EXPECT_EQ(Gathered(lab), 0);
      lab.block(1).in_forward = [] {};
      Backward(lab.Loss(step));
      seen.Gradients(lab);
    }
  });
}

// A second forward before the backward of the first gathers from the slices; a write between does
// not.
TEST(Slices, ServeLaterForwardsWhileTheValuesStay) {
  ExpectSameOn(SliceMeshes(), WithSlices(), [](Lab& lab, Numbers& seen) {
    const bool is_true_slice =
        lab.is_sharded && lab.mesh.Size("node") > 1 && lab.mesh.Size("local") > 1;
    const DTensor a = lab.Loss(0);
    CommTrace second(lab.mesh);
    const DTensor b = lab.Loss(1);
    if (is_true_slice) {
      EXPECT_EQ(second.Count("local", "all_gather", "fsdp_gather"), 4);
      EXPECT_EQ(second.Count("", "all_gather", "fsdp_gather"), 4);
    }
    Backward(b);
    seen.Gradients(lab);
    EXPECT_EQ(Gathered(lab), is_true_slice ? Slice(lab, *lab.tower) : 0) << "for a";
    Backward(a);
    EXPECT_EQ(Gathered(lab), 0);
    seen.Gradients(lab);
    {
      const DTensor c = lab.Loss(2);
      SgdStep(*lab.tower, 0.3);
      CommTrace third(lab.mesh);
      const DTensor d = lab.Loss(3);
      const bool is_one_node = !lab.is_sharded || lab.mesh.Size("node") == 1;
      EXPECT_TRUE(is_one_node || third.Count("local", "all_gather", "fsdp_gather") == 0);
      EXPECT_THROW(Backward(c), Error) << "the values it saved are gone";
      Backward(d);
    }
    EXPECT_EQ(Gathered(lab), 0);
    seen.Gradients(lab);
  });
}

TEST(Slices, ABlockCalledManyTimes) {
  ExpectSameOn(SliceMeshes(), WithSlices(), [](Lab& lab, Numbers& seen) {
    lab.tower->route = {1, 1, 0, 1, 2, 2, 0};
    for (int step = 0; step < 2; ++step) {
      Backward(lab.Loss(step));
      seen.Gradients(lab);
      EXPECT_EQ(Gathered(lab), 0);
      SgdStep(*lab.tower, 0.01);
    }
  });
}

TEST(Slices, OfABackwardThatThrowsAreGoneWithTheGraph) {
  OnTrueSliceMeshes([](Lab& lab) {
    for (int step = 0; step < 2; ++step) {
      {
        const DTensor x = WithBackwardCallback(lab.block(0)(lab.Batch(step)),
                                               [] { throw std::runtime_error("in the middle"); });
        const DTensor loss = Sum(lab.block(2)(x));
        EXPECT_THROW(Backward(loss), std::runtime_error);
        EXPECT_LE(Gathered(lab), Slice(lab, *lab.tower));
      }
      EXPECT_EQ(Gathered(lab), 0);
      Backward(lab.Loss(step));
      EXPECT_EQ(Gathered(lab), 0);
    }
  });
}

// Along axes of one rank a slice is the whole, which waits for backward; along all, the shard.
TEST(Slices, AtTheirExtremesAreTheWholeAndTheShard) {
  OnLabMesh({{{"node", 3}, {"local", 1}}}, WithSlices(), [](Lab& lab) {
    const DTensor loss = lab.Loss(0);
    EXPECT_EQ(Gathered(lab), Whole(lab, *lab.tower));
    CommTrace trace(lab.mesh);
    Backward(loss);
    EXPECT_EQ(trace.Count("", "", "fsdp_gather"), 0);
    EXPECT_EQ(Gathered(lab), 0);
    const NoGrad no_grad(lab.mesh);
    lab.Loss(1);
    EXPECT_EQ(Gathered(lab), 0);
  });
  OnLabMesh({{{"node", 1}, {"local", 3}}}, WithSlices(), [](Lab& lab) {
    const DTensor loss = lab.Loss(0);
    EXPECT_EQ(Gathered(lab), 0);
    CommTrace trace(lab.mesh);
    Backward(loss);
    EXPECT_EQ(trace.Count("local", "", "fsdp_gather"), 4);
  });
}

TEST(Slices, ASwitchOverrulesThem) {
  OnTrueSliceMeshes([](Lab& lab) {
    const auto kept = [&](std::optional<bool> reshard) {
      SetReshardAfterForward(*lab.tower, reshard);
      const DTensor loss = lab.Loss(0);
      const int64_t bytes = Gathered(lab);
      Backward(loss);
      EXPECT_EQ(Gathered(lab), 0);
      return bytes;
    };
    EXPECT_EQ(kept(true), 0);
    EXPECT_EQ(kept(false), Whole(lab, *lab.tower));
    EXPECT_EQ(kept(std::nullopt), Slice(lab, *lab.tower));
    SetReshardAfterBackward(*lab.tower, false);
    Backward(lab.Loss(1));
    EXPECT_EQ(Gathered(lab), Whole(lab, *lab.tower)) << "without the slices";
  });
}

TEST(Slices, OfOtherPrecisionAreSmaller) {
  LabOptions options = WithSlices();
  options.fsdp.mixed_precision = {.param_dtype = DType::kF32, .reduce_dtype = DType::kF32};
  OnLabMesh({{{"node", 2}, {"local", 3}}}, options, [](Lab& lab) {
    const DTensor y = (*lab.tower)(lab.Batch(0));
    EXPECT_EQ(Gathered(lab), Slice(lab, *lab.tower) / 2);
    CommTrace trace(lab.mesh);
    Backward(Sum(y));
    EXPECT_EQ(trace.Bytes("local", "all_gather", "fsdp_gather"), 2 * Slice(lab, *lab.tower) / 2);
  });
}

TEST(Slices, ThatMakeNoSenseAreRefused) {
  OnLabMesh({{{"node", 2}, {"local", 2}}}, WithSlices(), [](Lab& lab) {
    const auto message = [&](const FullyShardOptions& options) {
      nn::Linear linear(4, 4);
      const absl::Status status = Catch([&] { FullyShard(linear, lab.mesh, options); });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(linear.weight().IsPlaced());
      return std::string(status.message());
    };
    FullyShardOptions options;
    options.shard_axes = {"node"};
    options.reshard_after_forward_axes = {"local"};
    EXPECT_THAT(message(options), HasSubstr("reshard_after_forward_axes names axis 'local', which "
                                            "is not one of the shard_axes [node]"));
    options.shard_axes = {"node", "local"};
    options.reshard_after_forward_axes = {"lokal"};
    EXPECT_THAT(message(options), HasSubstr("mesh [node=2, local=2] has no axis 'lokal', which "
                                            "reshard_after_forward_axes names"));
    options.reshard_after_forward_axes = {"local", "local"};
    EXPECT_THAT(message(options), HasSubstr("names axis 'local' twice"));
    options.reshard_after_forward_axes = std::vector<std::string>();
    EXPECT_THAT(message(options), HasSubstr("reshard_after_forward_axes is empty"));
    options.reshard_after_forward_axes = {"local"};
    options.strategy = Strategy::kShardGradOp;
    EXPECT_THAT(message(options), HasSubstr("[local], which needs Strategy::kFullShard"));
    options.strategy = Strategy::kFullShard;
    options.reshard_after_forward = false;
    EXPECT_THAT(message(options), HasSubstr("and no reshard_after_forward"));
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
