// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/training/mesh_parity.h"

#include <gtest/gtest.h>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

constexpr double kTolerance = 1e-12;

std::vector<Outcome> RunOn(const MeshShape& shape,
                           const std::function<Outcome(const DeviceMesh& mesh)>& program) {
  std::vector<Outcome> outcomes(shape.NumRanks());
  const absl::Status status = RunRanks(static_cast<int>(outcomes.size()),
                                       [&](Communicator& world) {
                                         outcomes[world.rank()] =
                                             program(DeviceMesh::Create(world, shape));
                                       },
                                       {.timeout = absl::Minutes(1)});
  EXPECT_TRUE(status.ok()) << status;
  return outcomes;
}

void ExpectClose(const Outcome& actual, const Outcome& expected) {
  EXPECT_LE(RelativeError(actual.losses, expected.losses), kTolerance);
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, values] : expected.parameters) {
    ASSERT_TRUE(actual.parameters.contains(name)) << name;
    EXPECT_LE(RelativeError(actual.parameters.at(name), values), kTolerance) << name;
  }
}

}  // namespace

void ExpectSameOnAllMeshes(const std::function<Outcome(const DeviceMesh& mesh)>& program) {
  ExpectSameOnMeshes({{{"dp", 1}},
                      {{"dp", 2}},
                      {{"dp", 3}},
                      {{"dp", 4}},
                      {{"dp", 2}, {"tp", 2}},
                      {{"dp_replicate", 2}, {"dp", 2}}},
                     program);
}

void ExpectSameOnMeshes(const std::vector<MeshShape>& shapes,
                        const std::function<Outcome(const DeviceMesh& mesh)>& program) {
  const Outcome expected = RunOn({}, program)[0];
  ASSERT_FALSE(expected.losses.empty());
  for (const MeshShape& shape : shapes) {
    SCOPED_TRACE(shape.ToString());
    const std::vector<Outcome> outcomes = RunOn(shape, program);
    ExpectClose(outcomes[0], expected);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.losses, outcomes[0].losses);
      EXPECT_EQ(outcome.parameters, outcomes[0].parameters);
    }
  }
}

void ShardUnit(nn::Module& module, const DeviceMesh& mesh) {
  if (!mesh.shape().Has("dp")) return;
  fsdp::FullyShard(module, mesh);
}

DTensor RandomRows(const DeviceMesh& mesh, const Dims& shape, uint64_t seed) {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  }
  return FromBoxes(mesh, shape, DType::kF64, placements, [&](const Box& box, Tensor& local) {
    ops::RandomNormal(mesh.context(), RandomKey{.seed = seed},
                      RandomBox{.global_shape = shape, .begin = box.begin}, 0, 1, local);
  });
}

Outcome Train(nn::Module& model, int steps, const std::function<DTensor(int step)>& loss,
              const std::function<void()>& after_step) {
  optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const DTensor value = loss(step);
    Backward(value);
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    optimizer.Step();
    outcome.losses.push_back(Item(value));
    after_step();
  }
  for (const auto& [name, parameter] : model.NamedParameters()) {
    outcome.parameters[name] = FullTensor(parameter.data()).ToVector<double>();
  }
  return outcome;
}

}  // namespace shardmesh::testing
