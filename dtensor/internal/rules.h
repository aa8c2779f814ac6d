// SPDX-License-Identifier: Apache-2.0
//
// Sharding rules that several op families share, built for the ranks at hand.
#ifndef SHARDMESH_DTENSOR_INTERNAL_RULES_H_
#define SHARDMESH_DTENSOR_INTERNAL_RULES_H_

#include <initializer_list>
#include <vector>

#include "shardmesh/dtensor/dispatch.h"

namespace shardmesh::internal {

/// One factor a dim of `shape`, in order; `whole` dims may not be sharded.
Rule FactorsOf(const Dims& shape, std::initializer_list<int> whole = {});

/// Every operand broadcasts to the one result: equal dims share a factor, an extent of 1 that is
/// repeated is whole. Throws Error(kInvalidArgument) naming `op` if the shapes do not broadcast.
OpRule ElementwiseRule(const char* op, std::span<const DTensor* const> operands,
                       std::initializer_list<uint32_t> linear = {});

/// x where `mask` (bool) is `keep`, else 0, whatever x is there: an infinity times 0 would be nan.
/// Linear in x. Not recorded: for backward formulas.
DTensor Select(const DTensor& mask, const DTensor& x, bool keep = true);

/// The gradient of an operand of shape `shape` that was broadcast to `grad`'s shape.
DTensor SumTo(const DTensor& grad, const Dims& shape);

/// SumTo, written straight into operand `operand`'s sink if it has one. `dtype` is the operand's.
void WriteSumTo(Gradients& out, int operand, const DTensor& grad, const Dims& shape);

/// The dims that a reduction of x reduces, sorted; all if none are given. A tensor without dims
/// reduces along dim 0 too. Throws Error(kInvalidArgument) naming `op` for one that x does not
/// have, or that is given twice.
std::vector<int> NormalizedDims(const char* op, const DTensor& x, const std::vector<int>& dims);

/// NormalizeDim for x, which the message names. A tensor without dims has dim 0 here if
/// `scalar_has_one`. `extra`: further dims that an op adds.
int DimOf(const char* op, const DTensor& x, int dim, bool scalar_has_one = false, int extra = 0);

/// ResolveShape (tensor/tensor.h) for x, or a part of it, with x in the message.
Dims ResolvedShape(const char* op, const DTensor& x, const Dims& shape, int64_t num_elements);

/// Throws Error(kInvalidArgument) naming `op` and the operands unless they are of one dtype.
void CheckSameDType(const char* op, const DTensor& a, const DTensor& b);
/// Throws Error(kInvalidArgument) naming `op` and x unless its dtype is a floating-point one.
void CheckFloating(const char* op, const DTensor& x);

/// Throws Error(kInvalidArgument) naming `op` unless `x` has at least `rank` dims.
void CheckRankAtLeast(const char* op, const DTensor& x, int rank);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_RULES_H_
