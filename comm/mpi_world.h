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

/// Runs `fn` as this process's rank of MPI_COMM_WORLD.
/// Errors: kUnavailable in a build without --config=mpi; kUnimplemented with it, as the backend is
/// still to come.
absl::Status RunMpi(absl::FunctionRef<void(Communicator& world)> fn,
                    const RunOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_MPI_WORLD_H_
