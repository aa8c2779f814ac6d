// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/indexing.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh {
namespace {

constexpr char kEmbeddingBag[] = "embedding_bag";

// What each id counts, of the table's dtype: a weight, and 0 for padding. Nothing if all count 1.
DTensor Factors(const DTensor& table, const DTensor& ids, const DTensor& weights,
                std::optional<int64_t> padding_id) {
  DTensor factors = weights;
  if (padding_id) {
    const DTensor counts = Compare(CompareOp::kNotEqual, ids, static_cast<double>(*padding_id));
    factors = weights ? Where(counts, weights, internal::ScalarLike(weights, 0))
                      : Cast(counts, table.dtype());
  }
  return factors;
}

void Check(const DTensor& table, const DTensor& ids, int id_dims, const DTensor& weights) {
  internal::CheckUsable(kEmbeddingBag, table);
  internal::CheckUsable(kEmbeddingBag, ids);
  if (table.num_dims() != 2 || ids.num_dims() != id_dims) {
    ThrowInvalid(kEmbeddingBag, ": expected a table of 2 dims and ids of ", id_dims, ", got ",
                 table.ToString(), " and ", ids.ToString());
  }
  if (!weights) return;
  internal::CheckUsable(kEmbeddingBag, weights);
  if (!(weights.shape() == ids.shape()) || weights.dtype() != table.dtype()) {
    ThrowInvalid(kEmbeddingBag, ": expected weights of the shape of ", ids.ToString(),
                 " and the dtype of ", table.ToString(), ", got ", weights.ToString());
  }
}

// [..] -> [.., 1].
DTensor AsColumn(const DTensor& x) {
  Dims shape = x.shape();
  shape.push_back(1);
  return Reshape(x, shape);
}

// The rows that ids name, each times its factor.
DTensor RowsOf(const DTensor& table, const DTensor& ids, const DTensor& factors) {
  const DTensor rows = Embedding(ids, table);
  return factors ? Mul(rows, AsColumn(factors)) : rows;
}

// 1 for an id that counts. A mean divides by how many there are, not by their weights.
DTensor Ones(const DTensor& table, const DTensor& ids, std::optional<int64_t> padding_id) {
  const DTensor ones = Factors(table, ids, {}, padding_id);
  return ones ? ones : internal::FilledLike(table, ids.shape(), 1);
}

DTensor Divided(const DTensor& sums, const DTensor& counts) {
  return Div(sums, AsColumn(Maximum(counts, 1.0)));
}

// As i64. Others would put ids into bags that nobody meant.
DTensor CheckedOffsets(const DTensor& given) {
  internal::CheckUsable(kEmbeddingBag, given);
  if (given.num_dims() != 1 || (given.dtype() != DType::kI64 && given.dtype() != DType::kI32)) {
    ThrowInvalid(kEmbeddingBag, ": expected offsets of i64 or i32 and one dim, got ",
                 given.ToString());
  }
  const DTensor offsets = given.dtype() == DType::kI32 ? Cast(given, DType::kI64) : given;
  const int64_t count = offsets.dim(0);
  if (count == 0) return offsets;
  const DTensor first = Compare(CompareOp::kEqual, Slice(offsets, 0, 0, 1), 0.0);
  const DTensor ascend = Compare(CompareOp::kGreaterEqual, Slice(offsets, 0, 1, count - 1),
                                 Slice(offsets, 0, 0, count - 1));
  if (IntegerItem(Cast(LogicalAnd(All(first), All(ascend)), DType::kI64)) == 0) {
    ThrowInvalid(kEmbeddingBag, ": expected offsets that begin at 0 and ascend, got ",
                 offsets.ToString());
  }
  return offsets;
}

}  // namespace

DTensor EmbeddingBag(const DTensor& table, const DTensor& ids, BagReduction reduction,
                     const DTensor& weights, std::optional<int64_t> padding_id) {
  Check(table, ids, 2, weights);
  if (IsSmall(table.dtype())) {
    const DTensor wide_weights = weights ? Cast(weights, DType::kF32) : weights;
    return Cast(EmbeddingBag(Cast(table, DType::kF32), ids, reduction, wide_weights, padding_id),
                table.dtype());
  }
  const DTensor sums = Sum(RowsOf(table, ids, Factors(table, ids, weights, padding_id)), {1});
  if (reduction == BagReduction::kSum) return sums;
  return Divided(sums, Sum(Ones(table, ids, padding_id), {1}));
}

DTensor EmbeddingBagAt(const DTensor& table, const DTensor& ids, const DTensor& given_offsets,
                       BagReduction reduction, const DTensor& weights,
                       std::optional<int64_t> padding_id) {
  Check(table, ids, 1, weights);
  const DTensor offsets = CheckedOffsets(given_offsets);
  if (IsSmall(table.dtype())) {
    const DTensor wide_weights = weights ? Cast(weights, DType::kF32) : weights;
    return Cast(
        EmbeddingBagAt(Cast(table, DType::kF32), ids, offsets, reduction, wide_weights, padding_id),
        table.dtype());
  }
  // The bag of each position: how many begin at it or before, less one.
  const DTensor positions = internal::PositionsOn(ids, ids.dim(0), 0, 1);
  const DTensor bag = Sub(SearchSorted(offsets, positions, /*right=*/true), 1.0);
  const DTensor rows = RowsOf(table, ids, Factors(table, ids, weights, padding_id));
  const int64_t bags = offsets.dim(0);
  const DTensor sums = IndexAdd(internal::FilledLike(table, {bags, table.dim(1)}, 0), 0, bag, rows);
  if (reduction == BagReduction::kSum) return sums;
  const DTensor counts =
      IndexAdd(internal::FilledLike(table, {bags}, 0), 0, bag, Ones(table, ids, padding_id));
  return Divided(sums, counts);
}

}  // namespace shardmesh
