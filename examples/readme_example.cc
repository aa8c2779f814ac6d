// SPDX-License-Identifier: Apache-2.0
//
// The program that the README shows, between the two marks; readme_test.sh keeps them the same.
// README begin
#include <iostream>
#include <numeric>

#include "shardmesh/shardmesh.h"

using namespace shardmesh;

int main() {
  absl::Status status = RunRanks(4, [](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
    models::Llama model({.vocab_size = 256,
                         .hidden_size = 64,
                         .intermediate_size = 192,
                         .num_hidden_layers = 2,
                         .num_attention_heads = 4});  // Shapes alone, no memory yet.
    tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan());
    for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
    fsdp::FullyShard(model, mesh);
    model.Initialize(/*seed=*/1);  // Each rank makes its own shards.
    optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});

    std::vector<int64_t> bytes(8 * 33);
    std::iota(bytes.begin(), bytes.end(), -4);
    for (int64_t& byte : bytes) byte = byte * byte % 251;
    DTensor batch = Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {8, 33}, bytes),
                               {Shard(0), Replicate()});
    DTensor inputs = Slice(batch, /*dim=*/1, 0, 32), targets = Slice(batch, /*dim=*/1, 1, 32);
    for (int step = 0; step < 30; ++step) {
      DTensor loss = nn::CrossEntropy(model(inputs), targets);
      Backward(loss);
      optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
      optimizer.Step();
      double value = Item(loss);  // The same on every rank, and on any other mesh.
      if (world.rank() == 0) std::cout << "step " << step << " loss " << value << "\n";
    }
  });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
// README end
