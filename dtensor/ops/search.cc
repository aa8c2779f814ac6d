// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <span>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops/order.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kSearchSorted{"searchsorted"};

// The place of each element of x [rows, n] in the order of its row; of equal ones the first is
// first.
Tensor RanksOf(ExecutionContext& context, const Tensor& x) {
  const int64_t n = x.dim(1);
  const Tensor order = ops::Sort(context, x, 1, /*descending=*/false).second;
  std::vector<int64_t> places(static_cast<size_t>(n));
  std::iota(places.begin(), places.end(), int64_t{0});
  const Tensor one_row = Tensor::FromValues(context, {1, n}, std::span<const int64_t>(places));
  const Tensor source = ops::Contiguous(context, one_row.Expand(x.shape()));
  return ops::Scatter(context, ScatterOp::kSet, ops::Zeros(context, x.shape(), DType::kI64), 1,
                      order, source);
}

// A value's place among both, less its place among the values, is how many of `sorted` [rows, n]
// come before it; equal ones do if they stand in front.
Tensor CountBefore(ExecutionContext& context, const Tensor& sorted, const Tensor& values,
                   bool right) {
  const Tensor parts[] = {right ? sorted : values, right ? values : sorted};
  const Tensor ranks = RanksOf(context, ops::Concat(context, parts, 1));
  const int64_t begin = right ? sorted.dim(1) : 0;
  const Tensor among_both = ranks.Narrow(1, begin, values.dim(1));
  return ops::Binary(context, BinaryOp::kSub, among_both, RanksOf(context, values));
}

}  // namespace

DTensor SearchSorted(const DTensor& sorted, const DTensor& values, bool right) {
  const char* const op = kSearchSorted.name;
  internal::CheckUsable(op, sorted);
  internal::CheckUsable(op, values);
  internal::CheckRankAtLeast(op, sorted, 1);
  if (sorted.dtype() != values.dtype()) {
    ThrowInvalid(op, ": the dtypes of ", sorted.ToString(), " and of the values ",
                 values.ToString(), " differ; cast one of them");
  }
  const int last = sorted.num_dims() - 1;
  bool fits = last == 0 || values.num_dims() == sorted.num_dims();
  for (int d = 0; fits && d < last; ++d) fits = sorted.dim(d) == values.dim(d);
  if (!fits) {
    ThrowInvalid(op, ": the values ", values.ToString(), " do not fit ", sorted.ToString(),
                 ": expected it to have one dim, or all dims but the last to be equal");
  }
  OpCall call(kSearchSorted, {&sorted, &values});
  call.Decide([&] {
    Rule rule = internal::FactorsOf(values.shape());
    const Rule::FactorOfDim of_values = rule.inputs[0];
    Rule::FactorOfDim of_sorted(static_cast<size_t>(last + 1), Rule::kNotShardable);
    for (int d = 0; d < last; ++d) of_sorted[static_cast<size_t>(d)] = of_values[d];
    rule.inputs = {of_sorted, of_values};
    rule.outputs = {of_values};
    return OpRule{std::move(rule), {values.shape()}};
  });
  ExecutionContext& context = call.context();
  const Tensor local = ops::Contiguous(context, call.local(1));
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) rows *= call.local(0).dim(d);
  const int64_t count = rows == 0 ? 0 : local.NumElements() / rows;
  const Tensor lines = ops::Reshape(context, call.local(0), {rows, sorted.dim(last)});
  const Tensor counts =
      CountBefore(context, lines, ops::Reshape(context, local, {rows, count}), right);
  return call.Result(ops::Reshape(context, counts, local.shape()));
}

DTensor Bucketize(const DTensor& x, const DTensor& boundaries, bool right) {
  internal::CheckUsable("bucketize", boundaries);
  if (boundaries.num_dims() != 1)
    ThrowInvalid("bucketize: expected boundaries of one dim, got ", boundaries.ToString());
  return SearchSorted(boundaries, x, right);
}

}  // namespace shardmesh
