// SPDX-License-Identifier: Apache-2.0
//
// Loops of the elementwise ops of three operands.
#include "shardmesh/tensor/cpu/elementwise_cpu.h"

namespace shardmesh::cpu {
namespace element {

using namespace elementwise;  // NOLINT: rows are written with its names.

#define SHARDMESH_TERNARY_ROW(Function, flags, value, ga, gb, gc) \
  SHARDMESH_ROW_BEGIN(Function, 3, flags)                         \
  return value;                                                   \
  SHARDMESH_ROW_GRADIENTS                                         \
  if constexpr (kOperand == 0) return ga;                         \
  if constexpr (kOperand == 1) return gb;                         \
  if constexpr (kOperand == 2) return gc;                         \
  SHARDMESH_ROW_END
#define SHARDMESH_TERNARY(Function, name, flags, value, ga, gb, gc) \
  SHARDMESH_TERNARY_ROW(Function, flags, value, ga, gb, gc)
#define SHARDMESH_TERNARY_WITH(Function, name, flags, value, ga, gb, gc) \
  SHARDMESH_TERNARY_ROW(Function, flags, value, ga, gb, gc)
#include "shardmesh/tensor/elementwise_ops.inc"

}  // namespace element

const ElementwiseLoops* TernaryLoops() {
  static constexpr ElementwiseLoops kLoops[] = {
#define SHARDMESH_TERNARY(Function, ...) elementwise_internal::LoopsOf<element::Function##Row>(),
#define SHARDMESH_TERNARY_WITH(Function, ...) \
  elementwise_internal::LoopsOf<element::Function##Row>(),
#include "shardmesh/tensor/elementwise_ops.inc"
  };
  return kLoops;
}

}  // namespace shardmesh::cpu
