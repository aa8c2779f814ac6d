// SPDX-License-Identifier: Apache-2.0
//
// Ops made of others, on small dtypes: what is in between is f32, and the result is rounded once.
#ifndef SHARDMESH_DTENSOR_INTERNAL_IN_F32_H_
#define SHARDMESH_DTENSOR_INTERNAL_IN_F32_H_

#include <utility>
#include <vector>

#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::internal {

/// Tensors that may be missing, but for the first.
using Operands = std::vector<DTensor>;

/// What `fn` makes of the operands; if all are of one small dtype, in f32 and rounded once: the
/// square of an f16 overflows from 256 on, and a mean of bf16 values has their digits alone.
template <typename F>
DTensor InF32IfSmall(const char* op, Operands operands, const F& fn) {
  CheckUsable(op, operands[0]);
  const DType dtype = operands[0].dtype();
  bool is_small = IsSmall(dtype);
  for (const DTensor& operand : operands) is_small &= !operand || operand.dtype() == dtype;
  if (!is_small) return fn(operands);
  for (DTensor& operand : operands) {
    if (operand) operand = Cast(operand, DType::kF32);
  }
  return Cast(fn(operands), dtype);
}

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_IN_F32_H_
