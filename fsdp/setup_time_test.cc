// SPDX-License-Identifier: Apache-2.0
//
// That setting up grows with the model, not with its square.
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::fsdp {
namespace {

struct Layer : nn::Module {
  explicit Layer(int parameters) {
    for (int i = 0; i < parameters; ++i)
      RegisterParameter("w" + std::to_string(i), {3}, DType::kF32, nn::Init::Constant(0));
  }
  nn::Outputs Forward(const nn::Inputs& inputs) override { return {inputs[0]}; }
};

struct Model : nn::Module {
  Model(int num_layers, int parameters) {
    for (int i = 0; i < num_layers; ++i) {
      layers.push_back(std::make_unique<Layer>(parameters));
      RegisterChild("layer" + std::to_string(i), *layers.back());
    }
  }
  nn::Outputs Forward(const nn::Inputs& inputs) override { return {inputs[0]}; }
  std::vector<std::unique_ptr<Layer>> layers;
};

template <typename Fn>
double SecondsOf(const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double SecondsToShard(const DeviceMesh& mesh, int units, int parameters) {
  return SecondsOf([&] {
    Model model(units, parameters);
    for (const auto& layer : model.layers) FullyShard(*layer, mesh);
    FullyShard(model, mesh);
    model.Initialize(1);
  });
}

TEST(SetupTime, GrowsWithTheNumberOfUnits) {
  const absl::Status status = RunRanks(1, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    SecondsToShard(mesh, 100, 10);  // Warms up.
    const double some = SecondsToShard(mesh, 500, 10), more = SecondsToShard(mesh, 2000, 10);
    std::cout << "500 units " << some << " s, 2,000 units with 20,000 parameters " << more
              << " s\n";
    EXPECT_LT(more, 10 * some);  // Four times as much; sixteen if it were quadratic.
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(SetupTime, GrowsWithTheNumberOfParametersOfAModule) {
  const auto seconds = [](int parameters) { return SecondsOf([&] { Layer layer(parameters); }); };
  seconds(10000);
  const double some = seconds(10000), more = seconds(80000);
  std::cout << "10,000 parameters " << some << " s, 80,000 " << more << " s\n";
  EXPECT_LT(more, 24 * some);  // Eight times as much; 64 if it were quadratic.
}

}  // namespace
}  // namespace shardmesh::fsdp
