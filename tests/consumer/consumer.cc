// SPDX-License-Identifier: Apache-2.0
//
// A project of its own that uses Shardmesh, and owns a header with the path of one of Shardmesh's.
#include <iostream>

#include "mesh/device_mesh.h"
#include "shardmesh/shardmesh.h"

int main() {
  const consumer::DeviceMesh own{.triangles = 12};
  double sum = 0;
  const absl::Status status = shardmesh::RunRanks(3, [&](shardmesh::Communicator& world) {
    const auto mesh = shardmesh::DeviceMesh::Create(world, {{"dp", 3}});
    const std::vector<float> values = {1, -2, 4, -8, 16};
    const auto full = shardmesh::Tensor::FromValues<float>(mesh.context(), {5}, values);
    const shardmesh::DTensor x = shardmesh::Distribute(mesh, full, {shardmesh::Shard(0)});
    const double total = shardmesh::Item(shardmesh::Sum(x));  // The same on every rank.
    if (world.rank() == 0) sum = total;
  });
  std::cout << "a mesh of " << own.triangles << " triangles; a sum over three ranks of " << sum
            << "\n";
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() && own.triangles == 12 && sum == 11 ? 0 : 1;
}
