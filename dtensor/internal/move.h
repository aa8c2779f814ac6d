// SPDX-License-Identifier: Apache-2.0
//
// Carries out plans: the one place through which every move of the library passes.
#ifndef SHARDMESH_DTENSOR_INTERNAL_MOVE_H_
#define SHARDMESH_DTENSOR_INTERNAL_MOVE_H_

#include <string_view>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/placement/plan.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// This rank's box of layout `to`, given its box of `from`, of a tensor of `dtype`. Aliases `local`
/// on every rank where only axes of size 1 change, else on none. `op` names the caller in traces.
/// Summands of a small dtype come and go in the dtype that partial_precision.h says. Collective
/// over the mesh.
Tensor Move(Runtime& runtime, const DeviceMesh& mesh, const Tensor& local, DType dtype,
            const Layout& from, const Layout& to, std::string_view op);

/// The group communicator of a step.
Communicator& GroupOf(const DeviceMesh& mesh, const AxisList& axes);

/// The view of `local` (a rank's `outer` box) that holds the indices of `box`; `box` lies within
/// `outer` or is empty.
Tensor ViewOfBox(const Tensor& local, const Box& outer, const Box& box);

// The parts of one batched collective: how `local` takes part in `step` and where its result goes.
AllGatherItem GatherItem(const DeviceMesh& mesh, const Step& step, const Tensor& local,
                         const Tensor& target);
ReduceScatterItem ScatterItem(const DeviceMesh& mesh, const Step& step, const Tensor& local,
                              const Tensor& target);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_MOVE_H_
