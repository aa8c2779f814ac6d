// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/comm/testing/world_under_test.h"

namespace shardmesh::testing {

std::span<const int> WorldSizes() {
  static constexpr std::array<int, 9> kSizes = {1, 2, 3, 4, 5, 6, 7, 8, 11};
  return kSizes;
}

absl::Status RunWorld(int size, absl::FunctionRef<void(Communicator& world)> fn) {
  return RunRanks(size, fn);
}

}  // namespace shardmesh::testing
