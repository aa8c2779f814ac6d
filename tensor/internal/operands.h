// SPDX-License-Identifier: Apache-2.0
//
// Validates the operands of an op before anything is allocated, and allocates its result.
#ifndef SHARDMESH_TENSOR_INTERNAL_OPERANDS_H_
#define SHARDMESH_TENSOR_INTERNAL_OPERANDS_H_

#include <initializer_list>
#include <optional>
#include <string>

#include "shardmesh/base/dims.h"
#include "shardmesh/tensor/kernel_table.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// Operands of one op.
using Operands = std::initializer_list<const Tensor*>;

/// "f32[3,5], f32[5]".
std::string ToString(Operands operands);

/// The device that all operands are on. Throws Error(kInvalidArgument) naming `op` if they differ,
/// or if one that is not optional is an empty handle.
Device DeviceOf(const char* op, Operands operands, Operands optional = {});

/// Throws Error(kInvalidArgument) unless all operands have one floating-point dtype. Empty handles
/// are skipped.
void RequireOneFloatingDType(const char* op, Operands operands);

/// Throw Error(kInvalidArgument), with `x` called `name`, unless it has this shape or dtype. An
/// empty handle passes.
void RequireShape(const char* op, const char* name, const Tensor& x, const Dims& shape);
void RequireDType(const char* op, const char* name, const Tensor& x, DType dtype);
/// Throws Error(kInvalidArgument) if `x` has fewer dims.
void RequireRank(const char* op, const char* name, const Tensor& x, int least);

/// An uninitialised result beside operands on `device`.
Tensor EmptyOn(ExecutionContext& context, Device device, const Dims& shape, DType dtype);

/// An uninitialised result on the device of `like`, whose dims have the same order in memory.
Tensor EmptyInOrderOf(ExecutionContext& context, const Tensor& like, const Dims& shape,
                      DType dtype);

/// The dtype in which sums over elements of `dtype` are accumulated.
constexpr DType AccumulatorDType(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

/// The dtype of a result: `asked_for`, or `usual` if nothing is. Throws Error(kInvalidArgument)
/// naming `op` unless it is `usual` or its accumulator.
DType ResultDType(const char* op, DType usual, std::optional<DType> asked_for);

/// `shape` without its last dim.
Dims WithoutLast(const Dims& shape);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_TENSOR_INTERNAL_OPERANDS_H_
