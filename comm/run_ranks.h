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

/// What RunRanks does about a rank that is still in the program's own code (an endless loop, a
/// blocked read) when the world has failed and a whole time-out has passed since. It cannot stop
/// the thread.
enum class StuckRanks {
  kWait,   ///< Says on stderr which rank it is and why the world failed, and waits for the rank.
  kAbort,  ///< Says so and aborts the process.
};

struct RunOptions {
  /// How long a rank waits for an absent peer. Must be positive and finite. Time in which the
  /// process was stopped does not count.
  absl::Duration timeout = absl::Minutes(5);
  /// Threads that work on one rank's kernels; 0: cores / ranks, at least one.
  int threads_per_rank = 0;
  /// Each collective is waited for where it is posted: for bisecting faults of order between
  /// groups.
  bool synchronous = false;
  StuckRanks stuck_ranks = StuckRanks::kWait;
  /// Of processes: whether a thread moves what is in flight while the rank computes. It needs a
  /// core for a moment every 50 us; without it data move when the rank posts, waits or polls.
  bool progress_thread = true;
};

namespace internal {
/// What is wrong with `options`, called by `function`.
absl::Status ValidateOptions(const char* function, const RunOptions& options);
}  // namespace internal

/// Runs `fn` on `num_ranks` threads, each with its own world communicator, and returns when all
/// have ended.
///
/// An exception that leaves `fn` on one rank fails the world: every other rank's pending or next
/// collective throws, and the Status names the first cause and its rank. An exception that is
/// caught inside `fn` fails nothing. A rank that returns while others wait for it fails the world
/// as well, and so does a collective that only some of its group have posted by the end. Works and
/// groups that outlive the run throw when they are used.
///
/// Memory: where there is none for a tensor, that is an Error (kResourceExhausted) like any other.
/// Where `operator new` finds none while RunRanks runs, the process ends with one line on stderr:
/// the library's own small objects cannot be half there. A program that installs a new-handler
/// (std::set_new_handler) before RunRanks keeps its own.
///
/// Errors: kInvalidArgument if num_ranks < 1 or an option is out of range; kResourceExhausted if a
/// thread cannot be started, naming the rank and threads_per_rank; else the first cause.
absl::Status RunRanks(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                      const RunOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_RUN_RANKS_H_
