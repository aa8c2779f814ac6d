// SPDX-License-Identifier: Apache-2.0
//
// Reductions that are made of others. As Sum of dtensor/ops.h: over `dims` (-1 is the last), or all
// if empty; `keepdim` leaves extents of 1. What a sharded dim needs is the collectives of their
// sums and maxima, never the tensor itself. What is in between is f32 for bf16 and f16, and the
// result is rounded once.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes and dtypes; alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_REDUCTIONS_H_
#define SHARDMESH_DTENSOR_OPS_REDUCTIONS_H_

#include <utility>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

/// Of nothing it is 1; products of integers and bools are i64.
DTensor Prod(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// sum (x - mean)^2 / max(0, n - correction); of fewer elements than `correction` it is nan or inf.
DTensor Var(const DTensor& x, const std::vector<int>& dims = {}, double correction = 1,
            bool keepdim = false);
/// Its square root.
DTensor Std(const DTensor& x, const std::vector<int>& dims = {}, double correction = 1,
            bool keepdim = false);
/// Var (or Std), and Mean.
std::pair<DTensor, DTensor> VarMean(const DTensor& x, const std::vector<int>& dims = {},
                                    double correction = 1, bool keepdim = false);
std::pair<DTensor, DTensor> StdMean(const DTensor& x, const std::vector<int>& dims = {},
                                    double correction = 1, bool keepdim = false);
/// Of elements that are not nan.
DTensor NanSum(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
DTensor NanMean(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// log(sum(exp(x))), without overflow. Of nothing it is -inf.
DTensor LogSumExp(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// (sum |x|^order)^(1 / order); order inf and -inf: the largest and the least magnitude; 0: how
/// many are not 0. The gradient at a norm of 0 is 0.
DTensor VectorNorm(const DTensor& x, double order = 2, const std::vector<int>& dims = {},
                   bool keepdim = false);

// Of elements that are not 0; of nothing, false and true. Bool results.
DTensor Any(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
DTensor All(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// i64.
DTensor CountNonZero(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);

/// The sum of the main diagonal of a matrix.
DTensor Trace(const DTensor& x);
/// VectorNorm(a - b).
DTensor Dist(const DTensor& a, const DTensor& b, double order = 2);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_REDUCTIONS_H_
