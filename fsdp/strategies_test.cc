// SPDX-License-Identifier: Apache-2.0
//
// Strategies, shard axes and shard dims: the same numbers, and the bytes and memory of the table in
// fully_shard.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp,
                                    Strategy::kOptimizerState, Strategy::kReplicate};

LabOptions With(Strategy strategy) {
  LabOptions options;
  options.fsdp.strategy = strategy;
  return options;
}

void Train(Lab& lab, Numbers& seen) {
  for (int step = 0; step < 3; ++step) {
    {
      const NoGrad no_grad(lab.mesh);
      seen.Add("evaluation", Item(lab.Loss(100 + step)));
    }
    const DTensor loss = lab.Loss(step);
    Backward(loss);
    seen.Add("loss", Item(loss));
    seen.Gradients(lab);
    SgdStep(*lab.tower, 0.3);
  }
  seen.Parameters(lab);
}

TEST(Strategies, ComputeTheSameNumbers) {
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(static_cast<int>(strategy));
    ExpectSameOnEachMesh(Train, With(strategy));
  }
}

// What a rank sends along dp, of units of which it holds `own` bytes of `all`.
struct Bytes {
  int64_t gather = 0, scatter = 0, all_reduce = 0;
};
Bytes BytesOf(nn::Module& module, const DeviceMesh& mesh) {
  const int p = mesh.Size("dp");
  Bytes bytes;
  for (const nn::Parameter& parameter : module.Parameters()) {
    const Layout gathered = parameter.layout().With(mesh.shape().Index("dp"), Replicate());
    const int64_t all = gathered.LocalShape(mesh.coord()).NumElements() * 8;
    const int64_t own = parameter.data().local().Bytes();
    bytes.gather += (p - 1) * own;
    bytes.scatter += all - own;
    const int64_t n = all / 8, chunk = (n + p - 1) / p;
    const int64_t begin = std::min(n, chunk * mesh.LocalRank("dp"));
    const int64_t mine = std::min(n, begin + chunk) - begin;
    bytes.all_reduce += 8 * ((n - mine) + (p - 1) * mine);
  }
  return bytes;
}

TEST(Strategies, SendTheBytesOfTheTable) {
  for (const Strategy strategy : kStrategies) {
    for (int p : {2, 3, 4}) {
      SCOPED_TRACE(static_cast<int>(strategy));
      OnLabMesh({{{"dp", p}}}, With(strategy), [&](Lab& lab) {
        const Bytes all = BytesOf(*lab.tower, lab.mesh), root = BytesOf(lab.tower->head, lab.mesh);
        for (int step = 0; step < 3; ++step) {
          CommTrace trace(lab.mesh);
          Backward(lab.Loss(step));
          SgdStep(*lab.tower, 0.1);
          int64_t gathered = 0;
          if (strategy == Strategy::kFullShard) gathered = 2 * all.gather - root.gather;
          if (strategy == Strategy::kShardGradOp || strategy == Strategy::kOptimizerState)
            gathered = all.gather;
          EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"), gathered);
          const bool replicates = strategy == Strategy::kReplicate;
          EXPECT_EQ(trace.Bytes("dp", "reduce_scatter", "fsdp_reduce"),
                    replicates ? 0 : all.scatter);
          EXPECT_EQ(trace.Bytes("dp", "all_reduce", "fsdp_reduce"),
                    replicates ? all.all_reduce : 0);
          EXPECT_EQ(trace.Count("dp", "all_reduce", "fsdp_reduce"), replicates ? 4 : 0);
        }
      });
    }
  }
}

// Hybrid sharding: reduce-scatter along dp, then an all-reduce of the shards along dp_replicate.
TEST(Strategies, SendTheBytesOfHybridShardingByAxis) {
  for (const MeshShape& shape :
       {MeshShape{{"dp_replicate", 2}, {"dp", 2}}, MeshShape{{"dp_replicate", 2}, {"dp", 3}},
        MeshShape{{"dp_replicate", 3}, {"dp", 2}}}) {
    OnLabMesh({shape}, {}, [](Lab& lab) {
      const Bytes all = BytesOf(*lab.tower, lab.mesh), root = BytesOf(lab.tower->head, lab.mesh);
      const int64_t r = lab.mesh.Size("dp_replicate"), rank = lab.mesh.LocalRank("dp_replicate");
      int64_t all_reduce = 0;
      for (const nn::Parameter& parameter : lab.tower->Parameters()) {
        const int64_t n = parameter.data().local().NumElements(), chunk = (n + r - 1) / r;
        const int64_t mine = std::min(n, (rank + 1) * chunk) - std::min(n, rank * chunk);
        all_reduce += 8 * ((n - mine) + (r - 1) * mine);
      }
      for (int step = 0; step < 2; ++step) {
        CommTrace trace(lab.mesh);
        Backward(lab.Loss(step));
        EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"), 2 * all.gather - root.gather);
        EXPECT_EQ(trace.Bytes("dp", "reduce_scatter", "fsdp_reduce"), all.scatter);
        EXPECT_EQ(trace.Bytes("dp_replicate", "all_reduce", "fsdp_reduce"), all_reduce);
        EXPECT_EQ(trace.Count("dp_replicate", "all_reduce", "fsdp_reduce"), 4);
        EXPECT_EQ(trace.Count("dp_replicate", "", "fsdp_gather"), 0);
        EXPECT_EQ(trace.Bytes("", "", "fsdp_reduce"), all.scatter + all_reduce) << "nothing else";
        SgdStep(*lab.tower, 0.1);
      }
    });
  }
}

TEST(Strategies, KeepGatheredWhatTheyPromise) {
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(static_cast<int>(strategy));
    OnLabMesh({{{"dp", 3}}}, With(strategy), [&](Lab& lab) {
      int64_t all = 0, root = 0;
      for (const nn::Parameter& p : lab.tower->Parameters()) all += p.shape().NumElements() * 8;
      for (const nn::Parameter& p : lab.tower->head.Parameters())
        root += p.shape().NumElements() * 8;
      const auto gathered = [&] { return lab.Bytes(MemoryCategory::kUnshardedParameters); };
      const bool zero1 = strategy == Strategy::kOptimizerState;
      for (int step = 0; step < 2; ++step) {
        {
          const NoGrad no_grad(lab.mesh);
          lab.Loss(7);
        }
        EXPECT_EQ(gathered(), zero1 ? all : 0);
        const DTensor loss = lab.Loss(step);
        EXPECT_EQ(gathered(), strategy == Strategy::kFullShard   ? root
                              : strategy == Strategy::kReplicate ? 0
                                                                 : all);
        Backward(loss);
        EXPECT_EQ(gathered(), zero1 ? all : 0);
        SgdStep(*lab.tower, 0.1);
      }
    });
  }
}

// ZeRO-1 gathers once a change of the values.
TEST(Strategies, OptimizerStateGathersOnceAStep) {
  OnLabMesh({{{"dp", 2}}}, With(Strategy::kOptimizerState), [](Lab& lab) {
    for (int step = 0; step < 3; ++step) {
      CommTrace trace(lab.mesh);
      for (int i = 0; i < 3; ++i) {
        const NoGrad no_grad(lab.mesh);
        lab.Loss(i);
      }
      Backward(lab.Loss(step));
      Backward(lab.Loss(step + 1));
      EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 4);
      SgdStep(*lab.tower, 0.1);
    }
  });
}

// ---- axes and dims ------------------------------------------------------------------------------

// Trains on `shape` as `wrap` says; expects the parameters of one rank.
void ExpectTrainsAlike(const MeshShape& shape, const std::function<void(Lab&)>& wrap) {
  std::vector<std::vector<double>> expected;
  const auto run = [&](const MeshShape& on, const std::function<void(Lab&)>& wrap_on) {
    std::vector<std::vector<double>> values;
    const absl::Status status = RunRanks(static_cast<int>(on.NumRanks()), [&](Communicator& world) {
      Lab lab;
      lab.mesh = DeviceMesh::Create(world, on);
      lab.tower = std::make_unique<Tower>(std::vector<int64_t>{11, 5});
      wrap_on(lab);
      lab.tower->PlaceReplicated(lab.mesh);
      lab.tower->Initialize(1);
      for (int step = 0; step < 3; ++step) {
        Backward(lab.Loss(step));
        SgdStep(*lab.tower, 0.3);
      }
      std::vector<std::vector<double>> mine;
      for (const nn::Parameter& parameter : lab.tower->Parameters())
        mine.push_back(FullTensor(parameter.data()).ToVector<double>());
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
      if (world.rank() == 0) values = std::move(mine);
    });
    EXPECT_TRUE(status.ok()) << on.ToString() << ": " << status;
    return values;
  };
  expected = run({{"dp", 1}}, [](Lab&) {});
  const std::vector<std::vector<double>> actual = run(shape, wrap);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    for (size_t j = 0; j < actual[i].size(); ++j)
      ASSERT_NEAR(actual[i][j], expected[i][j], 1e-12) << "parameter " << i;
  }
}

void Wrap(Lab& lab, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (auto& block : lab.tower->blocks) FullyShard(*block, mesh, options);
  FullyShard(*lab.tower, mesh, options);
}

TEST(ShardAxes, AreOneGroup) {
  for (const MeshShape& shape :
       {MeshShape{{"dp", 2}, {"cp", 2}}, MeshShape{{"dp", 3}, {"cp", 2}}}) {
    ExpectTrainsAlike(shape, [](Lab& lab) {
      FullyShardOptions options;
      options.shard_axes = {"dp", "cp"};
      Wrap(lab, lab.mesh, options);
      lab.tower->Initialize(1);
      const int64_t ranks = lab.mesh.shape().NumRanks();
      // Extents that the ranks do not divide, and fewer rows than ranks.
      EXPECT_LE(lab.tower->head.weight().data().local().NumElements(), kFeatures * 2);
      CommTrace trace(lab.mesh);
      Backward(lab.Loss(0));
      EXPECT_EQ(trace.Count("dp+cp", "all_gather", "fsdp_gather"), 2 * 2 + 1);
      EXPECT_EQ(trace.Count("dp+cp", "reduce_scatter", "fsdp_reduce"), 3);
      EXPECT_EQ(trace.Count("", "", "fsdp_reduce"), 3) << ranks << " ranks";
      for (const nn::Parameter& parameter : lab.tower->Parameters())
        DTensor(parameter.data()).ZeroGrad();
    });
  }
}

TEST(ShardAxes, DefaultToTheOnlyAxis) {
  ExpectTrainsAlike({{"fsdp", 3}}, [](Lab& lab) {
    Wrap(lab, lab.mesh, {});
    EXPECT_EQ(lab.block(0).up.weight().layout().ToString(), "[11,7] [S(0)] @ [fsdp=3]");
  });
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"a", 2}, {"b", 1}});
    Tower tower({5});
    const absl::Status refused = Catch([&] { FullyShard(tower, mesh); });
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("has no axis 'dp'; say which of a, b are the shard_axes"));
  });
  EXPECT_TRUE(status.ok()) << status;
}

// As PyTorch's users write it: tensor parallelism on the whole mesh, then FullyShard on a slice.
TEST(ShardAxes, OfASliceOfTheMesh) {
  ExpectTrainsAlike({{"dp", 2}, {"tp", 2}}, [](Lab& lab) {
    for (auto& block : lab.tower->blocks) {
      nn::Parameter up = block->up.weight(), down = block->down.weight();
      const Layout replicated = Layout::Replicated(lab.mesh.shape(), up.shape());
      up.Place(lab.mesh, replicated.With(1, shardmesh::Shard(0)));
      down.Place(lab.mesh,
                 Layout::Replicated(lab.mesh.shape(), down.shape()).With(1, shardmesh::Shard(1)));
    }
    lab.tower->PlaceReplicated(lab.mesh);
    Wrap(lab, lab.mesh["dp"], {});
    EXPECT_EQ(lab.block(0).up.weight().layout().ToString(),
              "[11,7] [S(0)/1, S(0)/0] @ [dp=2, tp=2]");
  });
}

TEST(ShardDim, IsWhatTheFunctionSays) {
  for (const MeshShape& shape : {MeshShape{{"dp", 2}}, MeshShape{{"dp", 3}}}) {
    ExpectTrainsAlike(shape, [](Lab& lab) {
      FullyShardOptions options;
      options.shard_dim = [](const nn::Parameter& parameter) {
        return parameter.shape().size() == 2 ? 1 : 0;
      };
      Wrap(lab, lab.mesh, options);
      EXPECT_EQ(lab.block(1).down.weight().layout().placement(0), shardmesh::Shard(1));
    });
  }
}

TEST(Units, OfSeveralModulesAreGatheredOnce) {
  ExpectTrainsAlike({{"dp", 2}}, [](Lab& lab) {
    FullyShard({&lab.block(0), &lab.block(1)}, lab.mesh, {});
    FullyShard(*lab.tower, lab.mesh, {});
    lab.tower->Initialize(1);
    for (int step = 0; step < 2; ++step) {
      CommTrace trace(lab.mesh);
      Backward(lab.Loss(0));
      // From the second forward on it is known that the same unit follows.
      EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), step == 0 ? 4 : 3);
      EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 2);
      for (const nn::Parameter& parameter : lab.tower->Parameters())
        DTensor(parameter.data()).ZeroGrad();
    }
  });
}

// A first step of `lab` with blocks called as `route` says, which leaves no trace.
void TryRoute(Lab& lab, const std::vector<int>& route,
              const std::function<void(const DTensor& loss)>& try_loss) {
  lab.tower->PlaceReplicated(lab.mesh);
  lab.tower->Initialize(1);
  const std::vector<int> before = std::exchange(lab.tower->route, route);
  try_loss(lab.Loss(0));
  lab.tower->route = before;
  for (const nn::Parameter& parameter : lab.tower->Parameters())
    DTensor(parameter.data()).ZeroGrad();
}

// It was decided by the module that was called first.
TEST(Units, OfSeveralModulesAreTheRootUnlessOneOfThemIsWithinAnother) {
  for (const std::vector<int>& route : {std::vector<int>{0, 1}, std::vector<int>{1, 0}}) {
    ExpectTrainsAlike({{"dp", 2}}, [&](Lab& lab) {
      FullyShard(lab.block(0).up, lab.mesh);
      FullyShard({&lab.block(0), &lab.block(1).up}, lab.mesh);
      FullyShard(lab.block(1), lab.mesh);
      // Block 1 has another unit within it, as block 0 has.
      TryRoute(lab, route, [&](const DTensor&) {
        EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters),
                  GatheredBytes(lab, lab.block(1).down));
      });
    });
    ExpectTrainsAlike({{"dp", 2}}, [&](Lab& lab) {
      FullyShard(lab.block(0).up, lab.mesh);
      FullyShard({&lab.block(0), &lab.block(1)}, lab.mesh);
      TryRoute(lab, route, [&](const DTensor&) {
        EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters),
                  GatheredBytes(lab, lab.block(0).down) + GatheredBytes(lab, lab.block(1)));
      });
    });
  }
}

TEST(Units, OfNestedModulesAreNotTheRootForThat) {
  ExpectTrainsAlike({{"dp", 2}}, [](Lab& lab) {
    FullyShard({&lab.block(0), &lab.block(0).up}, lab.mesh);
    TryRoute(lab, {0, 1}, [&](const DTensor&) {
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
    });
  });
}

// The call that followed the beginning of the outer one's backward was taken for the next.
TEST(Units, OfNestedModulesAreReleasedBeforeTheBackwardOfAnother) {
  ExpectTrainsAlike({{"dp", 2}}, [](Lab& lab) {
    FullyShard({&lab.block(0), &lab.block(0).up}, lab.mesh);
    FullyShard(lab.block(1), lab.mesh);
    SetBackwardPrefetch(lab.block(1), {});
    std::vector<int64_t> bytes;
    HookHandle hook =
        lab.block(1).down.AddForwardHook([&](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
          outputs[0] = WithBackwardCallback(outputs[0], [&] {
            bytes.push_back(lab.Bytes(MemoryCategory::kUnshardedParameters));
          });
        });
    TryRoute(lab, {0, 1, 0}, [](const DTensor& loss) { Backward(loss); });
    EXPECT_EQ(bytes, std::vector<int64_t>{GatheredBytes(lab, lab.block(1))});
    hook.Remove();
  });
}

TEST(Units, ThatContainOthersStayGatheredForTheirNextBackward) {
  ExpectTrainsAlike({{"dp", 2}}, [](Lab& lab) {
    FullyShard(lab.block(1).up, lab.mesh);
    FullyShard({&lab.block(0), &lab.block(1)}, lab.mesh, {.reshard_after_forward = true});
    CommTrace trace(lab.mesh);
    TryRoute(lab, {0, 1}, [](const DTensor& loss) { Backward(loss); });
    // Two of the inner unit; of the outer one two in forward, whose order is not known yet.
    EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 2 + 3);
  });
}

TEST(MixedPrecision, CastsInputsAndOutputsAsTold) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    for (const bool casts : {true, false}) {
      nn::Linear linear(kFeatures, 3);
      FullyShardOptions options;
      options.mixed_precision = {
          .param_dtype = DType::kBF16, .output_dtype = DType::kF32, .cast_forward_inputs = casts};
      FullyShard(linear, lab.mesh, options);
      linear.Initialize(1);
      const DTensor x = Cast(lab.Batch(0), DType::kF32);
      if (casts) {
        const DTensor y = linear(x);
        EXPECT_EQ(y.dtype(), DType::kF32);
        Backward(Sum(y));
        EXPECT_EQ(linear.weight().data().grad().dtype(), DType::kF32);
      } else {
        EXPECT_THROW(linear(x), Error);
        EXPECT_EQ(linear(Cast(x, DType::kBF16)).dtype(), DType::kF32);
      }
    }
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
