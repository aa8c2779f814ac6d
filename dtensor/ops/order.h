// SPDX-License-Identifier: Apache-2.0
//
// Scans, and what depends on the order of elements along one dim. Indices are those of the global
// tensor, i64. Where the dim itself is sharded it is gathered first; CumSum, ArgMax, ArgMin,
// MaxAlong and MinAlong exchange what they need instead. Other dims stay sharded.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes and dtypes, alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_ORDER_H_
#define SHARDMESH_DTENSOR_OPS_ORDER_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

// ---- scans: of the elements up to each one ------------------------------------------------------
/// Partial passes through. Where `dim` is sharded, ranks exchange the sums of their boxes alone.
DTensor CumSum(const DTensor& x, int dim);
DTensor CumProd(const DTensor& x, int dim);
DTensor LogCumSumExp(const DTensor& x, int dim);
/// The extremum so far and its index; of equal ones the latest.
std::pair<DTensor, DTensor> CumMax(const DTensor& x, int dim);
std::pair<DTensor, DTensor> CumMin(const DTensor& x, int dim);

// ---- order: nan is larger than all --------------------------------------------------------------
/// Values and their indices; equal elements keep their order.
std::pair<DTensor, DTensor> Sort(const DTensor& x, int dim = -1, bool descending = false);
DTensor ArgSort(const DTensor& x, int dim = -1, bool descending = false);
/// The k largest (or smallest), sorted, and their indices.
std::pair<DTensor, DTensor> TopK(const DTensor& x, int64_t k, int dim = -1, bool largest = true);
/// The k-th smallest, counted from 1, and its index.
std::pair<DTensor, DTensor> KthValue(const DTensor& x, int64_t k, int dim = -1,
                                     bool keepdim = false);
/// The lower of the two in the middle; nan if there is one.
DTensor Median(const DTensor& x);
/// The same along `dim`, and its index.
std::pair<DTensor, DTensor> MedianAlong(const DTensor& x, int dim, bool keepdim = false);
/// The first index of the extremum along `dim`, or in row-major order. nan counts as extremum.
DTensor ArgMax(const DTensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
DTensor ArgMin(const DTensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// The extremum along `dim` and its first index, which gets all of the gradient.
std::pair<DTensor, DTensor> MaxAlong(const DTensor& x, int dim, bool keepdim = false);
std::pair<DTensor, DTensor> MinAlong(const DTensor& x, int dim, bool keepdim = false);

// ---- search -------------------------------------------------------------------------------------
/// How many elements of `sorted` (ascending) are less than each value, or not greater if `right`;
/// i64. `sorted` is gathered along its last dim; values stay as they are.
/// Shape: sorted [n] and values of any shape, or sorted [.., n] and values [.., m] -> values'.
DTensor SearchSorted(const DTensor& sorted, const DTensor& values, bool right = false);
/// SearchSorted(boundaries, x, right).
DTensor Bucketize(const DTensor& x, const DTensor& boundaries, bool right = false);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_ORDER_H_
