// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi_world.h"
#include "shardmesh/comm/testing/world_under_test.h"

namespace shardmesh::testing {

// That of mpirun: the launcher runs the tests with several.
std::span<const int> WorldSizes() {
  static int size = 0;
  if (size == 0) {
    const absl::Status status = RunMpi([](Communicator& world) { size = world.size(); });
    if (!status.ok()) size = 1;
  }
  return {&size, 1};
}

// Does nothing with fewer processes than that: the run with more of them does.
absl::Status RunWorld(int size, absl::FunctionRef<void(Communicator& world)> fn) {
  if (size > WorldSizes()[0]) return absl::OkStatus();
  return RunMpi([&](Communicator& world) {
    if (world.size() == size) return fn(world);
    // Fewer ranks than processes: the first ones.
    const auto part = world.Split(world.rank() < size ? 0 : -1, world.rank(), "world");
    if (part != nullptr) fn(*part);
  });
}

}  // namespace shardmesh::testing
