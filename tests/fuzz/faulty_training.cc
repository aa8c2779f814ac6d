// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/faulty_training.h"

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/comm/testing/failing_system.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kRows = 5, kLength = 6, kVocabulary = 23;

LlamaRunOptions OptionsOf(const TrainingSetup& setup) {
  LlamaRunOptions options;
  options.config.vocab_size = kVocabulary;
  options.config.hidden_size = 12;
  options.config.intermediate_size = 14;
  options.config.num_hidden_layers = 2;
  options.config.num_attention_heads = 2;
  options.mesh = {{"dp", setup.dp}, {"tp", setup.tp}};
  options.sequence_parallel = setup.sequence_parallel;
  options.bf16 = setup.bf16;
  return options;
}

// Points before and after every module's forward and where the gradient of its output arrives.
void AddPoints(models::Llama& model, FaultInjector& injector) {
  for (const auto& [name, module] : model.NamedModules()) {
    module->AddForwardPreHook([&injector](nn::Module&, nn::Inputs&) { injector.Pass(); });
    module->AddForwardHook([&injector](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
      injector.Pass();
      if (!outputs[0].RequiresGrad()) return;
      outputs[0].RegisterGradHook([&injector](const DTensor& grad) {
        injector.Pass();
        return grad;
      });
      outputs[0] = WithBackwardCallback(outputs[0], [&injector] { injector.Pass(); });
    });
  }
}

class Training {
 public:
  Training(Communicator& world, const TrainingSetup& setup, const Fault& fault,
           std::atomic<bool>& has_fired)
      : options_(OptionsOf(setup)),
        mesh_(DeviceMesh::Create(world, options_.mesh)),
        injector_(mesh_, world.rank(), fault, has_fired),
        model_(options_.config) {
    injector_.Pass();
    ParallelizeLlama(model_, mesh_, options_);
    AddPoints(model_, injector_);
    model_.Initialize(7);
    injector_.Pass();
  }

  // Losses, then all parameters.
  std::vector<double> Run() {
    optim::AdamW optimizer(model_.Parameters(), {.lr = 0.02});
    std::vector<double> values;
    for (int step = 0; step < kSteps; ++step) {
      injector_.PostBenign(step);
      DTensor loss;
      try {
        loss = ForwardAndBackward(step);
      } catch (const Retry&) {
        loss = ForwardAndBackward(step);
      }
      optim::ClipGradNorm(model_.Parameters(), 1.0);
      injector_.Pass();
      optimizer.Step();
      injector_.Pass();
      values.push_back(Item(loss));
    }
    for (const auto& [name, parameter] : model_.NamedParameters()) {
      const std::vector<double> full = FullTensor(parameter.data()).ToVector<double>();
      values.insert(values.end(), full.begin(), full.end());
    }
    injector_.Pass();
    return values;
  }

  int num_points() const { return injector_.num_points(); }

 private:
  DTensor ForwardAndBackward(int step) {
    // A module whose first forward throws cannot be used again.
    injector_.AllowRetry(step > 0);
    injector_.Pass();
    const DTensor ids =
        ShardedTokens(mesh_, kRows, kLength, StridedIds(kRows * kLength, 7 + step, kVocabulary));
    const DTensor targets =
        ShardedTokens(mesh_, kRows, kLength, StridedIds(kRows * kLength, 11 + step, kVocabulary));
    const DTensor loss = CrossEntropy(model_(ids), targets);
    injector_.Pass();
    Backward(loss);
    injector_.AllowRetry(false);
    injector_.Pass();
    return loss;
  }

  const LlamaRunOptions options_;
  const DeviceMesh mesh_;
  FaultInjector injector_;
  models::Llama model_;
};

}  // namespace

std::string TrainingSetup::ToString() const {
  return absl::StrCat("dp=", dp, " tp=", tp, sequence_parallel ? " sequence_parallel" : "",
                      bf16 ? " bf16" : "", " threads=", threads_per_rank);
}

TrainingResult TrainWithFault(const TrainingSetup& setup, const Fault& fault) {
  TrainingResult result;
  result.by_rank.resize(setup.NumRanks());
  result.values.resize(setup.NumRanks());
  std::atomic<bool> has_fired = false;
  std::atomic<int> num_points = 0;
  const auto train = [&](Communicator& world) {
    try {
      Training training(world, setup, fault, has_fired);
      result.values[world.rank()] = training.Run();
      if (world.rank() == 0) num_points = training.num_points();
    } catch (const Leave&) {
    } catch (...) {
      result.by_rank[world.rank()] = StatusOf(std::current_exception());
      throw;
    }
  };
  if (fault.kind == FaultKind::kNoThreads) threads_left = fault.variant;
  result.status = RunRanks(setup.NumRanks(), train,
                           {.timeout = setup.timeout, .threads_per_rank = setup.threads_per_rank});
  threads_left = kUnlimited;
  result.has_fired = has_fired;
  result.num_points = num_points;
  return result;
}

}  // namespace shardmesh::testing
