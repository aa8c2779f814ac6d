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

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/state.h"
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

// A training and all that it needs to go on later.
class Training {
 public:
  Training(const DeviceMesh& mesh, const std::function<Optimizers(Mlp&)>& make)
      : mesh_(mesh), model_(mesh), optimizers_(make(model_)), ema_(model_.Parameters()) {
    for (const auto& optimizer : optimizers_) {
      schedulers_.push_back(std::make_unique<optim::LrScheduler>(
          *optimizer,
          optim::WsdSchedule{.total_steps = kSteps, .warmup_steps = 2, .decay_steps = 2}));
    }
  }

  void Step() {
    const DTensor loss = LossOf(model_, mesh_, static_cast<int>(step_++));
    losses_.push_back(Item(loss));
    Backward(scaler_.Scale(loss));
    scaler_.Unscale(model_.Parameters());
    optim::ClipGradNorm(model_.Parameters(), /*max_norm=*/1.0);
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      scaler_.Step(*optimizers_[i]);
      schedulers_[i]->Step();
    }
    scaler_.Update();
    ema_.Update(/*decay=*/0.75);
    // Evaluates with the averages; what is trained goes on from its own weights.
    const optim::Ema::Scope averaged = ema_.Swap();
    const NoGrad no_grad(mesh_);
    losses_.push_back(Item(LossOf(model_, mesh_, /*step=*/50)));
  }

  StateDict State() {
    StateDict state;
    state.Merge("model", nn::State(model_));
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      state.Merge("optim" + std::to_string(i), optimizers_[i]->State());
      state.Merge("scheduler" + std::to_string(i), schedulers_[i]->State());
    }
    state.Merge("scaler", scaler_.State());
    state.Merge("ema", ema_.State());
    state.Bind("step", &step_);
    return state;
  }

  // The losses, weights, averages and states of optimizers.
  Outcome Result() {
    Outcome outcome;
    outcome.losses = losses_;
    const StateDict state = State();
    for (const StateEntry& entry : state.entries()) {
      const StateValue value = entry.Get();
      if (const auto* tensor = std::get_if<DTensor>(&value))
        outcome.parameters[entry.name] = FullTensor(*tensor).ToVector<double>();
      if (const auto* number = std::get_if<double>(&value))
        outcome.parameters[entry.name] = {*number};
    }
    return outcome;
  }

 private:
  DeviceMesh mesh_;
  Mlp model_;
  Optimizers optimizers_;
  std::vector<std::unique_ptr<optim::LrScheduler>> schedulers_;
  optim::GradScaler scaler_{{.initial_scale = 16, .growth_interval = 2}};
  optim::Ema ema_;
  int64_t step_ = 0;
  std::vector<double> losses_;
};

Outcome TrainWith(const DeviceMesh& mesh, const std::function<Optimizers(Mlp&)>& make) {
  Training training(mesh, make);
  for (int step = 0; step < kSteps; ++step) training.Step();
  return training.Result();
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

Optimizers MuonBesideAdamW(Mlp& model) {
  std::vector<nn::Parameter> matrices, rest;
  for (const nn::Parameter& p : model.Parameters())
    (optim::IsNormOrBias(p) ? rest : matrices).push_back(p);
  Optimizers optimizers;
  optimizers.push_back(std::make_unique<optim::Muon>(matrices, optim::MuonOptions{.lr = 0.02}));
  optimizers.push_back(std::make_unique<optim::AdamW>(rest, optim::AdamWOptions{.lr = 0.03}));
  return optimizers;
}

std::vector<std::function<Optimizers(Mlp&)>> Makers() {
  return {
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
      MuonBesideAdamW,
  };
}

TEST(Optimizers, TrainAlikeOnAllMeshes) {
  for (const auto& make : Makers()) {
    ExpectSameOnAllMeshes([&](const DeviceMesh& mesh) { return TrainWith(mesh, make); });
  }
}

// Half of the steps on one mesh, half on another, with a checkpoint between them.
TEST(Optimizers, GoOnFromACheckpointOnAnotherMesh) {
  int number = 0;
  for (const auto& make : Makers()) {
    const std::string folder = ::testing::TempDir() + "/optimizers_" + std::to_string(number++);
    ThrowIfError(RunRanks(3, [&](Communicator& world) {
      Training training(DeviceMesh::Create(world, {{"dp", 3}}), make);
      for (int step = 0; step < kSteps / 2; ++step) training.Step();
      ThrowIfError(checkpoint::Save(folder, training.State(), {.sync = false}));
    }));
    const auto second_half = [&](const DeviceMesh& mesh) {
      Training training(mesh, make);
      StateDict state = training.State();
      ThrowIfError(checkpoint::Load(folder, state));
      for (int step = kSteps / 2; step < kSteps; ++step) training.Step();
      return training.Result();
    };
    ExpectSameOnMeshes({{{"dp", 2}}, {{"dp", 2}, {"tp", 2}}}, second_half);
    // And that is what a training without a checkpoint has.
    ThrowIfError(RunRanks(1, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
      const Outcome whole = TrainWith(mesh, make), resumed = second_half(mesh);
      ASSERT_EQ(resumed.losses.size(), static_cast<size_t>(kSteps));
      EXPECT_LE(RelativeError(resumed.losses, {whole.losses.end() - kSteps, whole.losses.end()}),
                1e-12);
      for (const auto& [name, values] : whole.parameters) {
        EXPECT_LE(RelativeError(resumed.parameters.at(name), values), 1e-12) << name;
      }
    }));
  }
}

}  // namespace
}  // namespace shardmesh::testing
