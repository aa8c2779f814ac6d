// SPDX-License-Identifier: Apache-2.0
//
// Results that are views of their operand.
#ifndef SHARDMESH_DTENSOR_INTERNAL_VIEW_H_
#define SHARDMESH_DTENSOR_INTERNAL_VIEW_H_

#include <utility>

#include "shardmesh/dtensor/dispatch.h"

namespace shardmesh::internal {

/// The view `local` of operand 0, which is `x`, in `order` if the operand stayed where it was.
/// Whether it aliases the operand, and may be written, is then the same on every rank.
inline DTensor ViewResult(const OpCall& call, const DTensor& x, Tensor local, MemoryOrder order) {
  const bool stayed = !call.IsMoved(0) && local.dtype() == x.local().dtype();
  return call.View(std::move(local), stayed ? order : MemoryOrder::Unknown(),
                   stayed && x.impl()->may_write);
}

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_VIEW_H_
