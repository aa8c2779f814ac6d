// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/training/llama_run.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/models/llama/llama_tp_plan.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

void MakeValues(models::Llama& model, const LlamaRunOptions& options) {
  if (options.weights.empty()) {
    model.Initialize(options.seed);
    return;
  }
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(options.weights);
  ThrowIfError(reader.status());
  ThrowIfError(nn::LoadParameters(model, *reader, {.allow_cast = true}));
}

NamedValues FullParameters(const models::Llama& model) {
  NamedValues values;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    values[name] = FullTensor(parameter.data()).ToVector<double>();
  }
  return values;
}

NamedValues FullGradients(const models::Llama& model) {
  NamedValues values;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    values[name] = FullTensor(parameter.data().grad()).ToVector<double>();
  }
  return values;
}

LlamaRun RunOnRank(Communicator& world, const LlamaRunOptions& options) {
  DeviceMesh mesh = DeviceMesh::Create(world, options.mesh);
  models::Llama model(options.config, {.device = Device::Meta(), .dtype = options.dtype});
  ParallelizeLlama(model, mesh, options);
  MakeValues(model, options);
  optim::AdamW optimizer(model.Parameters(), {.lr = options.lr(0),
                                              .beta1 = options.beta1,
                                              .beta2 = options.beta2,
                                              .weight_decay = options.weight_decay});
  LlamaRun run;
  run.initial = FullParameters(model);
  for (int step = 0; step < options.steps; ++step) {
    const TokenBatch batch = options.batch(step);
    const DTensor logits = model(ShardedTokens(mesh, batch.rows, batch.length, batch.ids));
    const DTensor loss =
        CrossEntropy(logits, ShardedTokens(mesh, batch.rows, batch.length, batch.targets));
    Backward(loss);
    if (step == 0) {
      run.logits = FullTensor(logits).ToVector<double>();
      run.gradients = FullGradients(model);
    }
    run.grad_norms.push_back(optim::ClipGradNorm(model.Parameters(), options.max_norm));
    optimizer.set_lr(options.lr(step));
    optimizer.Step();
    run.losses.push_back(Item(loss));
    if (options.after_step) options.after_step(mesh, model, step);
  }
  run.final = FullParameters(model);
  return run;
}

// "" or what differs.
std::string Difference(const LlamaRun& a, const LlamaRun& b) {
  if (a.losses != b.losses) return "losses";
  if (a.grad_norms != b.grad_norms) return "gradient norms";
  if (a.logits != b.logits) return "logits";
  for (const auto& [name, values] : a.gradients) {
    if (b.gradients.at(name) != values) return "gradient of " + name;
  }
  for (const auto& [name, values] : a.final) {
    if (b.final.at(name) != values) return "final " + name;
  }
  return "";
}

}  // namespace

void ParallelizeLlama(models::Llama& model, const DeviceMesh& mesh,
                      const LlamaRunOptions& options) {
  if (mesh.shape().Has("tp")) {
    tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan(options.sequence_parallel));
  }
  fsdp::FullyShardOptions fsdp_options;
  fsdp_options.shard_axes.emplace();
  if (mesh.shape().Has("dp")) fsdp_options.shard_axes = {"dp"};
  if (options.bf16) fsdp_options.mixed_precision.param_dtype = DType::kBF16;
  for (models::LlamaBlock& block : model.Blocks()) fsdp::FullyShard(block, mesh, fsdp_options);
  fsdp::FullyShard(model, mesh, fsdp_options);
}

DTensor ShardedTokens(const DeviceMesh& mesh, int64_t rows, int64_t length,
                      const std::vector<int64_t>& values) {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  }
  return FromBoxes(mesh, {rows, length}, DType::kI64, placements,
                   [&](const Box& box, Tensor& local) {
                     const auto first = values.begin() + box.begin[0] * length;
                     std::copy(first, first + local.NumElements(), local.mutable_data<int64_t>());
                   });
}

absl::StatusOr<LlamaRun> RunLlama(const LlamaRunOptions& options) {
  std::vector<LlamaRun> runs(options.mesh.NumRanks());
  const absl::Status status =
      RunRanks(static_cast<int>(options.mesh.NumRanks()),
               [&](Communicator& world) { runs[world.rank()] = RunOnRank(world, options); },
               {.timeout = absl::Minutes(2), .synchronous = options.synchronous});
  if (!status.ok()) return status;
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    const std::string difference = Difference(runs[0], runs[rank]);
    if (!difference.empty()) {
      return absl::InternalError(absl::StrCat("ranks 0 and ", rank, " differ: ", difference));
    }
  }
  return std::move(runs[0]);
}

LlamaRunOptions ThreeLayers(const MeshShape& mesh, int64_t vocab_size) {
  LlamaRunOptions options;
  options.config.vocab_size = vocab_size;
  options.config.hidden_size = 24;
  options.config.intermediate_size = 38;
  options.config.num_hidden_layers = 3;
  options.config.num_attention_heads = 4;
  options.config.num_key_value_heads = 2;
  options.mesh = mesh;
  return options;
}

std::vector<int64_t> StridedIds(int64_t count, int64_t stride, int64_t vocab_size) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((i * stride + 5) % vocab_size);
  return ids;
}

double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return HUGE_VAL;
  double difference = 0, magnitude = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    difference = std::isnan(d) ? HUGE_VAL : std::max(difference, d);
    magnitude = std::max(magnitude, std::abs(expected[i]));
  }
  return magnitude == 0 ? difference : difference / magnitude;
}

}  // namespace shardmesh::testing
