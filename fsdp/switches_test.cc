// SPDX-License-Identifier: Apache-2.0
//
// Switches of units that exist: all-reduces of hybrid sharding left to the last micro-batch, and
// how long parameters stay gathered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
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

int64_t Gathered(const Lab& lab) { return lab.Bytes(MemoryCategory::kUnshardedParameters); }

void AllReduce(Lab& lab, bool value) {
  if (lab.is_sharded) SetRequiresAllReduce(*lab.tower, value);
}
void Sync(Lab& lab, bool value) {
  if (lab.is_sharded) SetRequiresGradientSync(*lab.tower, value);
}

std::vector<LabMesh> HybridMeshes() {
  return {{{{"dp_replicate", 2}, {"dp", 2}}},
          {{{"dp_replicate", 2}, {"dp", 3}}},
          {{{"dp_replicate", 3}, {"dp", 2}}},
          {{{"dp", 2}, {"dp_replicate", 2}, {"tp", 2}}}};
}

// Bytes that this rank sends in an all-reduce of n f64 along `axis`.
int64_t AllReduceBytes(const DeviceMesh& mesh, const std::string& axis, int64_t n) {
  const int64_t p = mesh.Size(axis), chunk = (n + p - 1) / p;
  const int64_t begin = std::min(n, chunk * mesh.LocalRank(axis));
  const int64_t mine = std::min(n, begin + chunk) - begin;
  return 8 * ((n - mine) + (p - 1) * mine);
}

// ---- all-reduce ---------------------------------------------------------------------------------

// Windows in which units are used in some micro-batches only.
void TrainInWindows(Lab& lab, Numbers& seen) {
  const std::vector<int> routes[][3] = {
      {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, {{0, 1, 2}, {2, 0}, {1}}, {{1}, {1}, {0}}};
  for (const auto& window : routes) {
    for (int micro = 0; micro < 3; ++micro) {
      AllReduce(lab, micro == 2);
      lab.tower->route = window[micro];
      Backward(lab.Loss(micro));
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    }
    seen.Add("norm", optim::ClipGradNorm(lab.tower->Parameters(), 1.0));
    seen.Gradients(lab);
    SgdStep(*lab.tower, 0.5);
  }
}

TEST(AllReduceSwitch, LeavesTheNumbersAsTheyAre) {
  ExpectSameOnEachMesh(TrainInWindows);
  ExpectSameOn(HybridMeshes(), {}, TrainInWindows);
  LabOptions replicate;
  replicate.fsdp.strategy = Strategy::kReplicate;
  ExpectSameOnEachMesh(TrainInWindows, replicate);
}

TEST(AllReduceSwitch, AllReducesTheShardsOnceAWindow) {
  for (const MeshShape& shape :
       {MeshShape{{"dp_replicate", 2}, {"dp", 2}}, MeshShape{{"dp_replicate", 2}, {"dp", 3}},
        MeshShape{{"dp_replicate", 3}, {"dp", 2}}}) {
    OnLabMesh({shape}, {}, [](Lab& lab) {
      int64_t scattered = 0, all_reduced = 0, shards = 0;
      for (const nn::Parameter& parameter : lab.tower->Parameters()) {
        const int64_t n = parameter.data().local().NumElements();
        shards += 8 * n;
        all_reduced += AllReduceBytes(lab.mesh, "dp_replicate", n);
        scattered += 8 * (parameter.shape().NumElements() - n);
      }
      for (int window = 0; window < 2; ++window) {
        for (int micro = 0; micro < 3; ++micro) {
          AllReduce(lab, micro == 2);
          CommTrace trace(lab.mesh);
          Backward(lab.Loss(micro));
          EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 4);
          EXPECT_EQ(trace.Bytes("dp", "reduce_scatter", "fsdp_reduce"), scattered);
          EXPECT_EQ(trace.Count("dp_replicate", "all_reduce", "fsdp_reduce"), micro == 2 ? 4 : 0);
          EXPECT_EQ(trace.Bytes("dp_replicate", "all_reduce", "fsdp_reduce"),
                    micro == 2 ? all_reduced : 0);
          EXPECT_EQ(lab.Bytes(MemoryCategory::kGradients), shards) << "one shard, whichever kind";
        }
        SgdStep(*lab.tower, 0.1);
      }
    });
  }
}

TEST(AllReduceSwitch, AndTheOneOfSynchronisationTogether) {
  ExpectSameOn(HybridMeshes(), {}, [](Lab& lab, Numbers& seen) {
    for (int window = 0; window < 2; ++window) {
      for (int micro = 0; micro < 4; ++micro) {
        Sync(lab, micro % 2 == 1);
        AllReduce(lab, micro == 3);
        Backward(lab.Loss(micro));
      }
      seen.Gradients(lab);
      SgdStep(*lab.tower, 0.5);
    }
  });
}

// A gradient whose layout changes from one micro-batch to the next: a replicated batch brings no
// summands.
TEST(AllReduceSwitch, WhereLaterGradientsHaveNoSummands) {
  ExpectSameOn(HybridMeshes(), {}, [](Lab& lab, Numbers& seen) {
    const auto replicated = [&] {
      const DTensor x = lab.Batch(7);
      return Redistribute(x, Layout::Replicated(lab.mesh.shape(), x.shape()));
    };
    for (const bool first : {true, false}) {
      for (int micro = 0; micro < 3; ++micro) {
        AllReduce(lab, micro == 2);
        if (first == (micro == 0)) {
          Backward(Mean(Square((*lab.tower)(replicated()))));
        } else {
          Backward(lab.Loss(micro));
        }
      }
      seen.Gradients(lab);
      SgdStep(*lab.tower, 0.5);
    }
  });
}

TEST(AllReduceSwitch, GradientsThatWaitAreRefusedByNameAndCanBeDropped) {
  OnLabMesh(HybridMeshes()[0], {}, [](Lab& lab) {
    {
      NoAllReduce no_all_reduce(*lab.tower);
      Backward(lab.Loss(0));
    }
    for (const nn::Parameter& parameter : lab.tower->Parameters()) {
      EXPECT_TRUE(parameter.HasUnreducedGradient()) << parameter.name();
      EXPECT_FALSE(parameter.data().grad()) << parameter.name();
    }
    const absl::Status status = Catch([&] { optim::ClipGradNorm(lab.tower->Parameters(), 1.0); });
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("block0.up.weight"), HasSubstr("that FullyShard has not reduced")));
    DiscardUnreducedGradients(*lab.tower);
    EXPECT_FALSE(lab.tower->head.weight().HasUnreducedGradient());
    EXPECT_EQ(lab.Bytes(MemoryCategory::kGradients), 0);
    Backward(lab.Loss(1));
    EXPECT_TRUE(lab.tower->head.weight().data().grad());
  });
}

TEST(AllReduceSwitch, OfABackwardThatThrows) {
  ExpectSameOn({HybridMeshes()[0]}, {}, [](Lab& lab, Numbers& seen) {
    const auto fails = [&](int step) {
      const DTensor x = WithBackwardCallback(lab.block(0)(lab.Batch(step)),
                                             [] { throw std::runtime_error("in the middle"); });
      const DTensor loss = Mean(Square(lab.tower->head(lab.block(1)(x))));
      EXPECT_THROW(Backward(loss), std::runtime_error);
    };
    // Before any summands wait, and after: what had been scattered before is kept.
    AllReduce(lab, false);
    fails(0);
    Backward(lab.Loss(0));
    fails(1);
    AllReduce(lab, true);
    Backward(lab.Loss(2));
    seen.Gradients(lab);
    SgdStep(*lab.tower, 0.5);
    if (!lab.is_sharded) return;
    // One that had taken them loses them.
    AllReduce(lab, false);
    Backward(lab.Loss(0));
    AllReduce(lab, true);
    fails(1);
    const absl::Status status = Catch([&] { lab.Loss(2); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("start the accumulation again"));
    for (const nn::Parameter& parameter : lab.tower->Parameters())
      EXPECT_FALSE(parameter.HasUnreducedGradient()) << parameter.name();
    EXPECT_EQ(lab.Bytes(MemoryCategory::kGradients), 0);
  });
}

// ---- resharding ---------------------------------------------------------------------------------

TEST(ReshardSwitches, AfterBackwardKeepsForTheNextForward) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    if (lab.is_sharded) SetReshardAfterBackward(*lab.tower, false);
    const bool communicates = lab.is_sharded && lab.mesh.Size("dp") > 1;
    for (int step = 0; step < 3; ++step) {
      Backward(lab.Loss(step));
      if (lab.is_sharded) {
        EXPECT_EQ(Gathered(lab), GatheredBytes(lab, *lab.tower));
        CommTrace trace(lab.mesh);
        const NoGrad no_grad(lab.mesh);
        lab.Loss(10 + step);
        EXPECT_EQ(trace.Count("", "", "fsdp_gather"), 0);
        EXPECT_EQ(Gathered(lab), 0) << "forward releases as before";
      }
      Backward(lab.Loss(step));
      seen.Gradients(lab);
      SgdStep(*lab.tower, 0.05);
      if (!lab.is_sharded) continue;
      CommTrace trace(lab.mesh);
      const NoGrad no_grad(lab.mesh);
      lab.Loss(20 + step);
      EXPECT_EQ(trace.Count("", "", "fsdp_gather"), communicates ? 4 : 0) << "the values changed";
    }
    seen.Parameters(lab);
    if (!lab.is_sharded) return;
    SetReshardAfterBackward(*lab.tower, std::nullopt);
    Backward(lab.Loss(0));
    EXPECT_EQ(Gathered(lab), 0);
  });
}

TEST(ReshardSwitches, AfterBackwardOverrulesTheStrategy) {
  LabOptions options;
  options.fsdp.strategy = Strategy::kOptimizerState;
  OnEachMesh(options, [](Lab& lab) {
    Backward(lab.Loss(0));
    EXPECT_EQ(Gathered(lab), GatheredBytes(lab, *lab.tower));
    SetReshardAfterBackward(*lab.tower, true);
    Backward(lab.Loss(1));
    EXPECT_EQ(Gathered(lab), 0);
  });
}

TEST(ReshardSwitches, AfterForward) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    const auto step = [&](int i, std::optional<bool> reshard, int64_t expected) {
      if (lab.is_sharded) SetReshardAfterForward(*lab.tower, reshard);
      const DTensor loss = lab.Loss(i);
      EXPECT_EQ(Gathered(lab), expected) << i;
      Backward(loss);
      EXPECT_EQ(Gathered(lab), 0) << i;
      seen.Gradients(lab);
      SgdStep(*lab.tower, 0.2);
    };
    const int64_t root = lab.is_sharded ? GatheredBytes(lab, lab.tower->head) : 0;
    const int64_t all = lab.is_sharded ? GatheredBytes(lab, *lab.tower) : 0;
    step(0, std::nullopt, root);
    step(1, false, all);
    step(2, true, 0);
    step(3, std::nullopt, root);
    if (!lab.is_sharded) return;
    SetReshardAfterForward(*lab.tower, false, /*recursive=*/false);
    SetReshardAfterForward(lab.block(1), false);
    const DTensor loss = lab.Loss(4);
    EXPECT_EQ(Gathered(lab), root + GatheredBytes(lab, lab.block(1)));
  });
}

TEST(Switches, OfOneUnitAreNotThoseOfItsChildren) {
  OnLabMesh(HybridMeshes()[0], {}, [](Lab& lab) {
    const auto waits = [&](const nn::Parameter& parameter) {
      return parameter.HasUnreducedGradient();
    };
    const nn::Parameter head = lab.tower->head.weight(), inner = lab.block(1).up.weight();
    SetRequiresGradientSync(*lab.tower, false, /*recursive=*/false);
    Backward(lab.Loss(0));
    EXPECT_TRUE(waits(head) && !waits(inner));
    SetRequiresGradientSync(*lab.tower, true, /*recursive=*/false);
    SetRequiresAllReduce(lab.block(1), false, /*recursive=*/false);
    Backward(lab.Loss(1));
    EXPECT_TRUE(!waits(head) && waits(inner));
    SetRequiresAllReduce(*lab.tower, true);
    Backward(lab.Loss(2));
    EXPECT_FALSE(waits(head) || waits(inner));
    SetReshardAfterBackward(*lab.tower, false, /*recursive=*/false);
    Backward(lab.Loss(3));
    EXPECT_EQ(Gathered(lab), GatheredBytes(lab, lab.tower->head));
  });
}

TEST(Switches, ScopesRestoreWhatTheyFound) {
  OnLabMesh(HybridMeshes()[0], {}, [](Lab& lab) {
    SetRequiresAllReduce(lab.block(1), false);
    auto outlives = std::make_unique<NoAllReduce>(*lab.tower);
    { NoAllReduce nested(lab.block(0)); }
    Backward(lab.Loss(0));
    EXPECT_TRUE(lab.block(0).up.weight().HasUnreducedGradient());
    outlives.reset();
    Backward(lab.Loss(1));
    EXPECT_FALSE(lab.block(0).up.weight().HasUnreducedGradient());
    EXPECT_TRUE(lab.block(1).up.weight().HasUnreducedGradient()) << "as it was";
    outlives = std::make_unique<NoAllReduce>(*lab.tower);
    lab.tower.reset();
  });
}

TEST(Switches, OfWhatIsNoUnitAreRefused) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    nn::Module& head = lab.tower->head;
    const auto message = [](const std::function<void()>& fn) {
      const absl::Status status = Catch(fn);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      return std::string(status.message());
    };
    EXPECT_EQ(message([&] { SetRequiresAllReduce(head, false); }),
              "SetRequiresAllReduce: head has no FullyShard unit at or below it");
    EXPECT_EQ(message([&] { SetRequiresGradientSync(head, false, /*recursive=*/false); }),
              "SetRequiresGradientSync: head is not a FullyShard unit");
    EXPECT_THAT(message([&] { SetReshardAfterForward(head, false); }), HasSubstr("AfterForward"));
    EXPECT_THAT(message([&] { SetReshardAfterBackward(head, false); }), HasSubstr("AfterBackward"));
    EXPECT_THAT(message([&] { NoAllReduce no_all_reduce(head); }), HasSubstr("NoAllReduce: head"));
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
