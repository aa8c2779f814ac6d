// SPDX-License-Identifier: Apache-2.0
//
// Writes what tools in Python then read (check.py): a model of Hugging Face's, saved by boxes and
// exported whole, from four ranks.
//
//   write_checkpoints GOLDEN_DIR OUT_DIR
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/export.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/models/llama/llama.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/nn/state.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh {
namespace {

void ThrowIfFailed(const absl::Status& status) {
  if (!status.ok()) Throw(status.code(), std::string(status.message()));
}

void Write(Communicator& world, const std::string& golden, const std::string& out) {
  std::ifstream file(golden + "/config.json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  absl::StatusOr<models::LlamaConfig> config = models::LlamaConfig::FromJson(json);
  ThrowIfFailed(config.status());
  const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
  models::Llama model(*config);
  testing::LlamaRunOptions options;
  options.config = *config;
  options.mesh = mesh.shape();
  testing::ParallelizeLlama(model, mesh, options);
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(golden + "/model.safetensors");
  ThrowIfFailed(reader.status());
  ThrowIfFailed(nn::LoadParameters(model, *reader));
  StateDict state = nn::State(model);
  checkpoint::ExportOptions exported;
  exported.max_file_bytes = 20000;
  exported.texts = {{"config.json", json}};
  ThrowIfFailed(checkpoint::ExportHuggingFace(out + "/exported", state, exported));
  // What else a run keeps: a small tensor, a tensor of which some ranks have nothing, values.
  state.Add("optim.state.embed.exp_avg",
            Full(mesh, {3, 5}, DType::kF64, 0.25, {Shard(0), Shard(1)}));
  state.Add("one", Full(mesh, {1, 7}, DType::kF32, -2.0, {Shard(0), Shard(0)}));
  state.Add("step", int64_t{7});
  ThrowIfFailed(checkpoint::Save(out + "/saved", state));
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: write_checkpoints GOLDEN_DIR OUT_DIR\n";
    return EXIT_FAILURE;
  }
  const absl::Status status = shardmesh::RunRanks(
      4, [&](shardmesh::Communicator& world) { shardmesh::Write(world, argv[1], argv[2]); });
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status << "\n";
  return EXIT_FAILURE;
}
