// SPDX-License-Identifier: Apache-2.0
//
// Ops on batches of matrices: their checks and rules, and how ranks that hold different matrices
// agree on whether one of them failed.
#ifndef SHARDMESH_DTENSOR_INTERNAL_MATRIX_BATCH_H_
#define SHARDMESH_DTENSOR_INTERNAL_MATRIX_BATCH_H_

#include <cstdint>
#include <optional>

#include "shardmesh/dtensor/dispatch.h"

namespace shardmesh::internal {

/// Throws Error(kInvalidArgument) naming `op` unless x is usable and has at least two dims.
void CheckMatrices(const char* op, const DTensor& x);
/// The same unless they are square.
void CheckSquare(const char* op, const DTensor& x);
/// Throws Error(kInvalidArgument) naming `op` and what may be done unless x is f32 or f64.
void CheckReal(const char* op, const DTensor& x);

/// x's shape without the last two dims.
Dims BatchOf(const DTensor& x);

/// The factors of a tensor with the dims `own`, which broadcast to the batch dims of a rule (its
/// first factors), and then `whole` dims that may not be sharded.
Rule::FactorOfDim BatchFactors(const Dims& own, const Dims& batch, int whole);

/// Batch dims of x, which may be sharded, for results with these numbers of whole dims, of which
/// the extents are given.
OpRule BatchRule(const DTensor& x, std::initializer_list<Dims> results);

/// `failed`: the first matrix, in row-major order over this rank's box of the batch dims of result
/// 0, that failed. Throws Error(kInvalidArgument) on all ranks if one did on any: `op` of `x`,
/// whose batch broadcasts to the result's, "is " `fault`. Collective over the axes that split the
/// batch.
void RequireSuccess(const OpCall& call, const char* op, const DTensor& x, int batch_dims,
                    std::optional<int64_t> failed, const char* fault);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_MATRIX_BATCH_H_
