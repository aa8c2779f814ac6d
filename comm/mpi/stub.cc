// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {

absl::Status RunMpi(absl::FunctionRef<void(Communicator& world)>, const RunOptions&) {
  return absl::UnavailableError("built without MPI; rebuild with --config=mpi");
}

}  // namespace shardmesh
