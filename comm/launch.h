// SPDX-License-Identifier: Apache-2.0
//
// One program for threads and for processes.
//
//   ./program                  # RunRanks: four threads of this process
//   mpirun -n 4 ./program      # RunMpi: four processes
//
//   absl::Status status = Launch(4, [](Communicator& world) { ... });
#ifndef SHARDMESH_COMM_LAUNCH_H_
#define SHARDMESH_COMM_LAUNCH_H_

#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {

enum class Backend {
  kAuto,       ///< Of processes if a launcher has started this one, else threads.
  kInprocess,  ///< Ranks are threads.
  kMpi,        ///< Ranks are processes.
};

/// "auto", "inprocess", "mpi".
std::string_view Name(Backend backend);
/// Errors: kInvalidArgument naming `name` and what is expected.
absl::StatusOr<Backend> ParseBackend(std::string_view name);

/// What a launcher (mpirun, mpiexec, srun) says of this process in its environment: rank 0 of 1 if
/// there is none. Known before MPI is, for what one process alone should print or write.
struct LaunchedProcess {
  bool by_launcher = false;
  int rank = 0;
  int size = 1;
};
LaunchedProcess GetLaunchedProcess();

/// Runs `fn` on `num_ranks` ranks, as RunRanks or as RunMpi. With kAuto, SHARDMESH_BACKEND may name
/// another backend.
/// Errors: as those; kInvalidArgument if the launcher has started another number of processes, or
/// the variable has another value; kFailedPrecondition for kMpi without a launcher and more than
/// one rank; kUnavailable for processes in a build without --config=mpi.
absl::Status Launch(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                    const RunOptions& options = {}, Backend backend = Backend::kAuto);

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_LAUNCH_H_
