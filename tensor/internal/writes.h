// SPDX-License-Identifier: Apache-2.0
//
// Validates output tensors and scalar arguments.
#ifndef SHARDMESH_TENSOR_INTERNAL_WRITES_H_
#define SHARDMESH_TENSOR_INTERNAL_WRITES_H_

#include <initializer_list>

#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// Throws Error(kInvalidArgument) if `out` is expanded: each element must be written once.
void RequireWritable(const char* op, const Tensor& out);

/// Throws Error(kInvalidArgument) if `value` is not a value of the integer dtype: 0.5 of an i64,
/// 2 of a bool. Floating-point dtypes take every number.
void RequireRepresentable(const char* op, DType dtype, double value);

/// As RequireWritable, and throws if a write to `out` may change an element of one of `operands`
/// (empty handles are skipped). For ops that read elements after they have written others.
void RequireApart(const char* op, const Tensor& out, std::initializer_list<const Tensor*> operands);

/// Whether a write to `out` may change an element of `x` other than the one at the same index.
bool MayOverlap(const Tensor& out, const Tensor& x);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_TENSOR_INTERNAL_WRITES_H_
