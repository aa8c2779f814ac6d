// SPDX-License-Identifier: Apache-2.0
#include <cmath>

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

// ---- one operand --------------------------------------------------------------------------------

struct UnaryInfo {
  Op op;
  Op backward;
  bool linear;
};

const UnaryInfo& InfoOf(UnaryOp op) {
  static constexpr UnaryInfo kInfos[] = {
      {{"neg"}, {"neg_backward"}, true},
      {{"abs"}, {"abs_backward"}, false},
      {{"exp"}, {"exp_backward"}, false},
      {{"log"}, {"log_backward"}, false},
      {{"sqrt"}, {"sqrt_backward"}, false},
      {{"rsqrt"}, {"rsqrt_backward"}, false},
      {{"reciprocal"}, {"reciprocal_backward"}, false},
      {{"tanh"}, {"tanh_backward"}, false},
      {{"sigmoid"}, {"sigmoid_backward"}, false},
      {{"silu"}, {"silu_backward"}, false},
      {{"relu"}, {"relu_backward"}, false},
      {{"square"}, {"square_backward"}, false},
      {{"sin"}, {"sin_backward"}, false},
      {{"cos"}, {"cos_backward"}, false},
  };
  return kInfos[static_cast<int>(op)];
}

// `saved` is x or y: the one that the kernel reads.
DTensor UnaryBackward(UnaryOp op, const DTensor& grad, const DTensor& saved) {
  const UnaryInfo& info = InfoOf(op);
  OpCall call(info.backward, {&grad, &saved});
  const DTensor* operands[] = {&grad, &saved};
  call.Decide([&] { return ElementwiseRule(info.backward.name, operands, {1u}); });
  const Tensor& read = call.local(1);
  return call.Result(ops::UnaryBackward(call.context(), op, call.local(0),
                                        BackwardReadsInput(op) ? read : Tensor(),
                                        BackwardReadsOutput(op) ? read : Tensor()));
}

DTensor Unary(UnaryOp op, const DTensor& x) {
  const UnaryInfo& info = InfoOf(op);
  OpCall call(info.op, {&x});
  call.Decide([&] {
    const DTensor* operands[] = {&x};
    return info.linear ? ElementwiseRule(info.op.name, operands, {1u})
                       : ElementwiseRule(info.op.name, operands);
  });
  DTensor y = call.Result(ops::Unary(call.context(), op, call.local(0)));
  if (!call.Records()) return y;
  if (op == UnaryOp::kNeg) {
    call.Record({&y},
                [](std::span<const DTensor> grads, Gradients& out) { out.Set(0, Neg(grads[0])); });
    return y;
  }
  call.Record({&y}, [op, saved = Saved(BackwardReadsOutput(op) ? y : call.input(0))](
                        std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, UnaryBackward(op, grads[0], saved.Get(InfoOf(op).op.name)));
  });
  return y;
}

// ---- two operands -------------------------------------------------------------------------------

constexpr Op kAdd{"add"}, kSub{"sub"}, kMul{"mul"}, kDiv{"div"}, kMaximum{"maximum"},
    kMinimum{"minimum"};
constexpr Op kAddScalar{"add_scalar"}, kMulScalar{"mul_scalar"}, kDivScalar{"div_scalar"};
constexpr Op kMaximumScalar{"maximum_scalar"}, kMinimumScalar{"minimum_scalar"};
constexpr Op kCompare{"compare"}, kCompareScalar{"compare_scalar"}, kWhere{"where"}, kCast{"cast"};
constexpr Op kSiluMul{"silu_mul"}, kSiluMulBackward{"silu_mul_backward"}, kDropout{"dropout"};

struct BinaryCall {
  BinaryCall(const Op& op, BinaryOp kernel, const DTensor& a, const DTensor& b,
             std::initializer_list<uint32_t> linear = {})
      : call(op, {&a, &b}) {
    call.Decide([&] {
      const DTensor* operands[] = {&a, &b};
      return ElementwiseRule(op.name, operands, linear);
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
  BinaryCall c(op, kernel, a, b);
  if (!c.call.Records()) return c.result;
  c.call.Record(
      {&c.result}, [&op, sa = Saved(c.call.input(0)), sb = Saved(c.call.input(1)),
                    sy = Saved(c.result)](std::span<const DTensor> grads, Gradients& out) {
        ExtremumBackward(grads[0], sa.Get(op.name), sb.Get(op.name), sy.Get(op.name), out);
      });
  return c.result;
}

struct ScalarCall {
  ScalarCall(const Op& op, BinaryOp kernel, const DTensor& a, double b, bool linear)
      : call(op, {&a}) {
    call.Attribute(linear).Decide([&] {
      const DTensor* operands[] = {&a};
      return linear ? ElementwiseRule(op.name, operands, {1u}) : ElementwiseRule(op.name, operands);
    });
    result = call.Result(ops::Binary(call.context(), kernel, call.local(0), b));
  }
  OpCall call;
  DTensor result;
};

DTensor ExtremumScalar(const Op& op, BinaryOp kernel, CompareOp passes, const DTensor& a,
                       double b) {
  ScalarCall c(op, kernel, a, b, /*linear=*/false);
  if (!c.call.Records()) return c.result;
  c.call.Record({&c.result}, [&op, passes, b, sa = Saved(c.call.input(0))](
                                 std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Select(Compare(passes, sa.Get(op.name), b), grads[0]));
  });
  return c.result;
}

}  // namespace

DTensor Neg(const DTensor& x) { return Unary(UnaryOp::kNeg, x); }
DTensor Abs(const DTensor& x) { return Unary(UnaryOp::kAbs, x); }
DTensor Exp(const DTensor& x) { return Unary(UnaryOp::kExp, x); }
DTensor Log(const DTensor& x) { return Unary(UnaryOp::kLog, x); }
DTensor Sqrt(const DTensor& x) { return Unary(UnaryOp::kSqrt, x); }
DTensor Rsqrt(const DTensor& x) { return Unary(UnaryOp::kRsqrt, x); }
DTensor Reciprocal(const DTensor& x) { return Unary(UnaryOp::kReciprocal, x); }
DTensor Tanh(const DTensor& x) { return Unary(UnaryOp::kTanh, x); }
DTensor Sigmoid(const DTensor& x) { return Unary(UnaryOp::kSigmoid, x); }
DTensor Silu(const DTensor& x) { return Unary(UnaryOp::kSilu, x); }
DTensor Relu(const DTensor& x) { return Unary(UnaryOp::kRelu, x); }
DTensor Square(const DTensor& x) { return Unary(UnaryOp::kSquare, x); }
DTensor Sin(const DTensor& x) { return Unary(UnaryOp::kSin, x); }
DTensor Cos(const DTensor& x) { return Unary(UnaryOp::kCos, x); }

DTensor Add(const DTensor& a, const DTensor& b) {
  BinaryCall c(kAdd, BinaryOp::kAdd, a, b, {3u});
  c.call.Record({&c.result},
                [sa = a.shape(), sb = b.shape()](std::span<const DTensor> grads, Gradients& out) {
                  if (out.Needs(0)) WriteSumTo(out, 0, grads[0], sa);
                  if (out.Needs(1)) WriteSumTo(out, 1, grads[0], sb);
                });
  return c.result;
}

DTensor Sub(const DTensor& a, const DTensor& b) {
  BinaryCall c(kSub, BinaryOp::kSub, a, b, {3u});
  c.call.Record({&c.result},
                [sa = a.shape(), sb = b.shape()](std::span<const DTensor> grads, Gradients& out) {
                  if (out.Needs(0)) WriteSumTo(out, 0, grads[0], sa);
                  if (out.Needs(1)) WriteSumTo(out, 1, Neg(grads[0]), sb);
                });
  return c.result;
}

DTensor Mul(const DTensor& a, const DTensor& b) {
  BinaryCall c(kMul, BinaryOp::kMul, a, b, {1u, 2u});
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
  BinaryCall c(kDiv, BinaryOp::kDiv, a, b, {1u});
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
  ScalarCall c(kAddScalar, BinaryOp::kAdd, a, b, /*linear=*/false);
  c.call.Record({&c.result},
                [](std::span<const DTensor> grads, Gradients& out) { out.Set(0, grads[0]); });
  return c.result;
}

DTensor Sub(const DTensor& a, double b) { return Add(a, -b); }

DTensor Mul(const DTensor& a, double b) {
  // Summands of either sign times an infinity would be infinities whose sum is nan.
  ScalarCall c(kMulScalar, BinaryOp::kMul, a, b, /*linear=*/std::isfinite(b));
  c.call.Record({&c.result}, [b](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Mul(grads[0], b));
  });
  return c.result;
}

DTensor Div(const DTensor& a, double b) {
  internal::CheckUsable(kDivScalar.name, a);
  ScalarCall c(kDivScalar, BinaryOp::kDiv, a, b,
               /*linear=*/IsFloating(a.dtype()) && std::isfinite(1.0 / b));
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
    const DTensor* operands[] = {&condition, &a, &b};
    return ElementwiseRule(kWhere.name, operands, {6u});
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
  OpCall call(kCast, {&x});
  call.Attribute(exact).Decide([&] {
    const DTensor* operands[] = {&x};
    return exact ? ElementwiseRule(kCast.name, operands, {1u})
                 : ElementwiseRule(kCast.name, operands);
  });
  DTensor y = call.ResultOf(dtype, ops::Cast(call.context(), call.local(0), dtype));
  if (!IsFloating(dtype)) return y;
  call.Record({&y}, [from = x.dtype()](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Cast(grads[0], from));
  });
  return y;
}

namespace {

void SiluMulBackward(const DTensor& grad, const DTensor& gate, const DTensor& up, Gradients& out) {
  OpCall call(kSiluMulBackward, {&grad, &gate, &up});
  call.Decide([&] {
    const DTensor* operands[] = {&grad, &gate, &up};
    OpRule rule = ElementwiseRule(kSiluMulBackward.name, operands, {1u});
    rule.rule.outputs.push_back(rule.rule.outputs[0]);
    rule.output_shapes.push_back(rule.output_shapes[0]);
    return rule;
  });
  auto [dgate, dup] =
      ops::SiluMulBackward(call.context(), call.local(0), call.local(1), call.local(2));
  out.Set(0, call.Result(std::move(dgate), 0));
  out.Set(1, call.Result(std::move(dup), 1));
}

}  // namespace

DTensor SiluMul(const DTensor& gate, const DTensor& up) {
  internal::CheckUsable(kSiluMul.name, gate);
  internal::CheckUsable(kSiluMul.name, up);
  if (!(gate.shape() == up.shape())) {
    ThrowInvalid("silu_mul: gate ", gate.ToString(), " and up ", up.ToString(), " differ in shape");
  }
  OpCall call(kSiluMul, {&gate, &up});
  call.Decide([&] {
    const DTensor* operands[] = {&gate, &up};
    return ElementwiseRule(kSiluMul.name, operands, {2u});
  });
  DTensor y = call.Result(ops::SiluMul(call.context(), call.local(0), call.local(1)));
  if (!call.Records()) return y;
  call.Record({&y}, [sg = Saved(call.input(0)), su = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    SiluMulBackward(grads[0], sg.Get(kSiluMul.name), su.Get(kSiluMul.name), out);
  });
  return y;
}

DTensor Dropout(const DTensor& x, double p, RandomKey key) {
  if (!(p >= 0.0 && p <= 1.0)) ThrowInvalid("dropout: expected a probability in [0, 1], got ", p);
  OpCall call(kDropout, {&x});
  call.Decide([&] {
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
