// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/order.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::FilledLike;
using internal::ScalarLike;

namespace {

constexpr Op kCumSum{"cumsum"}, kCumProd{"cumprod"}, kCumProdBackward{"cumprod_backward"};
constexpr Op kLogCumSumExp{"logcumsumexp"}, kCumMax{"cummax"}, kCumMin{"cummin"}, kSort{"sort"};

int DimOf(const Op& op, const DTensor& x, int dim) {
  internal::CheckUsable(op.name, x);
  return internal::DimOf(op.name, x, dim, /*scalar_has_one=*/true);
}

// `dim` whole, the others as they are; for `results` results of x's shape.
OpRule LinesRule(const DTensor& x, int dim, int operands, int results,
                 std::vector<uint32_t> linear = {}) {
  Rule rule =
      x.num_dims() == 0 ? internal::FactorsOf(x.shape()) : internal::FactorsOf(x.shape(), {dim});
  const Rule::FactorOfDim dims = rule.inputs[0];
  rule.inputs.assign(static_cast<size_t>(operands), dims);
  rule.outputs.assign(static_cast<size_t>(results), dims);
  rule.linear = std::move(linear);
  return {std::move(rule), std::vector<Dims>(static_cast<size_t>(results), x.shape())};
}

// ---- scans --------------------------------------------------------------------------------------

// The axes that split `dim`, in mesh order.
AxisList SplitAxesOf(const Layout& layout, int dim) {
  AxisList axes;
  for (const int axis : layout.SplitAxes(dim)) {
    if (layout.mesh().size(axis) > 1) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Adds to `scanned`, the sums up to each element of this rank's box, what the boxes before it add
// up to (after it, if `reverse`). Ranks exchange their last sums.
void AddOtherBoxes(const OpCall& call, int dim, bool reverse, Tensor& scanned) {
  const Layout& layout = call.output_layout();
  const AxisList axes = SplitAxesOf(layout, dim);
  if (axes.empty() || call.context().device().IsMeta()) return;
  ExecutionContext& context = call.context();
  Dims edge = scanned.shape();
  edge[dim] = 1;
  const int64_t extent = scanned.dim(dim);
  AllGatherItem item;
  item.source = extent == 0 ? ops::Zeros(context, edge, scanned.dtype())
                            : ops::Clone(context, scanned.Narrow(dim, reverse ? 0 : extent - 1, 1));
  const std::vector<Coord> coords = GroupCoords(layout.mesh(), axes, call.mesh().coord());
  for (size_t i = 0; i < coords.size(); ++i)
    item.targets.push_back(Tensor::Empty(context, edge, scanned.dtype()));
  const std::vector<Tensor> totals = item.targets;
  internal::GroupOf(call.mesh(), axes).AllGather({std::move(item)}, call.op().name).Wait();
  // In the order of the boxes, so that every mesh of so many ranks adds alike.
  const int64_t own = layout.LocalBox(call.mesh().coord()).begin[dim];
  std::vector<std::pair<int64_t, size_t>> others;
  for (size_t i = 0; i < coords.size(); ++i) {
    const Box box = layout.LocalBox(coords[i]);
    const bool counts = reverse ? box.begin[dim] > own : box.begin[dim] < own;
    if (counts && box.begin[dim] < box.end[dim]) others.emplace_back(box.begin[dim], i);
  }
  if (others.empty() || extent == 0) return;
  std::sort(others.begin(), others.end());
  Tensor sum = totals[others[0].second];
  for (size_t i = 1; i < others.size(); ++i)
    ops::BinaryInto(context, BinaryOp::kAdd, sum, totals[others[i].second]);
  ops::BinaryInto(context, BinaryOp::kAdd, scanned, sum.Expand(scanned.shape()));
}

// The sum of the elements up to each one, or from it on.
DTensor SumsAlong(const DTensor& x, int dim, bool reverse) {
  OpCall call(kCumSum, {&x});
  call.Attribute(dim).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs = {rule.inputs[0]};
    rule.linear = {1u};
    return OpRule{std::move(rule), {x.shape()}};
  });
  const bool is_split = x.num_dims() > 0 && !SplitAxesOf(call.output_layout(), dim).empty();
  const bool is_small = is_split && IsSmall(call.local(0).dtype());
  const Tensor local =
      is_small ? ops::Cast(call.context(), call.local(0), DType::kF32) : call.local(0);
  Tensor scanned = ops::Scan(call.context(), ScanOp::kSum, local, dim, reverse);
  if (is_split) AddOtherBoxes(call, dim, reverse, scanned);
  if (is_small) scanned = ops::Cast(call.context(), scanned, call.local(0).dtype());
  DTensor y = call.Result(std::move(scanned));
  if (!IsFloating(y.dtype())) return y;
  call.Record({&y}, [dim, reverse](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, SumsAlong(grads[0], dim, !reverse));
  });
  return y;
}

DTensor ScanOf(const Op& op, ScanOp kernel, const DTensor& x, int dim, bool reverse) {
  OpCall call(op, {&x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 1, 1); });
  return call.Result(ops::Scan(call.context(), kernel, call.local(0), dim, reverse));
}

std::pair<DTensor, DTensor> ScanExtremumOf(const Op& op, ScanOp kernel, const DTensor& x,
                                           int given) {
  const int dim = DimOf(op, x, given);
  OpCall call(op, {&x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 1, 2); });
  auto [extremum, place] = ops::ScanExtremum(call.context(), kernel, call.local(0), dim);
  DTensor y = call.Result(std::move(extremum), 0);
  const DTensor index = call.Result(std::move(place), 1);
  if (!IsFloating(y.dtype())) return {y, index};
  call.Record({&y}, [&op, dim, si = Saved(index)](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0,
            ScatterAdd(FilledLike(grads[0], grads[0].shape(), 0), dim, si.Get(op.name), grads[0]));
  });
  return {y, index};
}

}  // namespace

DTensor CumSum(const DTensor& x, int given) {
  return SumsAlong(x, DimOf(kCumSum, x, given), /*reverse=*/false);
}

namespace {

DTensor CumProdGradient(const DTensor& grad, const DTensor& x, int dim) {
  OpCall call(kCumProdBackward, {&grad, &x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 2, 1, {1u}); });
  return call.Result(
      ops::CumulativeProductBackward(call.context(), call.local(0), call.local(1), dim));
}

}  // namespace

DTensor CumProd(const DTensor& x, int given) {
  const int dim = DimOf(kCumProd, x, given);
  OpCall call(kCumProd, {&x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 1, 1); });
  DTensor y = call.Result(ops::Scan(call.context(), ScanOp::kProduct, call.local(0), dim));
  if (!IsFloating(y.dtype()) || !call.Records()) return y;
  call.Record({&y},
              [dim, sx = Saved(call.input(0))](std::span<const DTensor> grads, Gradients& out) {
                out.Set(0, CumProdGradient(grads[0], sx.Get(kCumProd.name), dim));
              });
  return y;
}

DTensor LogCumSumExp(const DTensor& x, int given) {
  const int dim = DimOf(kLogCumSumExp, x, given);
  OpCall call(kLogCumSumExp, {&x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 1, 1); });
  DTensor y = call.Result(ops::Scan(call.context(), ScanOp::kLogSumExp, call.local(0), dim));
  if (!call.Records()) return y;
  call.Record({&y},
              [dim, sx = Saved(call.input(0))](std::span<const DTensor> grads, Gradients& out) {
                // sum over i >= k of g_i exp(x_k - y_i), by sign and in logarithms, where nothing
                // overflows; in f64, as rounding a logarithm is an error of its size.
                const auto scan = [&](const DTensor& t, bool reverse) {
                  return ScanOf(kLogCumSumExp, ScanOp::kLogSumExp, t, dim, reverse);
                };
                const DTensor in = Cast(sx.Get(kLogCumSumExp.name), DType::kF64);
                const DTensor result = scan(in, /*reverse=*/false);
                const auto part = [&](const DTensor& grad) {
                  return Exp(Add(scan(Sub(Log(Maximum(grad, 0.0)), result), /*reverse=*/true), in));
                };
                const DTensor grad = Cast(grads[0], DType::kF64);
                out.Set(0, Cast(Sub(part(grad), part(Neg(grad))), grads[0].dtype()));
              });
  return y;
}

std::pair<DTensor, DTensor> CumMax(const DTensor& x, int dim) {
  return ScanExtremumOf(kCumMax, ScanOp::kMax, x, dim);
}
std::pair<DTensor, DTensor> CumMin(const DTensor& x, int dim) {
  return ScanExtremumOf(kCumMin, ScanOp::kMin, x, dim);
}

// ---- order --------------------------------------------------------------------------------------

std::pair<DTensor, DTensor> Sort(const DTensor& x, int given, bool descending) {
  const int dim = DimOf(kSort, x, given);
  OpCall call(kSort, {&x});
  call.Attribute(dim).Decide([&] { return LinesRule(x, dim, 1, 2); });
  auto [values, places] = ops::Sort(call.context(), call.local(0), dim, descending);
  DTensor y = call.Result(std::move(values), 0);
  const DTensor index = call.Result(std::move(places), 1);
  if (!IsFloating(y.dtype())) return {y, index};
  call.Record({&y}, [dim, si = Saved(index)](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0,
            Scatter(FilledLike(grads[0], grads[0].shape(), 0), dim, si.Get(kSort.name), grads[0]));
  });
  return {y, index};
}

DTensor ArgSort(const DTensor& x, int dim, bool descending) {
  return Sort(x.Detach(), dim, descending).second;
}

std::pair<DTensor, DTensor> TopK(const DTensor& x, int64_t k, int dim, bool largest) {
  internal::CheckUsable("topk", x);
  if (x.num_dims() == 0) return Sort(x, dim, largest);
  const int64_t extent = x.dim(internal::DimOf("topk", x, dim));
  if (k < 0 || k > extent) {
    ThrowInvalid("topk: expected k in [0, ", extent, "] along dim ", dim, " of ", x.ToString(),
                 ", got ", k);
  }
  const auto [values, indices] = Sort(x, dim, largest);
  return {Slice(values, dim, 0, k), Slice(indices, dim, 0, k)};
}

std::pair<DTensor, DTensor> KthValue(const DTensor& x, int64_t k, int dim, bool keepdim) {
  internal::CheckUsable("kthvalue", x);
  if (x.num_dims() == 0) return Sort(x, dim);
  const int d = internal::DimOf("kthvalue", x, dim);
  if (k < 1 || k > x.dim(d)) {
    ThrowInvalid("kthvalue: expected k in [1, ", x.dim(d), "] along dim ", dim, " of ",
                 x.ToString(), ", got ", k);
  }
  const auto [values, indices] = Sort(x, d);
  Dims shape = x.shape();
  shape[d] = 1;
  if (!keepdim) shape.erase(d);
  return {Reshape(Slice(values, d, k - 1, 1), shape), Reshape(Slice(indices, d, k - 1, 1), shape)};
}

DTensor Median(const DTensor& x) {
  internal::CheckUsable("median", x);
  const int64_t count = x.shape().NumElements();
  if (count == 0) ThrowInvalid("median: ", x.ToString(), " has no elements");
  const DTensor flat = Reshape(x, {-1});
  const DTensor middle = KthValue(flat, (count + 1) / 2, 0).first;
  if (!IsFloating(x.dtype())) return middle;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return Where(Any(IsNan(flat)), ScalarLike(x, nan), middle);
}

std::pair<DTensor, DTensor> MedianAlong(const DTensor& x, int given, bool keepdim) {
  internal::CheckUsable("median", x);
  if (x.num_dims() == 0) return Sort(x, given);
  const int dim = internal::DimOf("median", x, given);
  if (x.dim(dim) == 0) ThrowInvalid("median: dim ", given, " of ", x.ToString(), " is empty");
  DTensor index = KthValue(x.Detach(), (x.dim(dim) + 1) / 2, dim, /*keepdim=*/true).second;
  if (IsFloating(x.dtype())) {  // The first nan is the extremum.
    const DTensor has_nan = Any(IsNan(x.Detach()), {dim}, /*keepdim=*/true);
    index = Where(has_nan, ArgMax(x, dim, /*keepdim=*/true), index);
  }
  DTensor median = Gather(x, dim, index);
  if (keepdim) return {median, index};
  Dims shape = index.shape();
  shape.erase(dim);
  return {Reshape(median, shape), Reshape(index, shape)};
}

namespace {

// The index (with keepdim) of the first extremum: where the dim is sharded, a maximum and a minimum
// over the axis.
DTensor FirstExtremum(bool is_max, const char* op, const DTensor& given, int dim) {
  const DTensor x = given.dtype() == DType::kBool ? Cast(given, DType::kI32) : given.Detach();
  if (x.dim(dim) == 0) ThrowInvalid(op, ": dim ", dim, " of ", x.ToString(), " is empty");
  const DTensor extremum = is_max ? Max(x, {dim}, /*keepdim=*/true) : Min(x, {dim}, true);
  DTensor hits = Compare(CompareOp::kEqual, x, extremum);
  if (IsFloating(x.dtype())) hits = LogicalOr(hits, IsNan(x));  // Then the extremum is nan.
  const DTensor positions = internal::PositionsOn(x, x.dim(dim), dim, x.num_dims());
  const auto none = static_cast<double>(x.dim(dim));
  return Min(Where(hits, positions, internal::ScalarOn(x, DType::kI64, none)), {dim},
             /*keepdim=*/true);
}

DTensor WithoutDim(const DTensor& x, int dim, bool keepdim) {
  if (keepdim) return x;
  Dims shape = x.shape();
  shape.erase(dim);
  return Reshape(x, shape);
}

DTensor ArgExtremum(bool is_max, const DTensor& x, std::optional<int> dim, bool keepdim) {
  const char* const op = is_max ? "argmax" : "argmin";
  internal::CheckUsable(op, x);
  if (!dim || x.num_dims() == 0) {
    const DTensor index = FirstExtremum(is_max, op, Reshape(x, {-1}), 0);
    Dims shape;
    for (int d = 0; keepdim && d < x.num_dims(); ++d) shape.push_back(1);
    return Reshape(index, shape);
  }
  const int d = internal::DimOf(op, x, *dim);
  return WithoutDim(FirstExtremum(is_max, op, x, d), d, keepdim);
}

std::pair<DTensor, DTensor> ExtremumAlong(bool is_max, const DTensor& x, int dim, bool keepdim) {
  const char* const op = is_max ? "max" : "min";
  internal::CheckUsable(op, x);
  if (x.num_dims() == 0) return {x, ArgExtremum(is_max, x, std::nullopt, keepdim)};
  const int d = internal::DimOf(op, x, dim);
  const DTensor index = FirstExtremum(is_max, op, x, d);
  const DTensor others =
      Compare(CompareOp::kNotEqual, internal::PositionsOn(x, x.dim(d), d, x.num_dims()), index);
  DTensor value = Sum(MaskedFill(x, others, 0), {d}, keepdim);
  if (value.dtype() != x.dtype()) value = Cast(value, x.dtype());
  return {value, WithoutDim(index, d, keepdim)};
}

}  // namespace

DTensor ArgMax(const DTensor& x, std::optional<int> dim, bool keepdim) {
  return ArgExtremum(/*is_max=*/true, x, dim, keepdim);
}
DTensor ArgMin(const DTensor& x, std::optional<int> dim, bool keepdim) {
  return ArgExtremum(/*is_max=*/false, x, dim, keepdim);
}
std::pair<DTensor, DTensor> MaxAlong(const DTensor& x, int dim, bool keepdim) {
  return ExtremumAlong(/*is_max=*/true, x, dim, keepdim);
}
std::pair<DTensor, DTensor> MinAlong(const DTensor& x, int dim, bool keepdim) {
  return ExtremumAlong(/*is_max=*/false, x, dim, keepdim);
}

}  // namespace shardmesh
