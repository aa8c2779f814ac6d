// SPDX-License-Identifier: Apache-2.0
//
// Loss scaling of whole models: FullyShard that computes in f16, micro-batches, tensor parallelism.
#include "shardmesh/optim/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Vector = std::vector<double>;

constexpr int64_t kRows = 6, kInputs = 5, kHidden = 7, kOutputs = 3;
constexpr nn::LinearOptions kLinear = {.bias = true,
                                       .weight_init = {nn::Init::Kind::kNormal, 0, 0.4}};

void OnEachMesh(const std::function<void(const DeviceMesh&)>& body) {
  const std::vector<MeshShape> shapes = {{{"dp", 1}},
                                         {{"dp", 2}},
                                         {{"dp", 3}},
                                         {{"dp", 2}, {"tp", 2}},
                                         {{"dp_replicate", 2}, {"dp", 2}}};
  for (const MeshShape& shape : shapes) {
    SCOPED_TRACE(shape.ToString());
    const absl::Status status =
        RunRanks(static_cast<int>(shape.NumRanks()),
                 [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
    EXPECT_TRUE(status.ok()) << status;
  }
}

/// Two layers, a unit each, with f32 parameters, in `dtype` within the units.
struct Mlp {
  nn::Linear up{kInputs, kHidden, kLinear}, down{kHidden, kOutputs, kLinear};
  DeviceMesh mesh;

  Mlp(const DeviceMesh& mesh, DType dtype) : mesh(mesh) {
    if (mesh.shape().Has("tp")) {
      tp::Parallelize(up, mesh, "tp", {{"", tp::Colwise()}});
      tp::Parallelize(down, mesh, "tp", {{"", tp::Rowwise()}});
    }
    for (nn::Linear* layer : {&up, &down}) {
      fsdp::FullyShard(*layer, mesh,
                       {.mixed_precision = {.param_dtype = dtype, .output_dtype = DType::kF32}});
      layer->Initialize(layer == &up ? 1 : 2);
    }
  }

  std::vector<nn::Parameter> Parameters() const {
    std::vector<nn::Parameter> all = up.Parameters();
    for (const nn::Parameter& parameter : down.Parameters()) all.push_back(parameter);
    return all;
  }

  DTensor Loss(int step) {
    const DTensor x = Cast(RandomRows(mesh, {kRows, kInputs}, step), DType::kF32);
    const DTensor target = Cast(RandomRows(mesh, {kRows, kOutputs}, 100 + step), DType::kF32);
    return MseLoss(down(Tanh(up(x))), target);
  }

  std::vector<Vector> Values() const {
    std::vector<Vector> values;
    for (const nn::Parameter& parameter : Parameters())
      values.push_back(FullTensor(parameter.data()).ToVector<double>());
    return values;
  }
};

// Its gradients in f16 are all zero without a scale, as the loss has a small weight.
TEST(GradScalerTraining, TrainsFullyShardInF16WhereGradientsVanishWithoutIt) {
  constexpr double kWeight = 1e-8;
  constexpr int kSteps = 20;
  OnEachMesh([](const DeviceMesh& mesh) {
    const auto train = [&](DType dtype, bool scaled) {
      Mlp model(mesh, dtype);
      optim::Sgd optimizer(model.Parameters(), {.lr = 0.1 / kWeight});
      optim::GradScaler scaler({.initial_scale = 0x1p24});
      Vector losses;
      for (int step = 0; step < kSteps; ++step) {
        const DTensor loss = model.Loss(/*step=*/0);
        losses.push_back(Item(loss));
        if (!scaled) {
          Backward(loss * kWeight);
          optimizer.Step();
          continue;
        }
        Backward(scaler.Scale(loss * kWeight));
        EXPECT_TRUE(scaler.Step(optimizer));
        scaler.Update();
      }
      return losses;
    };
    const Vector f32 = train(DType::kF32, /*scaled=*/false);
    EXPECT_LT(f32.back(), 0.7 * f32.front());
    const Vector unscaled = train(DType::kF16, /*scaled=*/false);
    EXPECT_EQ(unscaled.back(), unscaled.front()) << "gradients do not vanish";
    const Vector scaled = train(DType::kF16, /*scaled=*/true);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(scaled[step], f32[step], 0.01 * f32[0]) << step;
  });
}

// Powers of two change no bit: clipping and micro-batches included.
TEST(GradScalerTraining, HasTheBitsOfTrainingWithoutAScale) {
  OnEachMesh([](const DeviceMesh& mesh) {
    const auto train = [&](bool scaled) {
      Mlp model(mesh, DType::kF32);
      optim::AdamW optimizer(model.Parameters(), {.lr = 0.05});
      optim::GradScaler scaler({.initial_scale = 1024, .growth_interval = 3});
      for (int step = 0; step < 7; ++step) {
        for (int micro = 0; micro < 3; ++micro) {
          fsdp::SetRequiresGradientSync(model.up, micro == 2);
          fsdp::SetRequiresGradientSync(model.down, micro == 2);
          const DTensor loss = model.Loss(10 * step + micro);
          Backward(scaled ? scaler.Scale(loss) : loss);
        }
        if (scaled) scaler.Unscale(model.Parameters());
        optim::ClipGradNorm(model.Parameters(), 0.5);
        if (scaled) {
          EXPECT_TRUE(scaler.Step(optimizer));
          scaler.Update();
        } else {
          optimizer.Step();
        }
      }
      EXPECT_EQ(scaler.scale(), scaled ? 4096 : 1024);
      return model.Values();
    };
    EXPECT_EQ(train(/*scaled=*/true), train(/*scaled=*/false));
  });
}

TEST(GradScalerTraining, SkipsAStepOnAllRanksIfAHookOfOneFindsAnInf) {
  OnEachMesh([](const DeviceMesh& mesh) {
    const int ranks = mesh.WorldGroup().size(), rank = mesh.WorldGroup().rank();
    Mlp model(mesh, DType::kF16);
    optim::AdamW optimizer(model.Parameters());
    optim::GradScaler scaler;
    int bad = -1;
    // On the reduced gradient: this rank's shard of 7, 3 rows by 5 or 7 columns.
    DTensor(model.down.weight().data()).RegisterGradHook([&](const DTensor& grad) {
      float* values = grad.local().mutable_data<float>();
      if (rank == bad && grad.local().NumElements() > 0)
        values[grad.local().NumElements() - 1] = -std::numeric_limits<float>::infinity();
      return grad;
    });
    const auto step = [&](int rank_with_inf) {
      bad = rank_with_inf;
      Backward(scaler.Scale(model.Loss(0)));
      CommTrace trace(mesh);
      const bool stepped = scaler.Step(optimizer);
      scaler.Update();
      EXPECT_EQ(trace.Count(), ranks > 1 ? 1 : 0) << trace.ToString();
      return stepped;
    };
    EXPECT_TRUE(step(-1));
    int64_t steps = 1;
    for (int i = 0; i < ranks; ++i) {
      const Layout& layout = model.down.weight().layout();
      const bool holds = layout.LocalShape(mesh.shape().CoordOf(i)).NumElements() > 0;
      const std::vector<Vector> before = model.Values();
      const double scale = scaler.scale();
      EXPECT_EQ(step(i), !holds) << i;
      EXPECT_EQ(scaler.scale(), holds ? scale / 2 : scale);
      EXPECT_EQ(model.Values() == before, holds) << i;
      steps += holds ? 0 : 1;
      for (const optim::ParameterState& state : optimizer.states()) EXPECT_EQ(state.step, steps);
    }
    const std::vector<Vector> before = model.Values();
    EXPECT_TRUE(step(-1));
    EXPECT_NE(model.Values(), before);
  });
}

TEST(GradScalerTraining, RefusesMicroBatchesThatAreNotReduced) {
  OnEachMesh([](const DeviceMesh& mesh) {
    Mlp model(mesh, DType::kF16);
    optim::Sgd optimizer(model.Parameters());
    optim::GradScaler scaler;
    {
      fsdp::NoSync no_sync(model.up);
      Backward(scaler.Scale(model.Loss(0)));
    }
    const absl::Status status = Catch([&] { scaler.Step(optimizer); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("GradScaler::Step"), HasSubstr("weight"),
                      HasSubstr("SetRequiresGradientSync(module, true)")));
    Backward(scaler.Scale(model.Loss(1)));
    EXPECT_TRUE(scaler.Step(optimizer));
  });
}

}  // namespace
}  // namespace shardmesh::testing
