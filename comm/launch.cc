// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/launch.h"

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {
namespace {

constexpr Backend kBackends[] = {Backend::kAuto, Backend::kInprocess, Backend::kMpi};

// The variables in which launchers say it.
struct Variables {
  const char* rank;
  const char* size;
};
constexpr Variables kLaunchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},  // Open MPI.
    {"PMI_RANK", "PMI_SIZE"},                          // MPICH, Intel MPI, srun with PMI.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},          // srun with PMIx.
};

bool Number(const char* variable, int& value) {
  const char* const text = std::getenv(variable);
  return text != nullptr && absl::SimpleAtoi(text, &value);
}

absl::StatusOr<Backend> Choose(Backend backend, const LaunchedProcess& process) {
  if (backend != Backend::kAuto) return backend;
  const char* const variable = std::getenv("SHARDMESH_BACKEND");
  if (variable != nullptr && *variable != '\0') {
    const absl::StatusOr<Backend> named = ParseBackend(variable);
    if (!named.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("SHARDMESH_BACKEND: ", named.status().message()));
    if (*named != Backend::kAuto) return named;
  }
  return process.by_launcher ? Backend::kMpi : Backend::kInprocess;
}

}  // namespace

std::string_view Name(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kInprocess:
      return "inprocess";
    case Backend::kMpi:
      return "mpi";
  }
  return "?";
}

absl::StatusOr<Backend> ParseBackend(std::string_view name) {
  for (const Backend backend : kBackends) {
    if (Name(backend) == name) return backend;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown backend ", Quoted(name), "; expected auto, inprocess or mpi"));
}

LaunchedProcess GetLaunchedProcess() {
  LaunchedProcess process;
  for (const Variables& variables : kLaunchers) {
    if (!Number(variables.rank, process.rank) || !Number(variables.size, process.size)) continue;
    process.by_launcher = true;
    return process;
  }
  return LaunchedProcess();
}

absl::Status Launch(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                    const RunOptions& options, Backend backend) {
  const LaunchedProcess process = GetLaunchedProcess();
  SHARDMESH_ASSIGN_OR_RETURN(backend, Choose(backend, process));
  if (backend == Backend::kInprocess) return RunRanks(num_ranks, fn, options);
  if (!process.by_launcher && num_ranks != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("Launch: ", num_ranks, " ranks as processes need a launcher: mpirun -n ",
                     num_ranks, " PROGRAM"));
  }
  if (process.size != num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("Launch: the program needs ", num_ranks, " ranks, but ", process.size,
                     process.size == 1 ? " process was started" : " processes were started",
                     "; start ", num_ranks, ", or choose a mesh of ", process.size));
  }
  return RunMpi(fn, options);
}

}  // namespace shardmesh
