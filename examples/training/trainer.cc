// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/trainer.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/reshard_policy.h"
#include "shardmesh/examples/training/rank_exchange.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/models/llama/llama_tp_plan.h"
#include "shardmesh/nn/loss.h"
#include "shardmesh/nn/state.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tensor/time_profile.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::examples {
namespace {

const TrainOptions& Checked(const TrainOptions& options, const ByteText& text) {
  ThrowIfError(options.Validate());
  ThrowIfError(text.CheckHolds(options.sequence));
  return options;
}

void Parallelize(models::Llama& model, const DeviceMesh& mesh, const TrainOptions& options) {
  if (mesh.shape().Has("tp")) {
    tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan(options.sequence_parallel));
  }
  fsdp::FullyShardOptions fsdp;
  fsdp.shard_axes.emplace();  // Without a dp axis nothing is sharded.
  if (mesh.shape().Has("dp")) fsdp.shard_axes = {"dp"};
  if (options.precision == Precision::kBF16) {
    fsdp.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
  }
  for (models::LlamaBlock& block : model.Blocks()) fsdp::FullyShard(block, mesh, fsdp);
  fsdp::FullyShard(model, mesh, fsdp);
}

DType ParameterDType(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// Divides wall time into phases.
class PhaseClock {
 public:
  explicit PhaseClock(StepMetrics& metrics) : metrics_(metrics) {}

  /// Ends the phase that began at the last call.
  void EndOf(const char* phase) {
    const Clock::time_point now = Clock::now();
    const double ms = Milliseconds(now - begin_);
    begin_ = now;
    metrics_.phases.emplace_back(phase, ms);
    metrics_.step_ms += ms;
  }

 private:
  StepMetrics& metrics_;
  Clock::time_point begin_ = Clock::now();
};

Breakdown ActivitiesOf(const TimeProfile& profile, double total_ms) {
  Breakdown activities = {{"GEMM", Milliseconds(profile.time(TimeKind::kGemm))},
                          {"other kernels", Milliseconds(profile.time(TimeKind::kOtherKernels))},
                          {"communication", Milliseconds(profile.time(TimeKind::kCommunication))}};
  for (const auto& [what, ms] : activities) total_ms -= ms;
  activities.emplace_back("dispatch", total_ms);
  return activities;
}

}  // namespace

Trainer::Trainer(Communicator& world, const TrainOptions& options, const ByteText& text)
    : world_(world),
      options_(Checked(options, text)),
      text_(text),
      mesh_(DeviceMesh::Create(world, options.mesh)),
      model_(options.model, {.dtype = ParameterDType(options.precision)}),
      parameters_(model_.Parameters()),
      optimizer_(parameters_, options.optimizer),
      schedule_{.peak_lr = options.optimizer.lr,
                .total_steps = options.steps,
                .warmup_steps = options.warmup_steps,
                .min_ratio = options.min_lr_ratio} {
  Parallelize(model_, mesh_, options_);
  model_.Initialize(options_.seed);
}

StateDict Trainer::State() {
  StateDict state;
  state.Merge("model", nn::State(model_));
  state.Merge("optim", optimizer_.State());
  state.Bind("run.next_step", &next_step_);
  // The number of steps may grow; that the schedule stretches is what was asked for.
  StateEntry options;
  options.name = "run.options";
  options.value =
      absl::StrCat("seed=", options_.seed, " batch=", options_.batch, " seq=", options_.sequence,
                   " precision=", UnparsePrecision(options_.precision));
  options.set = [expected = std::get<std::string>(options.value)](StateValue value) {
    if (std::get<std::string>(value) == expected) return;
    Throw(absl::StatusCode::kFailedPrecondition, "the checkpoint is of a run with ",
          std::get<std::string>(value), ", and this one has ", expected);
  };
  state.Add(std::move(options));
  return state;
}

DTensor Trainer::Loss(const Batch& batch) {
  DTensor logits = model_(batch.inputs);
  // The loss is computed in f32, as bf16 has three digits only.
  if (options_.precision == Precision::kBF16) logits = Cast(logits, DType::kF32);
  return nn::CrossEntropy(logits, batch.targets);
}

DTensor Trainer::Update(const Batch& batch, StepMetrics& metrics) {
  const ReshardPolicyScope policy(
      mesh_, options_.explicit_moves ? ReshardPolicy::kExplicit : ReshardPolicy::kAuto);
  const CommTrace trace(mesh_);
  const TimeProfile profile(world_.context());
  PhaseClock clock(metrics);
  DTensor loss = Loss(batch);
  clock.EndOf("forward and loss");
  Backward(loss);
  clock.EndOf("backward");
  metrics.grad_norm = optim::ClipGradNorm(parameters_, options_.max_grad_norm);
  clock.EndOf("clip");
  optimizer_.Step();
  clock.EndOf("optimizer");
  metrics.activities = ActivitiesOf(profile, metrics.step_ms);
  metrics.traffic = TotalsOf(trace);
  return loss;
}

StepMetrics Trainer::Step() {
  const int64_t step = next_step_++;
  const Batch batch =
      MakeBatch(mesh_, text_, {options_.batch, options_.sequence}, options_.seed, step);
  optimizer_.set_lr(schedule_.At(step));
  world_.context().allocator()->ResetPeaks();
  StepMetrics metrics;
  metrics.step = step;
  metrics.lr = optimizer_.lr();
  world_.Barrier("step");  // So that times do not include waiting for other ranks to begin.
  const DTensor loss = Update(batch, metrics);
  const auto peak = static_cast<double>(world_.context().allocator()->total().peak_bytes);

  metrics.loss = Item(loss);
  for (const std::vector<double>& rank : GatherFromRanks(world_, {metrics.step_ms, peak})) {
    metrics.step_ms = std::max(metrics.step_ms, rank[0]);
    metrics.peak_bytes.push_back(static_cast<int64_t>(rank[1]));
  }
  metrics.tokens_per_s =
      static_cast<double>(options_.batch * options_.sequence) / (metrics.step_ms * 1e-3);
  return metrics;
}

std::vector<std::vector<int64_t>> Trainer::MemoryPeaks() {
  std::vector<double> own;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    own.push_back(static_cast<double>(world_.context().allocator()->stats(category).peak_bytes));
  }
  std::vector<std::vector<int64_t>> rows;
  for (const std::vector<double>& rank : GatherFromRanks(world_, own)) {
    rows.emplace_back(rank.begin(), rank.end());
  }
  return rows;
}

}  // namespace shardmesh::examples
