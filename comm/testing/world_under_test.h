// SPDX-License-Identifier: Apache-2.0
//
// What the conformance tests need of a backend. Each backend links the same tests with an
// implementation of its own.
#ifndef SHARDMESH_COMM_TESTING_WORLD_UNDER_TEST_H_
#define SHARDMESH_COMM_TESTING_WORLD_UNDER_TEST_H_

#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh::testing {

/// World sizes to test.
std::span<const int> WorldSizes();

/// Runs `fn` as every rank of a world of `size`.
absl::Status RunWorld(int size, absl::FunctionRef<void(Communicator& world)> fn);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_COMM_TESTING_WORLD_UNDER_TEST_H_
