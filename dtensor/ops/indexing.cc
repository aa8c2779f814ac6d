// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/indexing.h"

#include <algorithm>
#include <limits>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::FilledLike;
using internal::ScalarLike;

namespace {

constexpr Op kGather{"gather"}, kScatter{"scatter"}, kScatterAdd{"scatter_add"};
constexpr Op kScatterProduct{"scatter_product"}, kScatterMax{"scatter_max"},
    kScatterMin{"scatter_min"};

int DimOf(const Op& op, const DTensor& x, int dim) {
  internal::CheckUsable(op.name, x);
  return internal::DimOf(op.name, x, dim, /*scalar_has_one=*/true);
}

}  // namespace

// ---- reading ------------------------------------------------------------------------------------

namespace {

void CheckIndexFits(const Op& op, const DTensor& x, int dim, const DTensor& index) {
  internal::CheckUsable(op.name, index);
  if (index.dtype() != DType::kI64 && index.dtype() != DType::kI32)
    ThrowInvalid(op.name, ": expected an index of i64 or i32, got ", index.ToString());
  bool fits = index.num_dims() == x.num_dims();
  for (int d = 0; fits && d < x.num_dims(); ++d) fits = d == dim || index.dim(d) <= x.dim(d);
  if (fits) return;
  ThrowInvalid(op.name, ": the index ", index.ToString(), " does not fit ", x.ToString(),
               " along dim ", dim);
}

// Factors of x's dims and of the index's: equal ones but `dim` are shared, others whole. The
// index's `dim` is free if `shards_index`.
struct IndexFactors {
  Rule rule;
  Rule::FactorOfDim x, index;

  IndexFactors(const DTensor& tensor, int dim, const DTensor& ids, bool shards_index) {
    for (int d = 0; d < tensor.num_dims(); ++d) {
      const bool is_shared = d != dim && tensor.dim(d) == ids.dim(d);
      const bool is_free = d == dim && shards_index;
      const int factor = static_cast<int>(rule.factors.size());
      if (is_shared || is_free) rule.factors.push_back({"d" + std::to_string(d), false, {}});
      x.push_back(is_shared ? factor : Rule::kNotShardable);
      index.push_back(is_shared || is_free ? factor : Rule::kNotShardable);
    }
  }
};

}  // namespace

DTensor Gather(const DTensor& x, int given, const DTensor& index) {
  const int dim = DimOf(kGather, x, given);
  CheckIndexFits(kGather, x, dim, index);
  if (index.dtype() == DType::kI32) return Gather(x, given, Cast(index, DType::kI64));
  OpCall call(kGather, {&x, &index});
  call.Attribute(dim).Decide([&] {
    IndexFactors factors(x, dim, index, /*shards_index=*/true);
    factors.rule.inputs = {factors.x, factors.index};
    factors.rule.outputs = {factors.index};
    factors.rule.PassAll(1u);
    return OpRule{std::move(factors.rule), {index.shape()}};
  });
  DTensor y = call.Result(ops::Gather(call.context(), call.local(0), dim, call.local(1)));
  if (!IsFloating(y.dtype()) || !call.Records()) return y;
  call.Record({&y}, [dim, shape = x.shape(), si = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor zeros = FilledLike(grads[0], shape, 0);
    out.Set(0, ScatterAdd(zeros, dim, si.Get(kGather.name), grads[0]));
  });
  return y;
}

namespace {

// Negative indices count from the end.
DTensor FromStart(const DTensor& index, int64_t extent) {
  const DTensor from_end = Add(index, static_cast<double>(extent));
  return Where(Compare(CompareOp::kLess, index, 0.0), from_end, index);
}

}  // namespace

DTensor TakeAlongDim(const DTensor& x, const DTensor& ids, int given) {
  const int dim = DimOf(kGather, x, given);
  const DTensor index = FromStart(ids, x.num_dims() == 0 ? 1 : x.dim(dim));
  if (index.num_dims() != x.num_dims()) {
    ThrowInvalid("take_along_dim: the index ", index.ToString(), " and ", x.ToString(),
                 " differ in their number of dims");
  }
  Dims of_x = x.shape(), of_index = index.shape();
  of_x[dim] = of_index[dim] = 1;
  const Dims both = BroadcastShapes(of_x, of_index, "take_along_dim");
  of_x = of_index = both;
  of_x[dim] = x.dim(dim);
  of_index[dim] = index.dim(dim);
  return Gather(Expand(x, of_x), dim, Expand(index, of_index));
}

namespace {

// index [m] as [.., m, ..] for slices of x.
DTensor SliceIndex(const char* op, const DTensor& x, int dim, const DTensor& index) {
  internal::CheckUsable(op, index);
  if (index.num_dims() > 1)
    ThrowInvalid(op, ": expected an index of one dim, got ", index.ToString());
  const DTensor ids = index.dtype() == DType::kI32 ? Cast(index, DType::kI64) : index;
  Dims thin, full = x.shape();
  const int64_t count = index.shape().NumElements();
  for (int d = 0; d < x.num_dims(); ++d) thin.push_back(d == dim ? count : 1);
  if (x.num_dims() > 0) full[dim] = count;
  return Expand(Reshape(ids, thin), full);
}

}  // namespace

DTensor IndexSelect(const DTensor& x, int given, const DTensor& index) {
  const int dim = DimOf(kGather, x, given);
  return Gather(x, dim, SliceIndex("index_select", x, dim, index));
}

DTensor Take(const DTensor& x, const DTensor& index) {
  const DTensor flat = Reshape(x, {-1}), ids = Reshape(index, {-1});
  return Reshape(Gather(flat, 0, FromStart(ids, flat.dim(0))), index.shape());
}

// ---- writing ------------------------------------------------------------------------------------

namespace {

const Op& OpOf(ScatterOp kernel) {
  switch (kernel) {
    case ScatterOp::kSet:
      return kScatter;
    case ScatterOp::kAdd:
      return kScatterAdd;
    case ScatterOp::kProduct:
      return kScatterProduct;
    case ScatterOp::kMax:
      return kScatterMax;
    case ScatterOp::kMin:
      break;
  }
  return kScatterMin;
}

// Without a gradient but for kSet and kAdd.
DTensor ScatterWith(ScatterOp kernel, const DTensor& x, int given, const DTensor& index,
                    const DTensor& source) {
  const Op& op = OpOf(kernel);
  const int dim = DimOf(op, x, given);
  CheckIndexFits(op, x, dim, index);
  if (index.dtype() == DType::kI32)
    return ScatterWith(kernel, x, given, Cast(index, DType::kI64), source);
  internal::CheckUsable(op.name, source);
  if (!(source.shape() == index.shape())) {
    ThrowInvalid(op.name, ": the source ", source.ToString(), " and the index ", index.ToString(),
                 " differ in shape");
  }
  const bool is_linear = kernel == ScatterOp::kSet || kernel == ScatterOp::kAdd;
  OpCall call(op, {&x, &index, &source});
  call.Attribute(dim).Decide([&] {
    IndexFactors factors(x, dim, index, /*shards_index=*/false);
    factors.rule.inputs = {factors.x, factors.index, factors.index};
    factors.rule.outputs = {factors.x};
    if (is_linear) factors.rule.linear = {1u | 4u};  // In x and source together.
    return OpRule{std::move(factors.rule), {x.shape()}};
  });
  DTensor y = call.Result(
      ops::Scatter(call.context(), kernel, call.local(0), dim, call.local(1), call.local(2)));
  if (!is_linear || !IsFloating(y.dtype()) || !call.Records()) return y;
  call.Record({&y}, [&op, kernel, dim, si = Saved(call.input(1))](std::span<const DTensor> grads,
                                                                  Gradients& out) {
    const DTensor ids = si.Get(op.name);
    if (out.Needs(2)) out.Set(2, Gather(grads[0], dim, ids));
    if (!out.Needs(0)) return;
    const DTensor zeros = FilledLike(grads[0], ids.shape(), 0);
    out.Set(0, kernel == ScatterOp::kAdd ? grads[0] : Scatter(grads[0], dim, ids, zeros));
  });
  return y;
}

}  // namespace

DTensor Scatter(const DTensor& x, int dim, const DTensor& index, const DTensor& source) {
  return ScatterWith(ScatterOp::kSet, x, dim, index, source);
}

DTensor ScatterAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& source) {
  return ScatterWith(ScatterOp::kAdd, x, dim, index, source);
}

namespace {

// A reduction y of x and source at `index`, differentiable through what it is made of: sums and
// shares of them.
DTensor ScatterMean(const DTensor& x, int dim, const DTensor& index, const DTensor& source,
                    bool include_self) {
  const DTensor ones = FilledLike(x, index.shape(), 1);
  const DTensor start = FilledLike(x, x.shape(), include_self ? 1 : 0);
  const DTensor count = Maximum(ScatterAdd(start, dim, index, ones), 1.0);
  return Div(ScatterAdd(x, dim, index, source), count);
}

// Ties share the gradient.
DTensor ScatterExtremum(ScatterOp kernel, const DTensor& x, int dim, const DTensor& index,
                        const DTensor& source) {
  const DTensor y = ScatterWith(kernel, x.Detach(), dim, index, source.Detach());
  const DTensor of_x = Compare(CompareOp::kEqual, x.Detach(), y);
  const DTensor of_source = Compare(CompareOp::kEqual, source.Detach(), Gather(y, dim, index));
  const DTensor count = ScatterAdd(Cast(of_x, x.dtype()), dim, index, Cast(of_source, x.dtype()));
  const auto chosen = [&](const DTensor& hits, const DTensor& value) {
    return Where(hits, value, ScalarLike(x, 0));
  };
  // Of value y, and of derivative hits / count.
  const DTensor sum = ScatterAdd(chosen(of_x, x), dim, index, chosen(of_source, source));
  const DTensor mean = Div(sum, Maximum(count, 1.0));
  const DTensor finite = chosen(IsFinite(mean.Detach()), mean);
  return Add(y, Sub(finite, finite.Detach()));
}

DTensor ScatterProductOf(const DTensor& x, int dim, const DTensor& index, const DTensor& source) {
  const auto at = [&](const DTensor& t) { return Gather(t, dim, index); };
  const DTensor one = ScalarLike(x, 1), zero = ScalarLike(x, 0);
  const auto is_zero = [](const DTensor& t) { return Compare(CompareOp::kEqual, t.Detach(), 0.0); };
  const DTensor zero_x = is_zero(x), zero_source = is_zero(source);
  const DTensor y = ScatterWith(ScatterOp::kProduct, x.Detach(), dim, index, source.Detach());
  const DTensor zeros =
      ScatterAdd(Cast(zero_x, x.dtype()), dim, index, Cast(zero_source, x.dtype()));
  const DTensor rest = ScatterWith(ScatterOp::kProduct, Where(zero_x, one, x.Detach()), dim, index,
                                   Where(zero_source, one, source.Detach()));
  // The product of the others: what one element is multiplied by.
  const auto others = [&](const DTensor& t, const DTensor& is_zero_t, const DTensor& product,
                          const DTensor& count, const DTensor& without_zeros) {
    const DTensor alone = LogicalAnd(is_zero_t, Compare(CompareOp::kEqual, count, 1.0));
    return Where(Compare(CompareOp::kEqual, count, 0.0), Div(product, t.Detach()),
                 Where(alone, without_zeros, zero));
  };
  const DTensor of_x = Mul(x, others(x, zero_x, y, zeros, rest));
  const DTensor of_source = Mul(source, others(source, zero_source, at(y), at(zeros), at(rest)));
  const DTensor sum = ScatterAdd(of_x, dim, index, of_source);
  return Add(y, Sub(sum, sum.Detach()));
}

}  // namespace

DTensor ScatterReduce(const DTensor& x, int given, const DTensor& index, const DTensor& source,
                      ScatterReduction reduction, bool include_self) {
  const int dim = DimOf(kScatter, x, given);
  if (!IsFloating(x.dtype()))
    ThrowInvalid("scatter_reduce: expected a floating-point dtype, got ", x.ToString());
  if (IsSmall(x.dtype()) && source && source.dtype() == x.dtype()) {  // Counts, too.
    return Cast(ScatterReduce(Cast(x, DType::kF32), dim, index, Cast(source, DType::kF32),
                              reduction, include_self),
                x.dtype());
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double identity = 0;
  if (reduction == ScatterReduction::kProduct) identity = 1;
  if (reduction == ScatterReduction::kMax) identity = -kInfinity;
  if (reduction == ScatterReduction::kMin) identity = kInfinity;
  DTensor start = x;
  if (!include_self) {
    start = Scatter(x, dim, index, FilledLike(x, index.shape(), identity));
  }
  switch (reduction) {
    case ScatterReduction::kSum:
      return ScatterAdd(start, dim, index, source);
    case ScatterReduction::kMean:
      return ScatterMean(start, dim, index, source, include_self);
    case ScatterReduction::kMax:
      return ScatterExtremum(ScatterOp::kMax, start, dim, index, source);
    case ScatterReduction::kMin:
      return ScatterExtremum(ScatterOp::kMin, start, dim, index, source);
    case ScatterReduction::kProduct:
      break;
  }
  return ScatterProductOf(start, dim, index, source);
}

DTensor IndexAdd(const DTensor& x, int given, const DTensor& index, const DTensor& source,
                 double alpha) {
  const int dim = DimOf(kScatterAdd, x, given);
  return ScatterAdd(x, dim, SliceIndex("index_add", x, dim, index),
                    alpha == 1 ? source : Mul(source, alpha));
}

DTensor IndexCopy(const DTensor& x, int given, const DTensor& index, const DTensor& source) {
  const int dim = DimOf(kScatter, x, given);
  return Scatter(x, dim, SliceIndex("index_copy", x, dim, index), source);
}

DTensor IndexFill(const DTensor& x, int given, const DTensor& index, double value) {
  const int dim = DimOf(kScatter, x, given);
  const DTensor ids = SliceIndex("index_fill", x, dim, index);
  return Scatter(x, dim, ids, FilledLike(x, ids.shape(), value));
}

DTensor IndexFill(const DTensor& x, int given, const DTensor& index, const DTensor& value) {
  const int dim = DimOf(kScatter, x, given);
  internal::CheckUsable("index_fill", value);
  if (value.num_dims() != 0)
    ThrowInvalid("index_fill: expected a value without dims, got ", value.ToString());
  const DTensor ids = SliceIndex("index_fill", x, dim, index);
  return Scatter(x, dim, ids, Expand(value, ids.shape()));
}

DTensor MaskedFill(const DTensor& x, const DTensor& mask, double value) {
  internal::CheckUsable("masked_fill", x);
  return Where(mask, ScalarLike(x, value), x);
}

DTensor OneHot(const DTensor& ids, int64_t classes) {
  internal::CheckUsable("one_hot", ids);
  if (ids.dtype() != DType::kI64)
    ThrowInvalid("one_hot: expected ids of i64, got ", ids.ToString());
  Dims shape = ids.shape();
  shape.push_back(1);
  const int last = ids.num_dims();
  const DTensor positions = internal::PositionsOn(ids, classes, last, last + 1);
  return Cast(Compare(CompareOp::kEqual, Reshape(ids, shape), positions), DType::kI64);
}

}  // namespace shardmesh
