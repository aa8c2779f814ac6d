// SPDX-License-Identifier: Apache-2.0
//
// A world of GPUs in one process: ranks are threads, each with a device of its own, and NCCL moves
// the data.
//
//   absl::Status status = RunNccl(8, [](Communicator& world) { ... });
#ifndef SHARDMESH_COMM_NCCL_WORLD_H_
#define SHARDMESH_COMM_NCCL_WORLD_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {

/// As RunRanks, with rank r on CUDA device r.
/// Errors: kUnavailable in a build without --config=cuda; kUnimplemented with it, as the backend is
/// still to come.
absl::Status RunNccl(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                     const RunOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_NCCL_WORLD_H_
