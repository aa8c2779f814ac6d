// SPDX-License-Identifier: Apache-2.0
//
// The in-process world: ranks are threads of this process.
//
//   absl::Status status = RunRanks(4, [](Communicator& world) {
//     DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}});
//     ...
//   });
#ifndef SHARDMESH_COMM_RUN_RANKS_H_
#define SHARDMESH_COMM_RUN_RANKS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh {

struct RunOptions {
  /// How long a rank waits for an absent peer. Must be positive and finite.
  absl::Duration timeout = absl::Minutes(5);
  /// Threads that work on one rank's kernels; 0: cores / ranks, at least one.
  int threads_per_rank = 0;
  /// Each collective is waited for where it is posted: for bisecting faults of order between
  /// groups.
  bool synchronous = false;
};

/// Runs `fn` on `num_ranks` threads, each with its own world communicator, and returns when all
/// have ended.
///
/// An exception that leaves `fn` on one rank fails the world: every other rank's pending or next
/// collective throws, and the Status names the first cause and its rank. An exception that is
/// caught inside `fn` fails nothing. A rank that returns while others wait for it fails the world
/// as well.
/// Errors: kInvalidArgument if num_ranks < 1 or an option is out of range; else the first cause.
absl::Status RunRanks(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                      const RunOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_RUN_RANKS_H_
