// SPDX-License-Identifier: Apache-2.0
//
// Determinants, systems of equations, and products.
#include "shardmesh/dtensor/ops/linalg.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/matrix_batch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/ops_linalg.h"

namespace shardmesh {
namespace {

constexpr Op kDet{"det"}, kDetBackward{"det_backward"};
constexpr Op kSlogDet{"slogdet"}, kSlogDetBackward{"backward of slogdet"};
constexpr Op kInv{"inv"}, kSolve{"solve"}, kSolveTriangular{"solve_triangular"};
constexpr Op kMatrixPower{"matrix_power"}, kCross{"cross"};
constexpr const char* kSingular = "singular: its LU factors have a zero on the diagonal";

DTensor Transposed(const DTensor& x) { return Transpose(x, -2, -1); }

void CheckOperand(const char* op, const DTensor& x) {
  internal::CheckSquare(op, x);
  internal::CheckReal(op, x);
}

void CheckOneDType(const char* op, const DTensor& a, const DTensor& b) {
  internal::CheckTogether(op, a, b);
  if (a.dtype() != b.dtype())
    ThrowInvalid(op, ": operands of two dtypes, ", a.ToString(), " and ", b.ToString());
}

// One number per matrix, of the same shape but for the two dims.
DTensor PerMatrix(const DTensor& x) { return Unsqueeze(Unsqueeze(x, -1), -1); }

// ---- determinants -------------------------------------------------------------------------------

DTensor DetGradient(const DTensor& grad, const DTensor& x) {
  OpCall call(kDetBackward, {&grad, &x});
  call.Decide([&] {
    OpRule rule = internal::BatchRule(x, {{x.dim(-2), x.dim(-1)}});
    const Dims batch = internal::BatchOf(x);
    rule.rule.inputs.insert(rule.rule.inputs.begin(), internal::BatchFactors(batch, batch, 0));
    rule.rule.linear = {1u};
    return rule;
  });
  const Tensor scale = call.local(0).Unsqueeze(-1).Unsqueeze(-1);
  return call.Result(ops::Binary(call.context(), BinaryOp::kMul,
                                 ops::Cofactors(call.context(), call.local(1)), scale));
}

DTensor InverseOf(const Op& op, const DTensor& x) {
  OpCall call(op, {&x});
  call.Decide([&] { return internal::BatchRule(x, {{x.dim(-2), x.dim(-1)}}); });
  auto [inverse, failed] = ops::Inverse(call.context(), call.local(0));
  internal::RequireSuccess(call, op.name, x, x.num_dims() - 2, failed, kSingular);
  DTensor y = call.Result(std::move(inverse));
  if (!call.Records()) return y;
  call.Record({&y}, [&op, sy = Saved(y)](std::span<const DTensor> grads, Gradients& out) {
    const DTensor transposed = Transposed(sy.Get(op.name));
    out.Set(0, Neg(MatMul(MatMul(transposed, grads[0]), transposed)));
  });
  return y;
}

// ---- systems ------------------------------------------------------------------------------------

// a [batch.., n, n], b [batch.., n, k] -> [batch.., n, k], where k may be sharded.
OpRule SystemRule(const char* op, const DTensor& a, const DTensor& b) {
  if (a.dim(-1) != b.dim(-2)) {
    ThrowInvalid(op, ": ", a.ToString(), " has ", a.dim(-1), " columns, but ", b.ToString(),
                 " has ", b.dim(-2), " rows");
  }
  const Dims batch_a = internal::BatchOf(a), batch_b = internal::BatchOf(b);
  Dims shape = BroadcastShapes(batch_a, batch_b, op);
  Rule rule = internal::FactorsOf(shape);
  const int columns = static_cast<int>(rule.factors.size());
  rule.factors.push_back({"k", false, {}});
  const auto right = [&](const Dims& own) {
    Rule::FactorOfDim factors = internal::BatchFactors(own, shape, 1);
    factors.push_back(columns);
    return factors;
  };
  rule.inputs = {internal::BatchFactors(batch_a, shape, 2), right(batch_b)};
  rule.outputs = {right(shape)};
  rule.linear = {2u};
  shape.push_back(b.dim(-2));
  shape.push_back(b.dim(-1));
  return {std::move(rule), {shape}};
}

DTensor SolveMatrices(const DTensor& a, const DTensor& b) {
  OpCall call(kSolve, {&a, &b});
  call.Decide([&] { return SystemRule(kSolve.name, a, b); });
  auto [solution, failed] = ops::Solve(call.context(), call.local(0), call.local(1));
  internal::RequireSuccess(call, kSolve.name, a, solution.num_dims() - 2, failed, kSingular);
  DTensor y = call.Result(std::move(solution));
  if (!call.Records()) return y;
  call.Record({&y}, [sa = Saved(call.input(0)), sy = Saved(y), shape = b.shape()](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor a = sa.Get(kSolve.name);
    const DTensor grad_b = SolveMatrices(Transposed(a), grads[0]);
    if (out.Needs(0)) {
      const DTensor product = MatMul(grad_b, Transposed(sy.Get(kSolve.name)));
      internal::WriteSumTo(out, 0, Neg(product), a.shape());
    }
    if (out.Needs(1)) internal::WriteSumTo(out, 1, grad_b, shape);
  });
  return y;
}

DTensor SolveFromLeft(const DTensor& a, const DTensor& b, bool upper, bool unitriangular) {
  OpCall call(kSolveTriangular, {&a, &b});
  call.Decide([&] { return SystemRule(kSolveTriangular.name, a, b); });
  DTensor y = call.Result(
      ops::SolveTriangular(call.context(), call.local(0), call.local(1), upper, unitriangular));
  if (!call.Records()) return y;
  call.Record({&y}, [=, sa = Saved(call.input(0)), sy = Saved(y), shape = b.shape()](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor a = sa.Get(kSolveTriangular.name);
    const DTensor grad_b = SolveFromLeft(Transposed(a), grads[0], !upper, unitriangular);
    if (out.Needs(0)) {
      const DTensor product = Neg(MatMul(grad_b, Transposed(sy.Get(kSolveTriangular.name))));
      const DTensor sum = internal::SumTo(product, a.shape());
      const int64_t offset = unitriangular ? 1 : 0;
      out.Set(0, upper ? Triu(sum, offset) : Tril(sum, -offset));
    }
    if (out.Needs(1)) internal::WriteSumTo(out, 1, grad_b, shape);
  });
  return y;
}

// ---- products -----------------------------------------------------------------------------------

// By squaring; the exponent is positive.
DTensor Power(DTensor base, uint64_t exponent) {
  DTensor result;
  for (;; base = MatMul(base, base)) {
    if ((exponent & 1u) != 0) result = result ? MatMul(result, base) : base;
    exponent >>= 1;
    if (exponent == 0) return result;
  }
}

// Element i is a_j b_k - a_k b_j, for (i, j, k) any rotation of (0, 1, 2).
Tensor LocalCross(ExecutionContext& context, const Tensor& a, const Tensor& b, int dim) {
  const auto product = [&](int j, int k) {
    return ops::Binary(context, BinaryOp::kMul, a.Narrow(dim, j, 1), b.Narrow(dim, k, 1));
  };
  std::vector<Tensor> parts;
  for (int i = 0; i < 3; ++i) {
    const int j = (i + 1) % 3, k = (i + 2) % 3;
    parts.push_back(ops::Binary(context, BinaryOp::kSub, product(j, k), product(k, j)));
  }
  return ops::Concat(context, parts, dim);
}

}  // namespace

DTensor Det(const DTensor& x) {
  CheckOperand(kDet.name, x);
  OpCall call(kDet, {&x});
  call.Decide([&] { return internal::BatchRule(x, {{}}); });
  DTensor y = call.Result(ops::Determinant(call.context(), call.local(0)));
  if (!call.Records()) return y;
  call.Record({&y}, [sx = Saved(call.input(0))](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, DetGradient(grads[0], sx.Get(kDet.name)));
  });
  return y;
}

std::pair<DTensor, DTensor> SlogDet(const DTensor& x) {
  CheckOperand(kSlogDet.name, x);
  OpCall call(kSlogDet, {&x});
  call.Decide([&] { return internal::BatchRule(x, {{}, {}}); });
  auto [local_sign, local_log] = ops::LogDeterminant(call.context(), call.local(0));
  const DTensor sign = call.Result(std::move(local_sign), 0);
  DTensor log_abs = call.Result(std::move(local_log), 1);
  if (!call.Records()) return {sign, log_abs};
  call.Record({&log_abs},
              [sx = Saved(call.input(0))](std::span<const DTensor> grads, Gradients& out) {
                const DTensor inverse = InverseOf(kSlogDetBackward, sx.Get(kSlogDet.name));
                out.Set(0, Mul(Transposed(inverse), PerMatrix(grads[0])));
              });
  return {sign, log_abs};
}

DTensor Inv(const DTensor& x) {
  CheckOperand(kInv.name, x);
  return InverseOf(kInv, x);
}

DTensor Solve(const DTensor& a, const DTensor& b) {
  CheckOperand(kSolve.name, a);
  internal::CheckUsable(kSolve.name, b);
  CheckOneDType(kSolve.name, a, b);
  internal::CheckRankAtLeast(kSolve.name, b, 1);
  const Dims rows(std::span<const int64_t>(a.shape().begin(), a.num_dims() - 1));
  if (b.num_dims() > 1 && !(b.shape() == rows)) return SolveMatrices(a, b);
  return Squeeze(SolveMatrices(a, Unsqueeze(b, -1)), {-1});
}

DTensor SolveTriangular(const DTensor& a, const DTensor& b, bool upper, bool left,
                        bool unitriangular) {
  CheckOperand(kSolveTriangular.name, a);
  internal::CheckMatrices(kSolveTriangular.name, b);
  CheckOneDType(kSolveTriangular.name, a, b);
  if (left) return SolveFromLeft(a, b, upper, unitriangular);
  return Transposed(SolveFromLeft(Transposed(a), Transposed(b), !upper, unitriangular));
}

DTensor MatrixPower(const DTensor& x, int64_t exponent) {
  internal::CheckSquare(kMatrixPower.name, x);
  if (exponent < 0) {
    internal::CheckReal(kMatrixPower.name, x);
    return Power(InverseOf(kMatrixPower, x), -static_cast<uint64_t>(exponent));
  }
  if (!IsFloating(x.dtype()))
    ThrowInvalid(kMatrixPower.name, ": expected a floating dtype, got ", x.ToString());
  if (exponent == 0) {
    const std::vector<Placement> replicated(x.mesh().shape().num_axes());
    return Add(ZerosLike(x), Eye(x.mesh(), x.dim(-2), x.dim(-1), x.dtype(), replicated));
  }
  if (exponent == 1) return Mul(x, 1.0);  // Not x itself, which may be written in place.
  if (!IsSmall(x.dtype())) return Power(x, static_cast<uint64_t>(exponent));
  return Cast(Power(Cast(x, DType::kF32), static_cast<uint64_t>(exponent)), x.dtype());
}

DTensor Cross(const DTensor& a, const DTensor& b, int given) {
  internal::CheckUsable(kCross.name, a);
  internal::CheckUsable(kCross.name, b);
  CheckOneDType(kCross.name, a, b);
  if (a.num_dims() != b.num_dims() || a.dtype() == DType::kBool) {
    ThrowInvalid(kCross.name, ": expected numbers of as many dims, got ", a.ToString(), " and ",
                 b.ToString());
  }
  const int dim = internal::DimOf(kCross.name, a, given);
  if (a.dim(dim) != 3 || b.dim(dim) != 3) {
    ThrowInvalid(kCross.name, ": expected extent 3 in dim ", dim, ", got ", a.ToString(), " and ",
                 b.ToString());
  }
  OpCall call(kCross, {&a, &b});
  call.Attribute(dim).Decide([&] {
    const DTensor* operands[] = {&a, &b};
    OpRule rule = internal::ElementwiseRule(kCross.name, operands, {1u, 2u});
    rule.rule.factors[dim].whole = true;
    return rule;
  });
  // In f32 where that is how a small dtype is computed.
  const DType dtype = IsSmall(a.dtype()) ? DType::kF32 : a.dtype();
  const Tensor product = LocalCross(call.context(), ops::Cast(call.context(), call.local(0), dtype),
                                    ops::Cast(call.context(), call.local(1), dtype), dim);
  DTensor y =
      call.ResultOf(a.dtype(), ops::Cast(call.context(), product, call.LocalDType(a.dtype())));
  if (!call.Records()) return y;
  call.Record({&y}, [dim, sa = Saved(call.input(0)), sb = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor a = sa.Get(kCross.name), b = sb.Get(kCross.name);
    if (out.Needs(0)) internal::WriteSumTo(out, 0, Cross(b, grads[0], dim), a.shape());
    if (out.Needs(1)) internal::WriteSumTo(out, 1, Cross(grads[0], a, dim), b.shape());
  });
  return y;
}

}  // namespace shardmesh
