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
#include <optional>
#include <vector>

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

enum class BagReduction { kSum, kMean };
/// The sum (or mean) over each bag of rows of `table`, times `weights` of the ids' shape, if given.
/// Ids equal to `padding_id` do not count; an empty bag gives 0.
/// Shape: table [rows, d]; ids [bags, n] -> [bags, d].
DTensor EmbeddingBag(const DTensor& table, const DTensor& ids,
                     BagReduction reduction = BagReduction::kSum, const DTensor& weights = {},
                     std::optional<int64_t> padding_id = std::nullopt);
/// The same of bags of any length: the first begins at 0, bag i at offsets[i], which ascend.
/// Shape: table [rows, d]; ids [n], offsets [bags] -> [bags, d].
DTensor EmbeddingBagAt(const DTensor& table, const DTensor& ids, const DTensor& offsets,
                       BagReduction reduction = BagReduction::kSum, const DTensor& weights = {},
                       std::optional<int64_t> padding_id = std::nullopt);

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
/// `value` has no dims.
DTensor IndexFill(const DTensor& x, int dim, const DTensor& index, const DTensor& value);
/// y[indices[0][i], indices[1][i], ..] = values[i, ..], or added to what is there if `accumulate`;
/// of several writes to one place the last holds. A negative index counts from the end.
/// Shape: indices broadcast to one shape [m..]; values broadcast to [m.., x's other dims].
DTensor IndexPut(const DTensor& x, const std::vector<DTensor>& indices, const DTensor& values,
                 bool accumulate = false);
/// The k-th element of x in row-major order where `mask` (bool) holds becomes the k-th of `source`.
/// x and mask broadcast. Errors: Error(kOutOfRange) if source has too few elements.
DTensor MaskedScatter(const DTensor& x, const DTensor& mask, const DTensor& source);
/// `value` where `mask` (bool, broadcasts) holds.
DTensor MaskedFill(const DTensor& x, const DTensor& mask, double value);
/// i64. Shape: ids [..] -> [.., classes].
DTensor OneHot(const DTensor& ids, int64_t classes);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_INDEXING_H_
