// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/reductions.h"

#include <algorithm>
#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kProd{"prod"};

int64_t CountOf(const char* op, const DTensor& x, const std::vector<int>& dims) {
  int64_t count = 1;
  for (int d : internal::NormalizedDims(op, x, dims)) count *= x.dim(d);
  return count;
}

// y, reduced with keepdim, as without it.
DTensor WithoutKept(const char* op, const DTensor& y, const std::vector<int>& dims, bool keepdim) {
  if (keepdim) return y;
  const std::vector<int> reduced = internal::NormalizedDims(op, y, dims);
  Dims shape = y.shape();
  for (auto d = reduced.rbegin(); d != reduced.rend(); ++d) shape.erase(*d);
  return Reshape(y, shape);
}

void CheckFloating(const char* op, const DTensor& x) {
  internal::CheckUsable(op, x);
  if (!IsFloating(x.dtype()))
    ThrowInvalid(op, ": ", x.ToString(), " is not of a floating-point dtype; cast it");
}

DTensor ZeroWhere(const DTensor& condition, const DTensor& x) {
  return Where(condition, internal::ScalarLike(x, 0), x);
}

// The product of the others, by element: 0 where another one is 0.
DTensor ProductOfOthers(const DTensor& x, const DTensor& y, const std::vector<int>& dims) {
  const DTensor is_zero = Compare(CompareOp::kEqual, x, 0.0);
  const DTensor zeros = Sum(is_zero, dims, /*keepdim=*/true);
  const DTensor rest = Prod(Where(is_zero, internal::ScalarLike(x, 1), x), dims, /*keepdim=*/true);
  const DTensor alone = LogicalAnd(is_zero, Compare(CompareOp::kEqual, zeros, 1.0));
  const DTensor without = Where(alone, rest, internal::ScalarLike(x, 0));
  return Where(Compare(CompareOp::kEqual, zeros, 0.0), Div(y, x), without);
}

DTensor ProdKept(const DTensor& x, const std::vector<int>& dims) {
  const std::vector<int> all = internal::NormalizedDims(kProd.name, x, dims);
  uint64_t mask = 0;
  for (int d : all) mask |= uint64_t{1} << d;
  OpCall call(kProd, {&x});
  call.Attribute(mask).Decide([&] {
    OpRule rule{internal::FactorsOf(x.shape()), {x.shape()}};
    rule.rule.reduction = ReduceOp::kProduct;
    rule.rule.Pass(ReduceOp::kProduct, 1u);
    rule.rule.outputs.emplace_back();
    for (int d = 0; d < x.num_dims(); ++d) {
      const bool is_reduced = ((mask >> d) & 1u) != 0;
      rule.rule.outputs[0].push_back(is_reduced ? Rule::kNotShardable : d);
      if (is_reduced) rule.output_shapes[0][d] = 1;
    }
    return rule;
  });
  DTensor y = call.Result(
      ops::Reduce(call.context(), ReduceOp::kProduct, call.local(0), all, /*keepdim=*/true));
  if (!IsFloating(y.dtype()) || !call.Records()) return y;
  call.Record({&y}, [dims, sx = Saved(call.input(0)), sy = Saved(y)](std::span<const DTensor> grads,
                                                                     Gradients& out) {
    out.Set(0, Mul(grads[0], ProductOfOthers(sx.Get(kProd.name), sy.Get(kProd.name), dims)));
  });
  return y;
}

}  // namespace

DTensor Prod(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  internal::CheckUsable(kProd.name, x);
  if (x.dtype() == DType::kBool) return Prod(Cast(x, DType::kI64), dims, keepdim);
  if (IsSmall(x.dtype())) return Cast(Prod(Cast(x, DType::kF32), dims, keepdim), x.dtype());
  return WithoutKept(kProd.name, ProdKept(x, dims), dims, keepdim);
}

// ---- moments ------------------------------------------------------------------------------------

std::pair<DTensor, DTensor> VarMean(const DTensor& x, const std::vector<int>& dims,
                                    double correction, bool keepdim) {
  CheckFloating("var", x);
  if (IsSmall(x.dtype())) {
    const auto [var, mean] = VarMean(Cast(x, DType::kF32), dims, correction, keepdim);
    return {Cast(var, x.dtype()), Cast(mean, x.dtype())};
  }
  const auto count = static_cast<double>(CountOf("var", x, dims));
  const DTensor mean = Mean(x, dims, /*keepdim=*/true);
  const DTensor squares = Sum(Square(Sub(x, mean)), dims, keepdim);
  return {Div(squares, std::max(0.0, count - correction)), WithoutKept("var", mean, dims, keepdim)};
}

std::pair<DTensor, DTensor> StdMean(const DTensor& x, const std::vector<int>& dims,
                                    double correction, bool keepdim) {
  internal::CheckUsable("std", x);
  if (IsSmall(x.dtype())) {
    const auto [std, mean] = StdMean(Cast(x, DType::kF32), dims, correction, keepdim);
    return {Cast(std, x.dtype()), Cast(mean, x.dtype())};
  }
  const auto [var, mean] = VarMean(x, dims, correction, keepdim);
  return {Sqrt(var), mean};
}

DTensor Var(const DTensor& x, const std::vector<int>& dims, double correction, bool keepdim) {
  return VarMean(x, dims, correction, keepdim).first;
}

DTensor Std(const DTensor& x, const std::vector<int>& dims, double correction, bool keepdim) {
  return StdMean(x, dims, correction, keepdim).first;
}

DTensor NanSum(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  internal::CheckUsable("nansum", x);
  return Sum(IsFloating(x.dtype()) ? ZeroWhere(IsNan(x), x) : x, dims, keepdim);
}

DTensor NanMean(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  CheckFloating("nanmean", x);
  if (IsSmall(x.dtype())) return Cast(NanMean(Cast(x, DType::kF32), dims, keepdim), x.dtype());
  const DTensor count = Sum(LogicalNot(IsNan(x)), dims, keepdim);
  return Div(NanSum(x, dims, keepdim), Cast(count, x.dtype()));
}

// ---- exponentials and norms ---------------------------------------------------------------------

DTensor LogSumExp(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  CheckFloating("logsumexp", x);
  if (IsSmall(x.dtype())) return Cast(LogSumExp(Cast(x, DType::kF32), dims, keepdim), x.dtype());
  if (CountOf("logsumexp", x, dims) == 0) return Log(Sum(Exp(x), dims, keepdim));
  // A maximum that is not finite would make nan of inf - inf.
  const DTensor max = Max(x.Detach(), dims, /*keepdim=*/true);
  const DTensor shift = Where(IsFinite(max), max, internal::ScalarLike(x, 0));
  const DTensor sum = Log(Sum(Exp(Sub(x, shift)), dims, /*keepdim=*/true));
  return WithoutKept("logsumexp", Add(sum, shift), dims, keepdim);
}

DTensor VectorNorm(const DTensor& x, double order, const std::vector<int>& dims, bool keepdim) {
  CheckFloating("vector_norm", x);
  if (IsSmall(x.dtype()))
    return Cast(VectorNorm(Cast(x, DType::kF32), order, dims, keepdim), x.dtype());
  if (std::isinf(order)) {
    if (order > 0 && CountOf("vector_norm", x, dims) == 0) return Sum(x, dims, keepdim);
    return order > 0 ? Max(Abs(x), dims, keepdim) : Min(Abs(x), dims, keepdim);
  }
  if (order == 0) {  // The inner choice makes it differentiable, with a gradient of 0.
    const DTensor is_zero = Compare(CompareOp::kEqual, x, 0.0);
    return Sum(
        Where(is_zero, internal::ScalarLike(x, 0), Where(is_zero, x, internal::ScalarLike(x, 1))),
        dims, keepdim);
  }
  if (order == 1) return Sum(Abs(x), dims, keepdim);
  const DTensor sum =
      order == 2 ? Sum(Square(x), dims, keepdim) : Sum(Pow(Abs(x), order), dims, keepdim);
  // Where all are 0, the root's derivative is inf and theirs 0: the gradient is 0.
  const DTensor is_zero = Compare(CompareOp::kEqual, sum, 0.0);
  const DTensor safe = Where(is_zero, internal::ScalarLike(x, 1), sum);
  const DTensor root = order == 2 ? Sqrt(safe) : Pow(safe, 1 / order);
  return order < 0 ? Where(is_zero, Pow(sum, 1 / order), root) : ZeroWhere(is_zero, root);
}

DTensor Trace(const DTensor& x) {
  internal::CheckUsable("trace", x);
  if (x.num_dims() != 2) ThrowInvalid("trace: expected a matrix, got ", x.ToString());
  return Sum(Diagonal(x));
}

DTensor Dist(const DTensor& a, const DTensor& b, double order) {
  internal::CheckUsable("dist", a);
  internal::CheckUsable("dist", b);
  if (IsSmall(a.dtype()) && a.dtype() == b.dtype())
    return Cast(Dist(Cast(a, DType::kF32), Cast(b, DType::kF32), order), a.dtype());
  return VectorNorm(Sub(a, b), order);
}

// ---- counts -------------------------------------------------------------------------------------

DTensor CountNonZero(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  return Sum(LogicalNot(LogicalNot(x)), dims, keepdim);
}

DTensor Any(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  return Compare(CompareOp::kGreater, CountNonZero(x, dims, keepdim), 0.0);
}

DTensor All(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  return Compare(CompareOp::kEqual, Sum(LogicalNot(x), dims, keepdim), 0.0);
}

}  // namespace shardmesh
