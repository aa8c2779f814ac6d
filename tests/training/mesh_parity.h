// SPDX-License-Identifier: Apache-2.0
//
// Runs one training program on six meshes and compares it with one rank without FullyShard.
//
//   TEST(Mlp, TrainsAlikeOnAllMeshes) {
//     ExpectSameOnAllMeshes([](const DeviceMesh& mesh) {
//       Mlp model;
//       ShardUnit(model, mesh);
//       model.PlaceReplicated(mesh);
//       model.Initialize(/*seed=*/1);
//       return Train(model, /*steps=*/5, [&](int step) { return Sum(model(Batch(mesh, step))); });
//     });
//   }
#ifndef SHARDMESH_TESTS_TRAINING_MESH_PARITY_H_
#define SHARDMESH_TESTS_TRAINING_MESH_PARITY_H_

#include <functional>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {

/// What must not depend on the mesh.
struct Outcome {
  std::vector<double> losses;
  NamedValues parameters;  ///< Full tensors, after the last step.
};

/// Expects the losses and parameters that `program` has on a mesh without axes on every rank of
///
///   [dp=1]  [dp=2]  [dp=3]  [dp=4]  [dp=2, tp=2]  [dp_replicate=2, dp=2]
///
/// up to 1e-12 of the largest magnitude, and the same bits on all ranks of a mesh.
void ExpectSameOnAllMeshes(const std::function<Outcome(const DeviceMesh& mesh)>& program);

/// The same on other meshes.
void ExpectSameOnMeshes(const std::vector<MeshShape>& shapes,
                        const std::function<Outcome(const DeviceMesh& mesh)>& program);

/// FullyShard along dp and dp_replicate; nothing on a mesh without axes.
void ShardUnit(nn::Module& module, const DeviceMesh& mesh);

/// f64, sharded by rows over the data-parallel axes: the same values for the same `seed` on every
/// mesh.
DTensor RandomRows(const DeviceMesh& mesh, const Dims& shape, uint64_t seed);

/// AdamW steps with clipping on `loss(step)`.
Outcome Train(
    nn::Module& model, int steps, const std::function<DTensor(int step)>& loss,
    const std::function<void()>& after_step = [] {});

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_TRAINING_MESH_PARITY_H_
