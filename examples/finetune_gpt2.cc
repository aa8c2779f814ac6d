// SPDX-License-Identifier: Apache-2.0
//
// Teaches a small GPT-2 English, freezes it, and teaches it French through low-rank adapters and
// layer norms alone: FSDP and tensor parallelism on four ranks in this process.
//
//   bazel run //examples:finetune_gpt2
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/models/gpt2/gpt2.h"
#include "shardmesh/models/gpt2/gpt2_tp_plan.h"
#include "shardmesh/shardmesh.h"

namespace shardmesh {
namespace {

constexpr std::string_view kEnglish = "the cat sat on the mat and the dog sat on the rug. ";
constexpr std::string_view kFrench = "le chat est sur le tapis et le chien est sur la carpette. ";
constexpr int64_t kRows = 8, kLength = 32;
constexpr int kAdapterRank = 4;

/// The ranks run the same program; one of them talks.
void Say(const DeviceMesh& mesh, const std::string& text) {
  if (mesh.WorldGroup().rank() == 0) std::cout << text << "\n";
}

/// Bytes of `text`, which repeats for ever; each row begins elsewhere. Rows are sharded over dp.
DTensor Batch(const DeviceMesh& mesh, std::string_view text, int step) {
  std::vector<int64_t> bytes;
  for (int64_t row = 0; row < kRows; ++row) {
    const size_t start = 7 * row + 13 * step;
    for (size_t i = 0; i <= kLength; ++i) bytes.push_back(text[(start + i) % text.size()]);
  }
  return Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {kRows, kLength + 1}, bytes),
                    {Shard(0), Replicate()});
}

/// Trains `parameters` to predict the next byte. Reports the loss of the first and last steps.
void Train(models::Gpt2& model, const std::vector<nn::Parameter>& parameters, std::string_view text,
           int steps) {
  const DeviceMesh& mesh = parameters[0].mesh();
  optim::AdamW optimizer(parameters, {.lr = 1e-2});
  for (int step = 0; step < steps; ++step) {
    const DTensor batch = Batch(mesh, text, step);
    const DTensor loss = nn::CrossEntropy(model(Slice(batch, /*dim=*/1, 0, kLength)),
                                          Slice(batch, /*dim=*/1, 1, kLength));
    Backward(loss);
    optim::ClipGradNorm(parameters, /*max_norm=*/1.0);
    optimizer.Step();
    const double value = Item(loss);
    if (step == 0 || step + 1 == steps) Say(mesh, absl::StrCat("  step ", step, " loss ", value));
  }
}

int64_t NumElements(const std::vector<nn::Parameter>& parameters) {
  int64_t count = 0;
  for (const nn::Parameter& parameter : parameters) count += parameter.shape().NumElements();
  return count;
}

void Finetune(Communicator& world) {
  const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
  models::Gpt2 model({.vocab_size = 128,
                      .n_positions = kLength,
                      .n_embd = 48,
                      .n_layer = 2,
                      .n_head = 3,
                      .initializer_range = 0.1});
  tp::Parallelize(model, mesh, "tp", models::Gpt2TpPlan());
  for (models::Gpt2Block& block : model.blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);  // Or nn::LoadParameters, for weights of a file.

  const std::vector<nn::Parameter> base = model.Parameters();
  Say(mesh, absl::StrCat("English, ", NumElements(base), " parameters trained"));
  Train(model, base, kEnglish, /*steps=*/60);

  for (auto& [name, parameter] : model.NamedParameters()) {
    if (name.find(".ln_") == std::string::npos) parameter.set_requires_grad(false);
  }
  model.AddAdapters(kAdapterRank);
  model.PlaceReplicated(mesh);   // The adapters: they are too small to be worth sharding.
  model.Initialize(/*seed=*/2);  // The adapters: the others have values.

  std::vector<nn::Parameter> trained;
  for (const nn::Parameter& parameter : model.Parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  Say(mesh, absl::StrCat("French, ", NumElements(trained), " parameters trained"));
  Train(model, trained, kFrench, /*steps=*/120);
}

}  // namespace
}  // namespace shardmesh

int main() {
  const absl::Status status = shardmesh::RunRanks(4, shardmesh::Finetune);
  // Text that stdout did not take is a failure, too.
  if (status.ok() && std::cout.flush()) return EXIT_SUCCESS;
  std::cerr << "finetune_gpt2: " << (status.ok() ? "cannot write to stdout" : status.message())
            << std::endl;
  return EXIT_FAILURE;
}
