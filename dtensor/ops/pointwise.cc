// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic with its special cases of numbers, comparison, selection, conversion, dropout. Other
// elementwise ops are rows: ops_elementwise.cc.
#include <cmath>

#include "absl/functional/function_ref.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::ElementwiseRule;
using internal::Select;
using internal::WriteSumTo;

namespace {

// ---- two operands -------------------------------------------------------------------------------

constexpr Op kAdd{"add"}, kSub{"sub"}, kMul{"mul"}, kDiv{"div"}, kMaximum{"maximum"},
    kMinimum{"minimum"};
constexpr Op kAddScalar{"add_scalar"}, kMulScalar{"mul_scalar"}, kDivScalar{"div_scalar"};
constexpr Op kMaximumScalar{"maximum_scalar"}, kMinimumScalar{"minimum_scalar"};
constexpr Op kCompare{"compare"}, kCompareScalar{"compare_scalar"}, kWhere{"where"}, kCast{"cast"};
constexpr Op kDropout{"dropout"};

struct BinaryCall {
  BinaryCall(const Op& op, BinaryOp kernel, const DTensor& a, const DTensor& b,
             absl::FunctionRef<void(Rule&)> pass)
      : call(op, {&a, &b}) {
    call.Decide([&] {
      internal::CheckSameDType(op.name, a, b);
      if (kernel == BinaryOp::kDiv) internal::CheckFloating(op.name, a);
      const DTensor* operands[] = {&a, &b};
      OpRule op_rule = ElementwiseRule(op.name, operands);
      pass(op_rule.rule);
      return op_rule;
    });
    result = call.Result(ops::Binary(call.context(), kernel, call.local(0), call.local(1)));
  }
  OpCall call;
  DTensor result;
};

// Of equal elements each side gets half of the gradient; a nan on either side takes none.
void ExtremumBackward(const DTensor& grad, const DTensor& a, const DTensor& b, const DTensor& y,
                      Gradients& out) {
  const DTensor tie = Compare(CompareOp::kEqual, a, b);
  const DTensor share = Where(tie, Mul(grad, 0.5), grad);
  for (int i = 0; i < 2; ++i) {
    if (!out.Needs(i)) continue;
    const DTensor& side = i == 0 ? a : b;
    WriteSumTo(out, i, Select(Compare(CompareOp::kEqual, side, y), share), side.shape());
  }
}

DTensor Extremum(const Op& op, BinaryOp kernel, const DTensor& a, const DTensor& b) {
  const bool is_max = kernel == BinaryOp::kMaximum;
  BinaryCall c(op, kernel, a, b, [is_max](Rule& rule) {
    const ReduceOp same = is_max ? ReduceOp::kMax : ReduceOp::kMin;
    const ReduceOp other = is_max ? ReduceOp::kMin : ReduceOp::kMax;
    for (const uint32_t set : {3u, 1u, 2u}) rule.Pass(same, set);
    for (const uint32_t set : {1u, 2u}) rule.Pass(other, set);
  });
  if (!c.call.Records()) return c.result;
  c.call.Record(
      {&c.result}, [&op, sa = Saved(c.call.input(0)), sb = Saved(c.call.input(1)),
                    sy = Saved(c.result)](std::span<const DTensor> grads, Gradients& out) {
        ExtremumBackward(grads[0], sa.Get(op.name), sb.Get(op.name), sy.Get(op.name), out);
      });
  return c.result;
}

// `b` as the kernel has it, which computes in f32 for the smaller dtypes.
double InDType(const DTensor& a, double b) {
  return IsFloating(a.dtype()) && a.dtype() != DType::kF64 ? static_cast<float>(b) : b;
}

// What an op with a number does to reductions of its operand.
struct ScalarPasses {
  bool sums = false;
  bool rises = false, falls = false;  // With x, at infinities and nan too.
};

struct ScalarCall {
  ScalarCall(const Op& op, BinaryOp kernel, const DTensor& a, double b, ScalarPasses passes)
      : call(op, {&a}) {
    call.Attribute(passes.sums, passes.rises, passes.falls).Decide([&] {
      const DTensor* operands[] = {&a};
      OpRule op_rule = ElementwiseRule(op.name, operands);
      Rule& rule = op_rule.rule;
      if (passes.sums) rule.Pass(ReduceOp::kSum, 1u);
      if (passes.rises) rule.Pass(ReduceOp::kMax, 1u).Pass(ReduceOp::kMin, 1u);
      if (passes.falls) {
        rule.Pass(ReduceOp::kMax, ReduceOp::kMin, 1u).Pass(ReduceOp::kMin, ReduceOp::kMax, 1u);
      }
      return op_rule;
    });
    result = call.Result(ops::Binary(call.context(), kernel, call.local(0), b));
  }
  OpCall call;
  DTensor result;
};

DTensor ExtremumScalar(const Op& op, BinaryOp kernel, CompareOp passes, const DTensor& a,
                       double b) {
  ScalarCall c(op, kernel, a, b, {.rises = true});
  if (!c.call.Records()) return c.result;
  c.call.Record({&c.result}, [&op, passes, b, sa = Saved(c.call.input(0))](
                                 std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Select(Compare(passes, sa.Get(op.name), b), grads[0]));
  });
  return c.result;
}

}  // namespace

DTensor Add(const DTensor& a, const DTensor& b) {
  BinaryCall c(kAdd, BinaryOp::kAdd, a, b, [](Rule& rule) { rule.Pass(ReduceOp::kSum, 3u); });
  c.call.Record({&c.result},
                [sa = a.shape(), sb = b.shape()](std::span<const DTensor> grads, Gradients& out) {
                  if (out.Needs(0)) WriteSumTo(out, 0, grads[0], sa);
                  if (out.Needs(1)) WriteSumTo(out, 1, grads[0], sb);
                });
  return c.result;
}

DTensor Sub(const DTensor& a, const DTensor& b) {
  BinaryCall c(kSub, BinaryOp::kSub, a, b, [](Rule& rule) { rule.Pass(ReduceOp::kSum, 3u); });
  c.call.Record({&c.result},
                [sa = a.shape(), sb = b.shape()](std::span<const DTensor> grads, Gradients& out) {
                  if (out.Needs(0)) WriteSumTo(out, 0, grads[0], sa);
                  if (out.Needs(1)) WriteSumTo(out, 1, Neg(grads[0]), sb);
                });
  return c.result;
}

DTensor Mul(const DTensor& a, const DTensor& b) {
  BinaryCall c(kMul, BinaryOp::kMul, a, b, [](Rule& rule) {
    rule.Pass(ReduceOp::kSum, 1u).Pass(ReduceOp::kSum, 2u).Pass(ReduceOp::kProduct, 3u);
  });
  if (!c.call.Records()) return c.result;
  c.call.Record({&c.result}, [sa = Saved(c.call.input(0)), sb = Saved(c.call.input(1))](
                                 std::span<const DTensor> grads, Gradients& out) {
    const DTensor x = sa.Get("mul"), y = sb.Get("mul");
    if (out.Needs(0)) WriteSumTo(out, 0, Mul(grads[0], y), x.shape());
    if (out.Needs(1)) WriteSumTo(out, 1, Mul(grads[0], x), y.shape());
  });
  return c.result;
}

DTensor Div(const DTensor& a, const DTensor& b) {
  BinaryCall c(kDiv, BinaryOp::kDiv, a, b, [](Rule& rule) { rule.Pass(ReduceOp::kSum, 1u); });
  if (!c.call.Records()) return c.result;
  c.call.Record({&c.result}, [sa = Saved(c.call.input(0)), sb = Saved(c.call.input(1))](
                                 std::span<const DTensor> grads, Gradients& out) {
    const DTensor x = sa.Get("div"), y = sb.Get("div");
    const DTensor scaled = Div(grads[0], y);  // d(x/y) = dx / y - (dx / y) (x / y)
    if (out.Needs(0)) WriteSumTo(out, 0, scaled, x.shape());
    if (out.Needs(1)) WriteSumTo(out, 1, Neg(Mul(scaled, Div(x, y))), y.shape());
  });
  return c.result;
}

DTensor Maximum(const DTensor& a, const DTensor& b) {
  return Extremum(kMaximum, BinaryOp::kMaximum, a, b);
}
DTensor Minimum(const DTensor& a, const DTensor& b) {
  return Extremum(kMinimum, BinaryOp::kMinimum, a, b);
}

DTensor Add(const DTensor& a, double b) {
  // Integers may overflow, most of all the identity of a maximum.
  internal::CheckUsable(kAddScalar.name, a);
  ScalarCall c(kAddScalar, BinaryOp::kAdd, a, b,
               {.rises = IsFloating(a.dtype()) && std::isfinite(InDType(a, b))});
  c.call.Record({&c.result},
                [](std::span<const DTensor> grads, Gradients& out) { out.Set(0, grads[0]); });
  return c.result;
}

DTensor Sub(const DTensor& a, double b) { return Add(a, -b); }

// -b is exact, so that this is rounded once.
DTensor Sub(double a, const DTensor& b) { return Add(Neg(b), a); }

DTensor Mul(const DTensor& a, double b) {
  // Summands of either sign times an infinity would be infinities whose sum is nan.
  // And 0 times an infinity, be it the identity of a maximum, is nan.
  internal::CheckUsable(kMulScalar.name, a);
  const double factor = InDType(a, b);
  const bool is_ordered = IsFloating(a.dtype()) && std::isfinite(factor);
  ScalarCall c(kMulScalar, BinaryOp::kMul, a, b,
               {.sums = std::isfinite(factor),
                .rises = is_ordered && factor > 0,
                .falls = is_ordered && factor < 0});
  c.call.Record({&c.result}, [b](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Mul(grads[0], b));
  });
  return c.result;
}

DTensor Div(const DTensor& a, double b) {
  internal::CheckUsable(kDivScalar.name, a);
  const double divisor = InDType(a, b);
  const bool is_sum = IsFloating(a.dtype()) && std::isfinite(1.0 / divisor);
  const bool is_ordered = is_sum && std::isfinite(divisor);
  ScalarCall c(
      kDivScalar, BinaryOp::kDiv, a, b,
      {.sums = is_sum, .rises = is_ordered && divisor > 0, .falls = is_ordered && divisor < 0});
  c.call.Record({&c.result}, [b](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Div(grads[0], b));
  });
  return c.result;
}

DTensor Maximum(const DTensor& a, double b) {
  return ExtremumScalar(kMaximumScalar, BinaryOp::kMaximum, CompareOp::kGreater, a, b);
}

DTensor Minimum(const DTensor& a, double b) {
  return ExtremumScalar(kMinimumScalar, BinaryOp::kMinimum, CompareOp::kLess, a, b);
}

DTensor Compare(CompareOp op, const DTensor& a, const DTensor& b) {
  OpCall call(kCompare, {&a, &b});
  call.Decide([&] {
    const DTensor* operands[] = {&a, &b};
    return ElementwiseRule(kCompare.name, operands);
  });
  return call.Result(ops::Compare(call.context(), op, call.local(0), call.local(1)));
}

DTensor Compare(CompareOp op, const DTensor& a, double b) {
  OpCall call(kCompareScalar, {&a});
  call.Decide([&] {
    const DTensor* operands[] = {&a};
    return ElementwiseRule(kCompareScalar.name, operands);
  });
  return call.Result(ops::Compare(call.context(), op, call.local(0), b));
}

DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b) {
  OpCall call(kWhere, {&condition, &a, &b});
  call.Decide([&] {
    if (condition.dtype() != DType::kBool)
      ThrowInvalid("where: the condition must have the dtype bool, got ", condition.ToString());
    internal::CheckSameDType(kWhere.name, a, b);
    const DTensor* operands[] = {&condition, &a, &b};
    OpRule op_rule = ElementwiseRule(kWhere.name, operands);
    op_rule.rule.PassAll(6u);
    return op_rule;
  });
  DTensor y = call.Result(ops::Where(call.context(), call.local(0), call.local(1), call.local(2)));
  if (!call.Records()) return y;
  call.Record({&y}, [saved = Saved(call.input(0)), sa = a.shape(), sb = b.shape()](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor chosen = saved.Get(kWhere.name);
    if (out.Needs(1)) WriteSumTo(out, 1, Select(chosen, grads[0], /*keep=*/true), sa);
    if (out.Needs(2)) WriteSumTo(out, 2, Select(chosen, grads[0], /*keep=*/false), sb);
  });
  return y;
}

DTensor Cast(const DTensor& x, DType dtype) {
  internal::CheckUsable(kCast.name, x);
  if (x.dtype() == dtype) return x;
  // Widening is exact, so a Partial passes through; rounding each summand would not be the rounding
  // of the sum.
  const bool exact =
      IsFloating(x.dtype()) && IsFloating(dtype) && SizeOf(dtype) > SizeOf(x.dtype());
  // Rounding keeps the order of values. An integer or bool of an infinity or nan is another thing.
  const bool keeps_order = IsFloating(dtype) && x.dtype() != DType::kBool;
  OpCall call(kCast, {&x});
  call.Attribute(exact, keeps_order).Decide([&] {
    const DTensor* operands[] = {&x};
    OpRule op_rule = ElementwiseRule(kCast.name, operands);
    if (exact) op_rule.rule.Pass(ReduceOp::kSum, 1u).Pass(ReduceOp::kProduct, 1u);
    if (keeps_order) op_rule.rule.Pass(ReduceOp::kMax, 1u).Pass(ReduceOp::kMin, 1u);
    return op_rule;
  });
  DTensor y = call.ResultOf(dtype, ops::Cast(call.context(), call.local(0), dtype));
  if (!IsFloating(dtype)) return y;
  call.Record({&y}, [from = x.dtype()](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Cast(grads[0], from));
  });
  return y;
}

DTensor Dropout(const DTensor& x, double p, RandomKey key) {
  internal::CheckUsable(kDropout.name, x);
  if (!(p >= 0.0 && p <= 1.0)) {
    ThrowInvalid("dropout: expected a probability in [0, 1], got ", p, " for ", x.ToString());
  }
  OpCall call(kDropout, {&x});
  call.Decide([&] {
    internal::CheckFloating(kDropout.name, x);
    const DTensor* operands[] = {&x};
    return ElementwiseRule(kDropout.name, operands, {1u});
  });
  const RandomBox box{x.shape(), call.InputBox(0).begin};
  DTensor y = call.Result(ops::Dropout(call.context(), key, box, call.local(0), p));
  // The same mask again, whatever box the gradient comes in.
  call.Record({&y}, [p, key](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Dropout(grads[0], p, key));
  });
  return y;
}

}  // namespace shardmesh
