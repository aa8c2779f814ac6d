// SPDX-License-Identifier: Apache-2.0
//
// AdamW and Sgd against their formulas, on shards of every kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/sgd.h"

namespace shardmesh::optim {
namespace {

using ::testing::HasSubstr;
using Vector = std::vector<double>;

Vector RandomVector(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  Vector values(count);
  // Rounded to f32, so that both dtypes begin with the same numbers.
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

DTensor Spread(const DeviceMesh& mesh, const Layout& layout, DType dtype, const Vector& values) {
  const Tensor full = Tensor::FromValues<double>(mesh.context(), layout.global_shape(), values);
  const DTensor whole =
      Distribute(mesh, full, std::vector<Placement>(mesh.shape().num_axes(), Replicate()));
  const DTensor moved = Redistribute(whole, layout);
  Tensor local = Tensor::Empty(mesh.context(), moved.local().shape(), dtype);
  const Vector own = moved.local().ToVector<double>();
  for (size_t i = 0; i < own.size(); ++i) {
    if (dtype == DType::kF64) local.mutable_data<double>()[i] = own[i];
    if (dtype == DType::kF32) local.mutable_data<float>()[i] = static_cast<float>(own[i]);
  }
  return DTensor(mesh, layout, local);
}

nn::Parameter MakeParameter(const DeviceMesh& mesh, const Layout& layout, DType dtype,
                            const Vector& values) {
  nn::Parameter parameter(layout.global_shape(), dtype, nn::Init::Constant(0));
  parameter.set_name("layer.weight");
  parameter.Place(mesh, layout);
  parameter.SetData(Spread(mesh, layout, dtype, values));
  return parameter;
}

void SetGrad(const nn::Parameter& parameter, const Vector& values) {
  DTensor leaf = parameter.data();
  leaf.SetGrad(Spread(leaf.mesh(), leaf.layout(), leaf.dtype(), values));
}

void OnRanks(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << status;
}

struct Case {
  Layout layout;
  DType dtype;
  double tolerance;
};

std::vector<Case> Cases() {
  const MeshShape line = {{"dp", 3}}, square = {{"dp", 2}, {"tp", 2}};
  std::vector<Case> cases;
  for (const Layout& layout :
       {Layout::Make({{"dp", 1}}, {Replicate()}, {7, 3}), Layout::Make(line, {Shard(0)}, {7, 3}),
        Layout::Make(line, {Shard(0)}, {2, 5}),  // The last rank holds nothing.
        Layout::Make(line, {Replicate()}, {2, 5}),
        Layout::Make(square, {Shard(0), Shard(0)}, {7, 3}, {1, 0}),
        Layout::Make(square, {Replicate(), Shard(1)}, {7, 3})}) {
    cases.push_back({layout, DType::kF64, 1e-14});
    cases.push_back({layout, DType::kF32, 2e-6});
  }
  return cases;
}

void ExpectNear(const nn::Parameter& parameter, const Vector& expected, double tolerance) {
  const Vector values = FullTensor(parameter.data()).ToVector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], tolerance * (1 + std::abs(expected[i])))
        << parameter.ToString() << " element " << i;
  }
}

TEST(AdamW, FollowsItsFormulaOnAnyShard) {
  const AdamWOptions options = {
      .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1};
  for (const Case& c : Cases()) {
    OnRanks(c.layout.mesh(), [&](const DeviceMesh& mesh) {
      const size_t count = c.layout.global_shape().NumElements();
      Vector p = RandomVector(count, 1), m(count), v(count);
      const nn::Parameter parameter = MakeParameter(mesh, c.layout, c.dtype, p);
      AdamW optimizer({parameter}, options);
      double lr = options.lr;
      for (int t = 1; t <= 5; ++t) {
        const Vector g = RandomVector(count, 10 + t);
        for (size_t i = 0; i < count; ++i) {
          p[i] -= lr * options.weight_decay * p[i];
          m[i] = options.beta1 * m[i] + (1 - options.beta1) * g[i];
          v[i] = options.beta2 * v[i] + (1 - options.beta2) * g[i] * g[i];
          const double m_hat = m[i] / (1 - std::pow(options.beta1, t));
          const double v_hat = v[i] / (1 - std::pow(options.beta2, t));
          p[i] -= lr * m_hat / (std::sqrt(v_hat) + options.eps);
        }
        SetGrad(parameter, g);
        optimizer.Step();
        ExpectNear(parameter, p, c.tolerance);
        EXPECT_FALSE(static_cast<bool>(parameter.data().grad())) << "not cleared";
        lr *= 0.7;
        optimizer.set_lr(lr);
      }
      EXPECT_EQ(optimizer.states()[0].step, 5);
    });
  }
}

TEST(Sgd, FollowsItsFormulaOnAnyShard) {
  for (const double momentum : {0.0, 0.9}) {
    const SgdOptions options = {.lr = 0.05, .momentum = momentum, .weight_decay = 0.1};
    for (const Case& c : Cases()) {
      OnRanks(c.layout.mesh(), [&](const DeviceMesh& mesh) {
        const size_t count = c.layout.global_shape().NumElements();
        Vector p = RandomVector(count, 1), b(count);
        const nn::Parameter parameter = MakeParameter(mesh, c.layout, c.dtype, p);
        Sgd optimizer({parameter}, options);
        for (int t = 1; t <= 4; ++t) {
          const Vector g = RandomVector(count, 10 + t);
          for (size_t i = 0; i < count; ++i) {
            const double d = g[i] + options.weight_decay * p[i];
            b[i] = t == 1 ? d : momentum * b[i] + d;
            p[i] -= options.lr * b[i];
          }
          SetGrad(parameter, g);
          optimizer.Step();
          ExpectNear(parameter, p, c.tolerance);
          EXPECT_FALSE(static_cast<bool>(parameter.data().grad())) << "not cleared";
        }
        EXPECT_EQ(static_cast<bool>(optimizer.states()[0].Find("momentum_buffer")), momentum != 0);
      });
    }
  }
}

// A bf16 master near 1 moves by 2^-8 or not at all: a thousand such steps would leave it at 1.
TEST(AdamW, KeepsUpdatesBelowTheStepOfBf16) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Replicated(mesh.shape(), {2});
    const nn::Parameter parameter = MakeParameter(mesh, layout, DType::kF32, {1, -1});
    AdamW optimizer({parameter}, {.lr = 1e-5, .weight_decay = 0});
    for (int t = 0; t < 1000; ++t) {
      SetGrad(parameter, {3, -3});
      optimizer.Step();
    }
    ExpectNear(parameter, {0.99, -0.99}, 1e-5);
  });
}

TEST(AdamW, LeavesParametersWithoutGradientAlone) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Replicated(mesh.shape(), {2});
    const nn::Parameter with = MakeParameter(mesh, layout, DType::kF64, {1, -2});
    const nn::Parameter without = MakeParameter(mesh, layout, DType::kF64, {3, -4});
    AdamW optimizer({without, with}, {.lr = 0.1});
    SetGrad(with, {1, -1});
    optimizer.Step();
    ExpectNear(without, {3, -4}, 0);
    EXPECT_EQ(optimizer.states()[0].step, 0);
    EXPECT_FALSE(static_cast<bool>(optimizer.states()[0].Find("exp_avg")));
    // Its first step is a first step, whatever others have done.
    SetGrad(without, {1, 1});
    optimizer.Step();
    ExpectNear(without, {3 - 0.003 - 0.1, -4 + 0.004 - 0.1}, 1e-8);
    EXPECT_EQ(optimizer.states()[1].step, 1);
  });
}

TEST(AdamW, TellsTheGraphAndCountsItsMemory) {
  OnRanks({{"dp", 3}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {7, 3});
    const nn::Parameter parameter = MakeParameter(mesh, layout, DType::kF32, RandomVector(21, 1));
    const std::shared_ptr<Allocator> memory = mesh.context().allocator();
    AdamW optimizer({parameter}, {});
    EXPECT_EQ(memory->stats(MemoryCategory::kOptimizer).bytes, 0);
    const DTensor leaf = parameter.data();
    const int64_t version = leaf.local().storage()->version();
    SetGrad(parameter, RandomVector(21, 2));
    optimizer.Step();
    EXPECT_GT(leaf.local().storage()->version(), version);
    EXPECT_EQ(parameter.data().impl(), leaf.impl());
    EXPECT_EQ(memory->stats(MemoryCategory::kOptimizer).bytes, 2 * leaf.local().Bytes());
  });
}

TEST(Optimizers, CountAStepAlsoOnARankWithoutElements) {
  // FullyShard and autograd compare versions; ranks of two minds would wait for each other.
  OnRanks({{"dp", 3}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {2, 3});
    const nn::Parameter parameter = MakeParameter(mesh, layout, DType::kF32, RandomVector(6, 1));
    const Storage& storage = *parameter.data().local().storage();
    AdamW adamw({parameter}, {});
    Sgd sgd({parameter}, {.momentum = 0.9});
    for (int step = 0; step < 2; ++step) {
      const int64_t version = storage.version();
      SetGrad(parameter, RandomVector(6, 2));
      adamw.Step();
      EXPECT_EQ(storage.version(), version + 1);
      SetGrad(parameter, RandomVector(6, 3));
      sgd.Step();
      EXPECT_EQ(storage.version(), version + 2);
    }
  });
}

template <typename Optimizer>
void ExpectRefusals(const std::string& name) {
  const auto message_of = [](const std::function<void()>& call) {
    return std::string(Catch(call).message());
  };
  const nn::Parameter small({3}, DType::kBF16, nn::Init::Constant(0));
  EXPECT_THAT(message_of([&] { Optimizer({small}); }), HasSubstr(name + ": parameter"));
  EXPECT_THAT(message_of([&] { Optimizer({small}); }), HasSubstr("bf16"));
  const nn::Parameter twice({3}, DType::kF32, nn::Init::Constant(0));
  EXPECT_THAT(message_of([&] { Optimizer({twice, twice}); }), HasSubstr("twice"));
  EXPECT_THAT(message_of([&] { Optimizer({nn::Parameter()}); }), HasSubstr("none"));
  for (double lr : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message_of([&] { Optimizer({twice}, {.lr = lr}); }), HasSubstr("lr is "));
    Optimizer optimizer({twice});
    EXPECT_THAT(message_of([&] { optimizer.set_lr(lr); }), HasSubstr("lr is "));
  }
  EXPECT_THAT(message_of([&] { Optimizer({twice}, {.weight_decay = -0.1}); }),
              HasSubstr("weight_decay is -0.1"));
}

TEST(AdamW, RefusesWhatItCannotUpdate) {
  ExpectRefusals<AdamW>("AdamW");
  const nn::Parameter parameter({3}, DType::kF32, nn::Init::Constant(0));
  EXPECT_THROW(AdamW({parameter}, {.beta1 = 1}), Error);
  EXPECT_THROW(AdamW({parameter}, {.beta2 = -0.1}), Error);
  EXPECT_THROW(AdamW({parameter}, {.eps = -1}), Error);
}

TEST(Sgd, RefusesWhatItCannotUpdate) { ExpectRefusals<Sgd>("Sgd"); }

TEST(AdamW, NoticesAParameterThatMoved) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    nn::Parameter parameter =
        MakeParameter(mesh, Layout::Replicated(mesh.shape(), {2}), DType::kF32, {1, 2});
    AdamW optimizer({parameter});
    SetGrad(parameter, {1, 1});
    optimizer.Step();
    parameter.Place(mesh, Layout::Make(mesh.shape(), {Shard(0)}, {2}));
    SetGrad(parameter, {1, 1});
    const absl::Status status = Catch([&] { optimizer.Step(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer.weight f32[2] [S(0)]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("[2] [R]"));
  });
}

}  // namespace
}  // namespace shardmesh::optim
