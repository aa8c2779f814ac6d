// SPDX-License-Identifier: Apache-2.0
//
// The caches of decisions and plans: what a program repeats is decided once, and nothing grows with
// the number of steps.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/nn/parameter.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::HasSubstr;

// A training step with numbers that differ from step to step: scalars, slices' starts, seeds, data.
void Step(const DeviceMesh& mesh, std::vector<DTensor>& weights, int64_t step) {
  const auto number = static_cast<double>(step);
  const DTensor x = Place(mesh, {Shard(0), Replicate()}, Values({5, 6}, step));
  const DTensor targets = Place(mesh, {Shard(0), Replicate()}, {{5}, DType::kI64, {0, 1, 0, 2, 1}});
  DTensor h = Dropout(Silu(Linear(x, weights[0])), 0.25,
                      {.seed = 1, .stream = static_cast<uint64_t>(step)});
  h = Add(RmsNorm(h, weights[1], 1e-6 * number), number * 0.25);
  h = Maximum(Concat({Slice(h, 0, step % 3, 2), Slice(h, 0, 0, 3)}, 0), -number);
  const DTensor loss = Div(CrossEntropy(Linear(h, weights[2]), targets), number);
  Backward(loss);
  const NoGrad no_grad(mesh);
  for (DTensor& w : weights) {
    AddInPlace(w, Mul(w.grad(), -0.01 / number));
    w.ZeroGrad();
  }
}

TEST(DecisionCache, IsConstantAfterTheSecondStep) {
  // Seen elsewhere: keys contain step-varying scalars, so the cache grows with every step.
  OnMesh({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    std::vector<DTensor> weights = {
        Place(mesh, {Shard(0), Shard(0)}, Values({8, 6}, 1)).SetRequiresGrad(),
        Place(mesh, {Shard(0), Replicate()}, Values({8}, 2)).SetRequiresGrad(),
        Place(mesh, {Shard(0), Shard(1)}, Values({7, 8}, 3)).SetRequiresGrad(),
    };
    const Runtime& runtime = Runtime::Of(mesh);
    for (int64_t step = 1; step <= 2; ++step) Step(mesh, weights, step);
    const size_t decisions = runtime.num_decisions(), plans = runtime.num_plans();
    const int64_t misses = runtime.decision_misses();
    EXPECT_GT(decisions, 10u);
    EXPECT_EQ(static_cast<int64_t>(decisions), misses);
    for (int64_t step = 3; step <= 200; ++step) Step(mesh, weights, step);
    EXPECT_EQ(runtime.num_decisions(), decisions);
    EXPECT_EQ(runtime.num_plans(), plans);
    EXPECT_EQ(runtime.decision_misses(), misses);
  });
}

TEST(DecisionCache, IsConstantOverAThousandAdamSteps) {
  // Seen elsewhere: the learning rate and the count of steps are part of the key.
  OnMesh({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    std::vector<nn::Parameter> parameters;
    const auto make = [&](const Dims& shape, std::initializer_list<Placement> placements) {
      nn::Parameter parameter(shape, DType::kF64, nn::Init::Normal(0, 1));
      parameter.set_name("p" + std::to_string(parameters.size()));
      parameter.Place(mesh, Layout::Make(mesh.shape(), placements, shape));
      parameter.Materialize(1);
      parameters.push_back(parameter);
    };
    make({8, 6}, {Shard(0), Shard(0)});
    make({8}, {Shard(0), Replicate()});
    make({7, 8}, {Shard(0), Shard(1)});
    make({7}, {Replicate(), Shard(0)});
    optim::AdamW optimizer(parameters);
    const Runtime& runtime = Runtime::Of(mesh);
    size_t decisions = 0, plans = 0;
    int64_t misses = 0;
    for (int64_t step = 1; step <= 1000; ++step) {
      const DTensor x = Place(mesh, {Shard(0), Replicate()}, Values({5, 6}, step));
      const DTensor h = RmsNorm(Silu(Linear(x, parameters[0].data())), parameters[1].data(), 1e-6);
      Backward(Mean(Square(Linear(h, parameters[2].data(), parameters[3].data()))));
      optimizer.set_lr(0.1 / static_cast<double>(step));
      optimizer.Step();
      if (step == 2) {
        decisions = runtime.num_decisions();
        plans = runtime.num_plans();
        misses = runtime.decision_misses();
      }
    }
    for (const optim::ParameterState& state : optimizer.states()) EXPECT_EQ(state.step, 1000);
    EXPECT_GT(decisions, 5u);
    EXPECT_EQ(runtime.num_decisions(), decisions);
    EXPECT_EQ(runtime.num_plans(), plans);
    EXPECT_EQ(runtime.decision_misses(), misses);
  });
}

TEST(DecisionCache, IsBounded) {
  // Every new sequence length is a new layout.
  OnMesh({{"x", 1}}, [](const DeviceMesh& mesh) {
    const Runtime& runtime = Runtime::Of(mesh);
    const auto lengths = static_cast<int64_t>(Runtime::kMaxCacheEntries + 100);
    const DTensor x = Place(mesh, {Replicate()}, {{1, 1}, DType::kF64, {2}});
    DTensor y;
    for (int64_t n = 1; n <= lengths; ++n) y = Expand(x, {n, 1});
    EXPECT_LE(runtime.num_decisions(), Runtime::kMaxCacheEntries);
    EXPECT_EQ(Item(Sum(y)), 2.0 * static_cast<double>(lengths));
  });
}

TEST(DecisionCache, ADecisionServesOnlyItsOwnKind) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({4, 6}, 1));
    const GlobalValue ids = {{4}, DType::kI64, {0, 1, 2, 1}};
    // The same layouts, other attributes.
    EXPECT_EQ(Sum(x, {0}).shape(), Dims{6});
    EXPECT_EQ(Sum(x, {1}).shape(), Dims{4});
    EXPECT_EQ(Sum(x, {1}, true).shape(), (Dims{4, 1}));
    EXPECT_EQ(Max(x, {1}).shape(), Dims{4});
    EXPECT_EQ(Reshape(x, {24}).shape(), Dims{24});
    EXPECT_EQ(Reshape(x, {2, 12}).shape(), (Dims{2, 12}));
    EXPECT_EQ(Slice(x, 1, 0, 2).shape(), (Dims{4, 2}));
    EXPECT_EQ(Slice(x, 1, 0, 3).shape(), (Dims{4, 3}));
    EXPECT_EQ(Slice(x, 0, 0, 3).shape(), (Dims{3, 6}));
    EXPECT_EQ(Transpose(x, 0, 1).shape(), (Dims{6, 4}));
    EXPECT_EQ(Expand(x, {2, 4, 6}).shape(), (Dims{2, 4, 6}));
    EXPECT_EQ(Expand(x, {3, 4, 6}).shape(), (Dims{3, 4, 6}));
    // The same layouts and element size, another dtype: what is refused the first time is refused
    // the second time.
    const DTensor table = Place(mesh, {Shard(0)}, Values({3, 2}, 2));
    Embedding(Place(mesh, {Shard(0)}, ids), table);
    GlobalValue real = ids;
    real.dtype = DType::kF64;
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(ErrorOf([&] { Embedding(Place(mesh, {Shard(0)}, real), table); }),
                  HasSubstr("f64[4]"));
    }
  });
}

}  // namespace
}  // namespace shardmesh::testing
