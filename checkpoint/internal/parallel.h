// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_PARALLEL_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_PARALLEL_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace shardmesh::checkpoint::internal {

/// Calls fn(0) to fn(count - 1), begun in this order, on at most `threads` threads, of which the
/// caller's is one. After a failure no further call begins. Returns the first failure by number,
/// whatever the threads do; what fn throws counts as one. If the system has no more threads, fewer
/// do it.
absl::Status ForEachInParallel(size_t count, int threads,
                               absl::FunctionRef<absl::Status(size_t)> fn);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_PARALLEL_H_
