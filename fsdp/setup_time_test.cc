// SPDX-License-Identifier: Apache-2.0
//
// That the time to set up grows with the model, not with its square.
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

// Of instrumented code.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kSlowdown = 15;
#else
constexpr double kSlowdown = 1;
#endif

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

// A second on an idle machine at the most; more than ten if the time grew with the square.
TEST(SetupTime, OfTwoThousandUnitsIsShort) {
  const absl::Status status = RunRanks(1, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    const double seconds = SecondsToShard(mesh, 2000, 10);
    std::cout << "2,000 units with 20,000 parameters: " << seconds << " s\n";
    EXPECT_LT(seconds, 4 * kSlowdown);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(SetupTime, OfManyParametersOfOneModuleIsShort) {
  const double seconds = SecondsOf([] { Layer layer(80000); });
  std::cout << "80,000 parameters: " << seconds << " s\n";
  EXPECT_LT(seconds, 2 * kSlowdown);
}

}  // namespace
}  // namespace shardmesh::fsdp
