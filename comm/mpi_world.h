// SPDX-License-Identifier: Apache-2.0
//
// A world of MPI processes. A program that has been started by mpirun calls, in every process:
//
//   absl::Status status = RunMpi([](Communicator& world) { ... });
#ifndef SHARDMESH_COMM_MPI_WORLD_H_
#define SHARDMESH_COMM_MPI_WORLD_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {

/// Runs `fn` as this process's rank of MPI_COMM_WORLD. All its processes must call, and may call
/// again. What RunRanks says of exceptions, early returns, time-outs and memory holds; the Status
/// names the same first cause on all ranks that are left, and what it kept this one from.
/// RunOptions::stuck_ranks does not apply.
///
/// Initialises MPI (MPI_THREAD_MULTIPLE) if the program has not, and then calls MPI_Finalize when
/// the program ends; not after a rank was lost, as that would wait for it.
///
/// A process that is killed is found within about a second by those that wait for it on the same
/// host; one of another host, or one that is stopped, by the time-out.
/// Errors: as RunRanks; kUnavailable in a build without --config=mpi, and naming the process if one
/// has died.
absl::Status RunMpi(absl::FunctionRef<void(Communicator& world)> fn,
                    const RunOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_MPI_WORLD_H_
