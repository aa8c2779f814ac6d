// SPDX-License-Identifier: Apache-2.0
//
// Loops of the elementwise ops of one operand.
#include "shardmesh/tensor/cpu/elementwise_cpu.h"

namespace shardmesh::cpu {
namespace element {

using namespace elementwise;  // NOLINT: rows are written with its names.

#define SHARDMESH_UNARY_ROW(Function, flags, value, ga) \
  SHARDMESH_ROW_BEGIN(Function, 1, flags)               \
  return value;                                         \
  SHARDMESH_ROW_GRADIENTS                               \
  if constexpr (kOperand == 0) return ga;               \
  SHARDMESH_ROW_END
#define SHARDMESH_UNARY(Function, name, flags, value, ga) \
  SHARDMESH_UNARY_ROW(Function, flags, value, ga)
#define SHARDMESH_UNARY_WITH(Function, name, flags, value, ga) \
  SHARDMESH_UNARY_ROW(Function, flags, value, ga)
#include "shardmesh/tensor/elementwise_ops.inc"

}  // namespace element

const ElementwiseLoops* UnaryLoops() {
  static constexpr ElementwiseLoops kLoops[] = {
#define SHARDMESH_UNARY(Function, ...) elementwise_internal::LoopsOf<element::Function##Row>(),
#define SHARDMESH_UNARY_WITH(Function, ...) elementwise_internal::LoopsOf<element::Function##Row>(),
#include "shardmesh/tensor/elementwise_ops.inc"
  };
  return kLoops;
}

}  // namespace shardmesh::cpu
