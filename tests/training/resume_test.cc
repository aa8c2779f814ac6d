// SPDX-License-Identifier: Apache-2.0
//
// A training that moves to another number of ranks: five steps on four ranks, then on with what was
// saved, under FullyShard and tensor parallelism, with AdamW, a schedule, clipping and dropout. It
// computes what the training computes that never stopped.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/dropout.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/state.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/lr_scheduler.h"
#include "shardmesh/tests/training/mesh_parity.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kInputs = 7, kHidden = 13, kOutputs = 3, kRows = 11;
constexpr int kSteps = 10, kSavedAfter = 5;
constexpr double kTolerance = 1e-12;
constexpr nn::LinearOptions kLinear = {
    .bias = true, .dtype = DType::kF64, .weight_init = {nn::Init::Kind::kNormal, 0, 0.4}};

class Mlp : public nn::Module {
 public:
  explicit Mlp(const DeviceMesh& mesh) {
    RegisterChild("norm", norm_);
    RegisterChild("up", up_);
    RegisterChild("dropout", dropout_);
    RegisterChild("down", down_);
    if (mesh.shape().Has("tp"))
      tp::Parallelize(*this, mesh, "tp", {{"up", tp::Colwise()}, {"down", tp::Rowwise()}});
    ShardUnit(up_, mesh);
    ShardUnit(*this, mesh);
    PlaceReplicated(mesh);
    Initialize(/*seed=*/1);
  }

 protected:
  Outputs Forward(const Inputs& x) override { return down_(dropout_(Tanh(up_(norm_(x[0]))))); }

 private:
  nn::LayerNorm norm_{kInputs, /*eps=*/1e-5, DType::kF64};
  nn::Linear up_{kInputs, kHidden, kLinear};
  nn::Dropout dropout_{0.3};
  nn::Linear down_{kHidden, kOutputs, kLinear};
};

class Training {
 public:
  explicit Training(const DeviceMesh& mesh) : mesh_(mesh), model_(mesh) {}

  StateDict State() {
    StateDict state;
    state.Merge("model", nn::State(model_));
    state.Merge("optim", optimizer_.State());
    state.Merge("scheduler", scheduler_.State());
    state.Bind("step", &step_);
    return state;
  }

  // Up to step `end`; the losses of these steps.
  Outcome RunTo(int end) {
    Outcome outcome;
    while (step_ < end) {
      const auto seed = static_cast<uint64_t>(step_++);
      const DTensor x = RandomRows(mesh_, {kRows, kInputs}, seed);
      const DTensor target = RandomRows(mesh_, {kRows, kOutputs}, 100 + seed);
      const DTensor loss = MseLoss(model_(x), target);
      outcome.losses.push_back(Item(loss));
      Backward(loss);
      optim::ClipGradNorm(model_.Parameters(), /*max_norm=*/1.0);
      optimizer_.Step();
      scheduler_.Step();
    }
    const StateDict state = State();
    for (const StateEntry& entry : state.entries()) {
      const StateValue value = entry.Get();
      if (const auto* tensor = std::get_if<DTensor>(&value))
        outcome.parameters[entry.name] = FullTensor(*tensor).ToVector<double>();
    }
    return outcome;
  }

  int64_t step() const { return step_; }

 private:
  DeviceMesh mesh_;
  Mlp model_;
  optim::AdamW optimizer_{model_.Parameters(), {.lr = 0.03, .weight_decay = 0.1}};
  optim::LrScheduler scheduler_{
      optimizer_, optim::WsdSchedule{.total_steps = kSteps, .warmup_steps = 3, .decay_steps = 3}};
  int64_t step_ = 0;
};

Outcome OnRanks(const MeshShape& shape,
                const std::function<Outcome(const DeviceMesh& mesh)>& program) {
  std::vector<Outcome> outcomes(shape.NumRanks());
  ThrowIfError(RunRanks(static_cast<int>(outcomes.size()), [&](Communicator& world) {
    outcomes[world.rank()] = program(DeviceMesh::Create(world, shape));
  }));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.losses, outcomes[0].losses);
  return outcomes[0];
}

TEST(Resume, FiveStepsOnFourRanksGoOnOnAnyOtherMesh) {
  const std::string folder = ::testing::TempDir() + "/resume";
  const MeshShape four = {{"dp", 4}};
  const Outcome whole =
      OnRanks(four, [](const DeviceMesh& mesh) { return Training(mesh).RunTo(kSteps); });
  ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSteps));
  const Outcome first = OnRanks(four, [&](const DeviceMesh& mesh) {
    Training training(mesh);
    Outcome outcome = training.RunTo(kSavedAfter);
    ThrowIfError(checkpoint::Save(folder, training.State(), {.overwrite = true, .sync = false}));
    return outcome;
  });
  EXPECT_EQ(first.losses, std::vector<double>(whole.losses.begin(), whole.losses.begin() + 5));

  const std::vector<double> expected(whole.losses.begin() + kSavedAfter, whole.losses.end());
  const std::vector<MeshShape> meshes = {
      {{"dp", 4}}, {{"dp", 6}}, {{"dp", 3}}, {{"dp", 1}}, {{"dp", 2}, {"tp", 2}}};
  for (const MeshShape& shape : meshes) {
    for (const bool share : {false, true}) {
      SCOPED_TRACE(shape.ToString());
      const Outcome resumed = OnRanks(shape, [&](const DeviceMesh& mesh) {
        Training training(mesh);
        StateDict state = training.State();
        ThrowIfError(checkpoint::Load(folder, state, {.share_reads = share}));
        EXPECT_EQ(training.step(), kSavedAfter);
        return training.RunTo(kSteps);
      });
      EXPECT_LE(RelativeError(resumed.losses, expected), kTolerance);
      ASSERT_EQ(resumed.parameters.size(), whole.parameters.size());
      for (const auto& [name, values] : whole.parameters) {
        EXPECT_LE(RelativeError(resumed.parameters.at(name), values), kTolerance) << name;
        // Bit for bit on the same mesh.
        if (shape == four) {
          EXPECT_EQ(resumed.parameters.at(name), values) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::testing
