// SPDX-License-Identifier: Apache-2.0
//
// Loops of the elementwise ops of two operands.
#include "shardmesh/tensor/cpu/elementwise_cpu.h"

namespace shardmesh::cpu {
namespace element {

using namespace elementwise;  // NOLINT: rows are written with its names.

#define SHARDMESH_BINARY_ROW(Function, flags, value, ga, gb) \
  SHARDMESH_ROW_BEGIN(Function, 2, flags)                    \
  return value;                                              \
  SHARDMESH_ROW_GRADIENTS                                    \
  if constexpr (kOperand == 0) return ga;                    \
  if constexpr (kOperand == 1) return gb;                    \
  SHARDMESH_ROW_END
#define SHARDMESH_BINARY(Function, name, flags, value, ga, gb) \
  SHARDMESH_BINARY_ROW(Function, flags, value, ga, gb)
#define SHARDMESH_BINARY_WITH(Function, name, flags, value, ga, gb) \
  SHARDMESH_BINARY_ROW(Function, flags, value, ga, gb)
#include "shardmesh/tensor/elementwise_ops.inc"

}  // namespace element

const ElementwiseLoops* BinaryLoops() {
  static constexpr ElementwiseLoops kLoops[] = {
#define SHARDMESH_BINARY(Function, ...) elementwise_internal::LoopsOf<element::Function##Row>(),
#define SHARDMESH_BINARY_WITH(Function, ...) \
  elementwise_internal::LoopsOf<element::Function##Row>(),
#include "shardmesh/tensor/elementwise_ops.inc"
  };
  return kLoops;
}

}  // namespace shardmesh::cpu
