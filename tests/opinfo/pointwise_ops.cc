// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

OpFunction Comparison(CompareOp op) {
  return [op](const Args& args) { return Results{Compare(op, args.Tensor(0), args.Tensor(1))}; };
}

// b times `alpha`, which PyTorch's add and sub take.
DTensor Scaled(const Args& args) {
  const double alpha = args.Number(2, "alpha", 1);
  return alpha == 1 ? args.Tensor(1) : Mul(args.Tensor(1), alpha);
}

Results Divide(const Args& args) {
  const std::string mode = args.Text(2, "rounding_mode", "none");
  if (mode == "floor") return {FloorDivide(args.Tensor(0), args.Tensor(1))};
  if (mode == "trunc") return {TruncDivide(args.Tensor(0), args.Tensor(1))};
  return {Div(args.Tensor(0), args.Tensor(1))};
}

Results Power(const Args& args) {
  if (args.IsTensor(1, "exponent")) return {Pow(args.Tensor(0), args.Tensor(1))};
  return {Pow(args.Tensor(0), args.Number(1, "exponent"))};
}

Results Lerps(const Args& args) {
  if (args.IsTensor(2, "weight")) return {Lerp(args.Tensor(0), args.Tensor(1), args.Tensor(2))};
  return {Lerp(args.Tensor(0), args.Tensor(1), args.Number(2, "weight"))};
}

Results Clamps(const Args& args) {
  const bool has_min = args.Has(1, "min"), has_max = args.Has(2, "max");
  if (!has_max) return {ClampMin(args.Tensor(0), args.Tensor(1, "min"))};
  if (!has_min) return {ClampMax(args.Tensor(0), args.Tensor(2, "max"))};
  return {Clamp(args.Tensor(0), args.Tensor(1, "min"), args.Tensor(2, "max"))};
}

Results NansToNumbers(const Args& args) {
  const auto given = [&](int position, const char* name) {
    return args.Has(position, name) ? std::optional(args.Number(position, name)) : std::nullopt;
  };
  return {
      NanToNum(args.Tensor(0), args.Number(1, "nan", 0), given(2, "posinf"), given(3, "neginf"))};
}

}  // namespace

void AddPointwiseOps(OpTable& table) {
  table.Add("abs", Unary(Abs));
  table.Add("acos", Unary(Acos));
  table.Add("acosh", Unary(Acosh));
  table.Add("add", [](const Args& args) { return Results{Add(args.Tensor(0), Scaled(args))}; });
  table.Add("addcdiv", [](const Args& a) {
    return Results{AddCDiv(a.Tensor(0), a.Tensor(1), a.Tensor(2), a.Number(3, "value", 1))};
  });
  table.Add("addcmul", [](const Args& a) {
    return Results{AddCMul(a.Tensor(0), a.Tensor(1), a.Tensor(2), a.Number(3, "value", 1))};
  });
  table.Add("asin", Unary(Asin));
  table.Add("asinh", Unary(Asinh));
  table.Add("atan", Unary(Atan));
  table.Add("atan2", Binary(Atan2));
  table.Add("atanh", Unary(Atanh));
  table.Add("bitwise_and", Binary(BitwiseAnd));
  table.Add("bitwise_left_shift", Binary(ShiftLeft));
  table.Add("bitwise_not", Unary(BitwiseNot));
  table.Add("bitwise_or", Binary(BitwiseOr));
  table.Add("bitwise_right_shift", Binary(ShiftRight));
  table.Add("bitwise_xor", Binary(BitwiseXor));
  table.Add("ceil", Unary(Ceil));
  table.Add("clamp", Clamps);
  table.Add("clamp_max", Binary(ClampMax));
  table.Add("clamp_min", Binary(ClampMin));
  table.Add("copysign", Binary(CopySign));
  table.Add("cos", Unary(Cos));
  table.Add("cosh", Unary(Cosh));
  table.Add("deg2rad", Unary(DegToRad));
  table.Add("digamma", Unary(Digamma));
  table.Add("div", Divide);
  table.Add("eq", Comparison(CompareOp::kEqual));
  table.Add("erf", Unary(Erf));
  table.Add("erfc", Unary(Erfc));
  table.Add("erfinv", Unary(Erfinv));
  table.Add("exp", Unary(Exp));
  table.Add("exp2", Unary(Exp2));
  table.Add("expm1", Unary(Expm1));
  table.Add("float_power", Binary(Pow));
  table.Add("floor", Unary(Floor));
  table.Add("floor_divide", Binary(FloorDivide));
  table.Add("fmax", Binary(FMax));
  table.Add("fmin", Binary(FMin));
  table.Add("fmod", Binary(FMod));
  table.Add("frac", Unary(Frac));
  table.Add("gcd", Binary(Gcd));
  table.Add("ge", Comparison(CompareOp::kGreaterEqual));
  table.Add("gt", Comparison(CompareOp::kGreater));
  table.Add("heaviside", Binary(Heaviside));
  table.Add("hypot", Binary(Hypot));
  table.Add("i0", Unary(I0));
  table.Add("isclose", [](const Args& a) {
    return Results{IsClose(a.Tensor(0), a.Tensor(1), a.Number(2, "rtol", 1e-5),
                           a.Number(3, "atol", 1e-8), a.Flag(4, "equal_nan", false))};
  });
  table.Add("isfinite", Unary(IsFinite));
  table.Add("isinf", Unary(IsInf));
  table.Add("isnan", Unary(IsNan));
  table.Add("isneginf", Unary(IsNegInf));
  table.Add("isposinf", Unary(IsPosInf));
  table.Add("lcm", Binary(Lcm));
  table.Add("ldexp", Binary(Ldexp));
  table.Add("le", Comparison(CompareOp::kLessEqual));
  table.Add("lerp", Lerps);
  table.Add("lgamma", Unary(Lgamma));
  table.Add("log", Unary(Log));
  table.Add("log10", Unary(Log10));
  table.Add("log1p", Unary(Log1p));
  table.Add("log2", Unary(Log2));
  table.Add("logaddexp", Binary(LogAddExp));
  table.Add("logaddexp2", Binary(LogAddExp2));
  table.Add("logical_and", Binary(LogicalAnd));
  table.Add("logical_not", Unary(LogicalNot));
  table.Add("logical_or", Binary(LogicalOr));
  table.Add("logical_xor", Binary(LogicalXor));
  table.Add("logit", [](const Args& a) {
    return Results{a.Has(1, "eps") ? Logit(a.Tensor(0), a.Number(1, "eps")) : Logit(a.Tensor(0))};
  });
  table.Add("lt", Comparison(CompareOp::kLess));
  table.Add("maximum", Binary(Maximum));
  table.Add("minimum", Binary(Minimum));
  table.Add("mul", Binary(Mul));
  table.Add("nan_to_num", NansToNumbers);
  table.Add("ne", Comparison(CompareOp::kNotEqual));
  table.Add("neg", Unary(Neg));
  table.Add("nn.functional.celu",
            [](const Args& a) { return Results{Celu(a.Tensor(0), a.Number(1, "alpha", 1))}; });
  table.Add("nn.functional.elu",
            [](const Args& a) { return Results{Elu(a.Tensor(0), a.Number(1, "alpha", 1))}; });
  table.Add("nn.functional.gelu", [](const Args& a) {
    return Results{a.Text(1, "approximate", "none") == "tanh" ? GeluTanh(a.Tensor(0))
                                                              : Gelu(a.Tensor(0))};
  });
  table.Add("nn.functional.glu",
            [](const Args& a) { return Results{Glu(a.Tensor(0), a.Dim(1, "dim", -1))}; });
  table.Add("nn.functional.prelu",
            [](const Args& a) { return Results{PRelu(a.Tensor(0), a.Tensor(1, "weight"))}; });
  table.Add("nn.functional.hardshrink", [](const Args& a) {
    return Results{HardShrink(a.Tensor(0), a.Number(1, "lambd", 0.5))};
  });
  table.Add("nn.functional.hardsigmoid", Unary(HardSigmoid));
  table.Add("nn.functional.hardswish", Unary(HardSwish));
  table.Add("nn.functional.hardtanh", [](const Args& a) {
    return Results{HardTanh(a.Tensor(0), a.Number(1, "min_val", -1), a.Number(2, "max_val", 1))};
  });
  table.Add("nn.functional.leaky_relu", [](const Args& a) {
    return Results{LeakyRelu(a.Tensor(0), a.Number(1, "negative_slope", 0.01))};
  });
  table.Add("nn.functional.logsigmoid", Unary(LogSigmoid));
  table.Add("nn.functional.mish", Unary(Mish));
  table.Add("nn.functional.relu", Unary(Relu));
  table.Add("nn.functional.relu6", Unary(Relu6));
  table.Add("nn.functional.selu", Unary(Selu));
  table.Add("nn.functional.silu", Unary(Silu));
  table.Add("nn.functional.softplus", [](const Args& a) {
    return Results{Softplus(a.Tensor(0), a.Number(1, "beta", 1), a.Number(2, "threshold", 20))};
  });
  table.Add("nn.functional.softshrink", [](const Args& a) {
    return Results{SoftShrink(a.Tensor(0), a.Number(1, "lambd", 0.5))};
  });
  table.Add("nn.functional.softsign", Unary(SoftSign));
  table.Add("nn.functional.tanhshrink", Unary(TanhShrink));
  table.Add("nn.functional.threshold", [](const Args& a) {
    return Results{Threshold(a.Tensor(0), a.Number(1, "threshold"), a.Number(2, "value"))};
  });
  table.Add("positive", [](const Args& a) { return Results{a.Tensor(0)}; });
  table.Add("pow", Power);
  table.Add("rad2deg", Unary(RadToDeg));
  table.Add("reciprocal", Unary(Reciprocal));
  table.Add("remainder", Binary(Remainder));
  table.Add("round", [](const Args& a) {
    return Results{Round(a.Tensor(0), static_cast<int>(a.Int(1, "decimals", 0)))};
  });
  table.Add("rsqrt", Unary(Rsqrt));
  table.Add("rsub", [](const Args& a) {
    return Results{
        Sub(a.IsTensor(1) ? a.Tensor(1) : a.Tensor(1), Mul(a.Tensor(0), a.Number(2, "alpha", 1)))};
  });
  table.Add("sgn", Unary(Sign));
  table.Add("sigmoid", Unary(Sigmoid));
  table.Add("sign", Unary(Sign));
  table.Add("signbit", Unary(SignBit));
  table.Add("sin", Unary(Sin));
  table.Add("sinc", Unary(Sinc));
  table.Add("sinh", Unary(Sinh));
  table.Add("special.entr", Unary(Entr));
  table.Add("special.erfcx", Unary(Erfcx));
  table.Add("special.log_ndtr", Unary(LogNdtr));
  table.Add("special.ndtr", Unary(Ndtr));
  table.Add("special.xlog1py", Binary(Xlog1py));
  table.Add("sqrt", Unary(Sqrt));
  table.Add("square", Unary(Square));
  table.Add("sub", [](const Args& args) { return Results{Sub(args.Tensor(0), Scaled(args))}; });
  table.Add("tan", Unary(Tan));
  table.Add("tanh", Unary(Tanh));
  table.Add("true_divide", Binary(Div));
  table.Add("trunc", Unary(Trunc));
  table.Add("where", [](const Args& args) {
    return Results{Where(args.Tensor(1), args.Tensor(0), args.Tensor(2))};
  });
  table.Add("xlogy", Binary(Xlogy));
}

}  // namespace shardmesh::testing
