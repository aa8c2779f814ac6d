// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/ops_linalg.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::EmptyOn;

// LAPACK counts in 32 bits.
void CheckMatrices(const char* op, internal::Operands operands) {
  internal::DeviceOf(op, operands);
  internal::RequireOneFloatingDType(op, operands);
  for (const Tensor* x : operands) {
    internal::RequireRank(op, "an operand", *x, 2);
    if (x->dtype() != DType::kF32 && x->dtype() != DType::kF64)
      ThrowInvalid(op, ": expected f32 or f64, got ", x->ToString());
    if (std::max(x->dim(-2), x->dim(-1)) > std::numeric_limits<int>::max())
      ThrowInvalid(op, ": ", x->ToString(), " is too large for LAPACK");
  }
}

void CheckSquare(const char* op, const Tensor& x) {
  if (x.dim(-2) != x.dim(-1)) ThrowInvalid(op, ": expected square matrices, got ", x.ToString());
}

Dims BatchOf(const Tensor& x) {
  return Dims(std::span<const int64_t>(x.shape().begin(), x.num_dims() - 2));
}

Dims WithMatrix(Dims batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

// The operands of a system, with one batch and contiguous.
struct System {
  System(ExecutionContext& context, const char* op, const Tensor& left, const Tensor& right) {
    CheckMatrices(op, {&left, &right});
    CheckSquare(op, left);
    if (left.dim(-1) != right.dim(-2)) {
      ThrowInvalid(op, ": ", left.ToString(), " has ", left.dim(-1), " columns, but ",
                   right.ToString(), " has ", right.dim(-2), " rows");
    }
    const Dims batch = BroadcastShapes(BatchOf(left), BatchOf(right), op);
    const auto expanded = [&](const Tensor& x) {
      return Contiguous(context, x.Expand(WithMatrix(batch, x.dim(-2), x.dim(-1))));
    };
    a = expanded(left);
    b = expanded(right);
  }
  Tensor a, b;
};

Tensor Identity(ExecutionContext& context, int64_t n, DType dtype) {
  Tensor identity = Zeros(context, {n, n}, dtype);
  Tensor diagonal = identity.AsStrided({n}, {n + 1}, 0);
  Fill(context, diagonal, 1);
  return identity;
}

// A symmetric orthogonal matrix of determinant -1, I - 2 w w^T, that mixes all columns.
Tensor MixingReflection(ExecutionContext& context, int64_t n) {
  std::vector<double> w;
  double square = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double multiple = static_cast<double>(i + 1) * 0.6180339887498949;
    w.push_back(1 + multiple - std::floor(multiple));
    square += w.back() * w.back();
  }
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) values.push_back((i == j ? 1 : 0) - 2 * w[i] * w[j] / square);
  }
  return Tensor::FromValues<double>(context, {n, n}, values);
}

// The cofactors of one singular f64 matrix [n, n]. With x w = q r, where w mixes the columns so
// that the diagonal of r shows the rank, they are det(w) det(q) det(r) (r^-1 q^T)^T w. Zeros on the
// diagonal of r are replaced by a rounding error of the largest element, which changes a polynomial
// by no more than rounding does.
Tensor SingularCofactors(ExecutionContext& context, const Tensor& x) {
  const int64_t n = x.dim(-1);
  const Tensor w = MixingReflection(context, n);
  const auto [q, r] = Qr(context, MatMul(context, x, w), /*complete=*/false);
  Tensor diagonal = r.AsStrided({n}, {n + 1}, r.offset());
  std::vector<double> values = diagonal.ToVector<double>();
  double largest = 0x1p-500;  // Of a matrix of zeros something that has an inverse.
  for (const double value : r.ToVector<double>()) largest = std::max(largest, std::abs(value));
  const double least = static_cast<double>(n) * std::numeric_limits<double>::epsilon() * largest;
  double sign = -LogDeterminant(context, q).sign.Item(), log_abs = 0;
  for (double& value : values) {
    if (std::abs(value) < least) value = least;
    sign *= value < 0 ? -1 : 1;
    log_abs += std::log(std::abs(value));
  }
  Copy(context, Tensor::FromValues<double>(context, {n}, values), diagonal);
  const Tensor inverse =
      SolveTriangular(context, r, q.Transpose(0, 1), /*upper=*/true, /*unit_diagonal=*/false);
  // In two steps, as the determinant alone may overflow.
  const double root = std::exp(log_abs / 2);
  const Tensor scaled = Binary(context, BinaryOp::kMul, inverse, root);
  return MatMul(context, Binary(context, BinaryOp::kMul, scaled, sign * root).Transpose(0, 1), w);
}

}  // namespace

MatrixResult Cholesky(ExecutionContext& context, const Tensor& x) {
  CheckMatrices("cholesky", {&x});
  CheckSquare("cholesky", x);
  Tensor out = EmptyOn(context, x.device(), x.shape(), x.dtype());
  const auto failed = KernelsFor(x.device()).cholesky(context, Contiguous(context, x), out);
  return {std::move(out), failed};
}

LogDeterminantResult LogDeterminant(ExecutionContext& context, const Tensor& x) {
  CheckMatrices("slogdet", {&x});
  CheckSquare("slogdet", x);
  Tensor sign = EmptyOn(context, x.device(), BatchOf(x), x.dtype());
  Tensor log_abs = EmptyOn(context, x.device(), BatchOf(x), x.dtype());
  KernelsFor(x.device()).log_determinant(context, Contiguous(context, x), sign, log_abs);
  return {std::move(sign), std::move(log_abs)};
}

Tensor Determinant(ExecutionContext& context, const Tensor& x) {
  CheckMatrices("det", {&x});
  const auto [sign, log_abs] = LogDeterminant(context, Cast(context, x, DType::kF64));
  const Tensor magnitude = Unary(context, ElementwiseOp::kExp, log_abs);
  return Cast(context, Binary(context, BinaryOp::kMul, sign, magnitude), x.dtype());
}

Tensor Cofactors(ExecutionContext& context, const Tensor& given) {
  CheckMatrices("det", {&given});
  CheckSquare("det", given);
  const int64_t n = given.dim(-1), count = BatchOf(given).NumElements();
  const Tensor x =
      Reshape(context, Cast(context, Contiguous(context, given), DType::kF64), {count, n, n});
  const auto [sign, log_abs] = LogDeterminant(context, x);
  // Singular ones are left out of the solving, and follow one by one.
  const Tensor singular = Compare(context, CompareOp::kEqual, sign, 0);
  const Tensor regular = Where(context, Reshape(context, singular, {count, 1, 1}),
                               Identity(context, n, DType::kF64), x);
  const Tensor inverse = Inverse(context, regular).value;
  const Tensor root =
      Unary(context, ElementwiseOp::kExp, Binary(context, BinaryOp::kMul, log_abs, 0.5));
  const Tensor scale = Reshape(context, root, {count, 1, 1});
  const Tensor signed_scale =
      Reshape(context, Binary(context, BinaryOp::kMul, root, sign), {count, 1, 1});
  // In two steps, as the determinant alone may overflow.
  const Tensor scaled = Binary(context, BinaryOp::kMul, inverse.Transpose(1, 2), scale);
  Tensor out = Binary(context, BinaryOp::kMul, scaled, signed_scale);
  if (!given.device().IsMeta()) {
    const std::vector<double> signs = sign.ToVector<double>();
    for (int64_t i = 0; i < count; ++i) {
      if (signs[i] != 0) continue;
      const Tensor cofactors = SingularCofactors(context, x.Narrow(0, i, 1).Squeeze(0));
      Tensor target = out.Narrow(0, i, 1).Squeeze(0);
      // By the kernel: the version of a result is the same on all ranks, singular or not.
      KernelsFor(out.device()).copy(context, cofactors, target);
    }
  }
  return Cast(context, Reshape(context, out, given.shape()), given.dtype());
}

MatrixResult Solve(ExecutionContext& context, const Tensor& a, const Tensor& b) {
  const System system(context, "solve", a, b);
  Tensor out = EmptyOn(context, a.device(), system.b.shape(), b.dtype());
  const auto failed = KernelsFor(a.device()).solve(context, system.a, system.b, out);
  return {std::move(out), failed};
}

Tensor SolveTriangular(ExecutionContext& context, const Tensor& a, const Tensor& b, bool upper,
                       bool unit_diagonal) {
  const System system(context, "solve_triangular", a, b);
  Tensor out = EmptyOn(context, a.device(), system.b.shape(), b.dtype());
  KernelsFor(a.device()).solve_triangular(context, system.a, system.b, upper, unit_diagonal, out);
  return out;
}

MatrixResult Inverse(ExecutionContext& context, const Tensor& x) {
  CheckMatrices("inv", {&x});
  CheckSquare("inv", x);
  return Solve(context, x, Identity(context, x.dim(-1), x.dtype()));
}

QrResult Qr(ExecutionContext& context, const Tensor& x, bool complete) {
  CheckMatrices("qr", {&x});
  const int64_t m = x.dim(-2), n = x.dim(-1), k = complete ? m : std::min(m, n);
  Tensor q = EmptyOn(context, x.device(), WithMatrix(BatchOf(x), m, k), x.dtype());
  Tensor r = EmptyOn(context, x.device(), WithMatrix(BatchOf(x), k, n), x.dtype());
  KernelsFor(x.device()).qr(context, Contiguous(context, x), q, r);
  return {std::move(q), std::move(r)};
}

EighResult Eigh(ExecutionContext& context, const Tensor& x, bool upper) {
  CheckMatrices("eigh", {&x});
  CheckSquare("eigh", x);
  constexpr int64_t kMaxRows = 32766;  // LAPACK counts 2 n^2 elements of working memory.
  if (x.dim(-1) > kMaxRows) {
    ThrowInvalid("eigh: expected at most ", kMaxRows, " rows, got ", x.ToString());
  }
  Dims rows = BatchOf(x);
  rows.push_back(x.dim(-1));
  Tensor values = EmptyOn(context, x.device(), rows, x.dtype());
  Tensor vectors = EmptyOn(context, x.device(), x.shape(), x.dtype());
  KernelsFor(x.device()).eigh(context, Contiguous(context, x), upper, values, vectors);
  return {std::move(values), std::move(vectors)};
}

}  // namespace shardmesh::ops
