// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include "absl/strings/str_cat.h"
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {

absl::Status RunMpi(absl::FunctionRef<void(Communicator& world)>, const RunOptions&) {
  int major = 0;
  int minor = 0;
  MPI_Get_version(&major, &minor);  // Allowed before MPI_Init.
  return absl::UnimplementedError(absl::StrCat(
      "the MPI backend is not implemented yet (linked with MPI ", major, ".", minor, ")"));
}

}  // namespace shardmesh
