// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/nccl_world.h"

namespace shardmesh {

absl::Status RunNccl(int, absl::FunctionRef<void(Communicator& world)>, const RunOptions&) {
  return absl::UnavailableError("built without CUDA; rebuild with --config=cuda");
}

}  // namespace shardmesh
