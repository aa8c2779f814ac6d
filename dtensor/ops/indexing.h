// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing at indices (i64 or i32) along one dim, those of the global tensor. Where
// the dim itself is sharded it is gathered first; other dims stay sharded.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes and dtypes, alike on all ranks;
// Error(kOutOfRange) naming an index outside the dim, on the rank that has it, which ends the
// others.
#ifndef SHARDMESH_DTENSOR_OPS_INDEXING_H_
#define SHARDMESH_DTENSOR_OPS_INDEXING_H_

#include <cstdint>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

// ---- reading ------------------------------------------------------------------------------------
/// y[.., i, ..] = x[.., index[.., i, ..], ..]. Partial passes through.
/// Shape: x and index of as many dims, index no larger than x but along `dim` -> index's.
DTensor Gather(const DTensor& x, int dim, const DTensor& index);
/// Gather, with x and index broadcast against each other in the other dims; a negative index counts
/// from the end.
DTensor TakeAlongDim(const DTensor& x, const DTensor& index, int dim);
/// Shape: x [.., n, ..], index [m] -> [.., m, ..].
DTensor IndexSelect(const DTensor& x, int dim, const DTensor& index);
/// Of x in row-major order; a negative index counts from the end. Shape: index's.
DTensor Take(const DTensor& x, const DTensor& index);

// ---- writing: the result is x with other elements -----------------------------------------------
enum class ScatterReduction { kSum, kProduct, kMean, kMax, kMin };
/// y[.., index[.., i, ..], ..] = source[.., i, ..]; of several writes to one element the last
/// holds, and the gradient is that of each.
/// Shape: index and source of one shape, of x's number of dims, no larger than x but along `dim`.
DTensor Scatter(const DTensor& x, int dim, const DTensor& index, const DTensor& source);
/// The same, added.
DTensor ScatterAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& source);
/// The same, reduced with x's element, or, unless `include_self`, with each other alone.
DTensor ScatterReduce(const DTensor& x, int dim, const DTensor& index, const DTensor& source,
                      ScatterReduction reduction, bool include_self = true);
/// Slices. Shape: x [.., n, ..], index [m], source [.., m, ..].
DTensor IndexAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& source,
                 double alpha = 1);
DTensor IndexCopy(const DTensor& x, int dim, const DTensor& index, const DTensor& source);
DTensor IndexFill(const DTensor& x, int dim, const DTensor& index, double value);
/// `value` where `mask` (bool, broadcasts) holds.
DTensor MaskedFill(const DTensor& x, const DTensor& mask, double value);
/// i64. Shape: ids [..] -> [.., classes].
DTensor OneHot(const DTensor& ids, int64_t classes);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_INDEXING_H_
