// SPDX-License-Identifier: Apache-2.0
//
// Trainings with all that an optimizer has around it: groups, Muon beside AdamW, a schedule, loss
// scaling, clipping, an average of the weights that is swapped in to evaluate. Under FullyShard and
// tensor parallelism they compute what one rank does.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/optim/adam.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/ema.h"
#include "shardmesh/optim/grad_scaler.h"
#include "shardmesh/optim/lion.h"
#include "shardmesh/optim/lr_scheduler.h"
#include "shardmesh/optim/muon.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kInputs = 5, kHidden = 11, kOutputs = 3, kRows = 7;
constexpr int kSteps = 6;
constexpr nn::LinearOptions kLinear = {
    .bias = true, .dtype = DType::kF64, .weight_init = {nn::Init::Kind::kNormal, 0, 0.4}};

class Mlp : public nn::Module {
 public:
  explicit Mlp(const DeviceMesh& mesh) {
    RegisterChild("norm", norm_);
    RegisterChild("up", up_);
    RegisterChild("down", down_);
    if (mesh.shape().Has("tp")) {
      tp::Parallelize(*this, mesh, "tp", {{"up", tp::Colwise()}, {"down", tp::Rowwise()}});
    }
    ShardUnit(up_, mesh);
    ShardUnit(*this, mesh);
    PlaceReplicated(mesh);
    Initialize(/*seed=*/1);
  }

 protected:
  Outputs Forward(const Inputs& x) override { return down_(Tanh(up_(norm_(x[0])))); }

 private:
  nn::LayerNorm norm_{kInputs, /*eps=*/1e-5, DType::kF64};
  nn::Linear up_{kInputs, kHidden, kLinear};
  nn::Linear down_{kHidden, kOutputs, kLinear};
};

DTensor LossOf(Mlp& model, const DeviceMesh& mesh, int step) {
  const DTensor x = RandomRows(mesh, {kRows, kInputs}, /*seed=*/step);
  const DTensor target = RandomRows(mesh, {kRows, kOutputs}, /*seed=*/100 + step);
  return MseLoss(model(x), target);
}

using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;

// Evaluates with averages after each step; what was trained goes on from its own weights.
Outcome TrainWith(const DeviceMesh& mesh, const std::function<Optimizers(Mlp&)>& make) {
  Mlp model(mesh);
  const Optimizers optimizers = make(model);
  std::vector<std::unique_ptr<optim::LrScheduler>> schedulers;
  for (const auto& optimizer : optimizers) {
    schedulers.push_back(std::make_unique<optim::LrScheduler>(
        *optimizer,
        optim::WsdSchedule{.total_steps = kSteps, .warmup_steps = 2, .decay_steps = 2}));
  }
  optim::GradScaler scaler({.initial_scale = 16});
  optim::Ema ema(model.Parameters());
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const DTensor loss = LossOf(model, mesh, step);
    outcome.losses.push_back(Item(loss));
    Backward(scaler.Scale(loss));
    scaler.Unscale(model.Parameters());
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    for (size_t i = 0; i < optimizers.size(); ++i) {
      scaler.Step(*optimizers[i]);
      schedulers[i]->Step();
    }
    scaler.Update();
    ema.Update(/*decay=*/0.75);
    const optim::Ema::Scope averaged = ema.Swap();
    const NoGrad no_grad(mesh);
    outcome.losses.push_back(Item(LossOf(model, mesh, /*step=*/50)));
  }
  for (const auto& [name, parameter] : model.NamedParameters()) {
    outcome.parameters[name] = FullTensor(parameter.data()).ToVector<double>();
  }
  for (size_t i = 0; i < ema.parameters().size(); ++i) {
    outcome.parameters["average." + ema.parameters()[i].name()] =
        FullTensor(ema.averages()[i]).ToVector<double>();
  }
  for (const auto& optimizer : optimizers) {
    const StateDict state = optimizer->State();
    for (const StateEntry& entry : state.entries()) {
      const StateValue value = entry.Get();
      if (const auto* tensor = std::get_if<DTensor>(&value))
        outcome.parameters[entry.name] = FullTensor(*tensor).ToVector<double>();
    }
  }
  return outcome;
}

template <typename Optimizer, typename Options>
Optimizers WithoutDecayOfNorms(Mlp& model, const Options& options) {
  Optimizers optimizers;
  optimizers.push_back(std::make_unique<Optimizer>(
      model.Parameters(), options,
      std::vector<optim::ParameterGroup<Options>>{
          {.parameters = optim::IsNormOrBias, .change = [](auto& o) { o.weight_decay = 0; }},
          {.parameters = "down.*", .change = [](auto& o) { o.lr *= 0.5; }}}));
  return optimizers;
}

TEST(Optimizers, TrainAlikeOnAllMeshes) {
  const std::vector<std::function<Optimizers(Mlp&)>> makers = {
      [](Mlp& model) {
        return WithoutDecayOfNorms<optim::AdamW>(
            model, optim::AdamWOptions{.lr = 0.03, .weight_decay = 0.1});
      },
      [](Mlp& model) {
        return WithoutDecayOfNorms<optim::AdamW>(
            model, optim::AdamWOptions{.lr = 0.03, .weight_decay = 0.1, .amsgrad = true});
      },
      [](Mlp& model) {
        return WithoutDecayOfNorms<optim::Adam>(
            model, optim::AdamOptions{.lr = 0.03, .weight_decay = 0.1});
      },
      [](Mlp& model) {
        return WithoutDecayOfNorms<optim::Sgd>(
            model,
            optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
      },
      [](Mlp& model) {
        return WithoutDecayOfNorms<optim::Lion>(
            model, optim::LionOptions{.lr = 0.01, .weight_decay = 0.1});
      },
  };
  for (const auto& make : makers) {
    ExpectSameOnAllMeshes([&](const DeviceMesh& mesh) { return TrainWith(mesh, make); });
  }
}

TEST(Optimizers, TrainAlikeOnAllMeshesWithMuonBesideAdamW) {
  ExpectSameOnAllMeshes([](const DeviceMesh& mesh) {
    return TrainWith(mesh, [](Mlp& model) {
      std::vector<nn::Parameter> matrices, rest;
      for (const nn::Parameter& p : model.Parameters())
        (optim::IsNormOrBias(p) ? rest : matrices).push_back(p);
      Optimizers optimizers;
      optimizers.push_back(std::make_unique<optim::Muon>(matrices, optim::MuonOptions{.lr = 0.02}));
      optimizers.push_back(std::make_unique<optim::AdamW>(rest, optim::AdamWOptions{.lr = 0.03}));
      return optimizers;
    });
  });
}

}  // namespace
}  // namespace shardmesh::testing
