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
  if (args.Has(2, "rounding_mode")) return {};
  return {Div(args.Tensor(0), args.Tensor(1))};
}

}  // namespace

void AddPointwiseOps(OpTable& table) {
  table.Add("abs", Unary(Abs));
  table.Add("add", [](const Args& args) { return Results{Add(args.Tensor(0), Scaled(args))}; });
  table.Add("cos", Unary(Cos));
  table.Add("div", Divide);
  table.Add("eq", Comparison(CompareOp::kEqual));
  table.Add("exp", Unary(Exp));
  table.Add("ge", Comparison(CompareOp::kGreaterEqual));
  table.Add("gt", Comparison(CompareOp::kGreater));
  table.Add("le", Comparison(CompareOp::kLessEqual));
  table.Add("log", Unary(Log));
  table.Add("lt", Comparison(CompareOp::kLess));
  table.Add("maximum", Binary(Maximum));
  table.Add("minimum", Binary(Minimum));
  table.Add("mul", Binary(Mul));
  table.Add("ne", Comparison(CompareOp::kNotEqual));
  table.Add("neg", Unary(Neg));
  table.Add("nn.functional.relu", Unary(Relu));
  table.Add("nn.functional.silu", Unary(Silu));
  table.Add("reciprocal", Unary(Reciprocal));
  table.Add("rsqrt", Unary(Rsqrt));
  table.Add("sigmoid", Unary(Sigmoid));
  table.Add("sin", Unary(Sin));
  table.Add("sqrt", Unary(Sqrt));
  table.Add("square", Unary(Square));
  table.Add("sub", [](const Args& args) { return Results{Sub(args.Tensor(0), Scaled(args))}; });
  table.Add("tanh", Unary(Tanh));
  table.Add("true_divide", Binary(Div));
  table.Add("where", [](const Args& args) {
    return Results{Where(args.Tensor(1), args.Tensor(0), args.Tensor(2))};
  });
}

}  // namespace shardmesh::testing
