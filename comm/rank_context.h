// SPDX-License-Identifier: Apache-2.0
//
// What a rank owns, whatever its world's backend: memory and threads, objects of the layers above,
// observers, time-out. All communicators of the rank refer to one.
#ifndef SHARDMESH_COMM_RANK_CONTEXT_H_
#define SHARDMESH_COMM_RANK_CONTEXT_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "shardmesh/base/type_map.h"
#include "shardmesh/comm/collective_event.h"
#include "shardmesh/comm/rank_lifetime.h"
#include "shardmesh/tensor/execution_context.h"

namespace shardmesh {

/// Belongs to the rank's thread, and outlives it for as long as works and groups refer to it.
struct RankContext {
  RankContext(int threads, absl::Duration timeout)
      : execution(Device::Cpu(), threads, Allocator::Create()), timeout(timeout) {}

  ExecutionContext execution;
  /// Per-rank objects of the layers above.
  TypeMap locals;
  /// Of collectives, in the order in which they were added.
  std::vector<CollectiveObserver*> observers;
  const absl::Duration timeout;
  bool synchronous = false;  ///< RunOptions::synchronous.
  /// Tells whether the rank still runs. Handles that may outlive the rank share it. Set on the
  /// thread of the rank.
  std::shared_ptr<RankLifetime> lifetime;
};

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_RANK_CONTEXT_H_
