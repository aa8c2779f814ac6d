// SPDX-License-Identifier: Apache-2.0
//
// Cholesky, QR, and eigenvalues of symmetric matrices.
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/matrix_batch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/linalg.h"
#include "shardmesh/tensor/ops_linalg.h"

namespace shardmesh {
namespace {

constexpr Op kCholesky{"cholesky"}, kQr{"qr"}, kEigh{"eigh"};

DTensor Transposed(const DTensor& x) { return Transpose(x, -2, -1); }

// (x + x^T) / 2.
DTensor Symmetric(const DTensor& x) { return Mul(Add(x, Transposed(x)), 0.5); }

// With dL = L Phi(L^-1 dx L^-T), where Phi is the lower triangle with half the diagonal, the
// gradient is L^-T Phi(L^T g) L^-1, made symmetric.
DTensor CholeskyGradient(const DTensor& grad, const DTensor& l) {
  const DTensor product = MatMul(Transposed(l), grad);
  const DTensor phi = Mul(Add(Tril(product), Tril(product, -1)), 0.5);
  const DTensor left = SolveTriangular(Transposed(l), phi, /*upper=*/true);
  return Symmetric(SolveTriangular(Transposed(l), Transposed(left), /*upper=*/true));
}

DTensor LowerCholesky(const DTensor& x) {
  OpCall call(kCholesky, {&x});
  call.Decide([&] { return internal::BatchRule(x, {{x.dim(-1), x.dim(-1)}}); });
  auto [factor, failed] = ops::Cholesky(call.context(), call.local(0));
  internal::RequireSuccess(call, kCholesky.name, x, x.num_dims() - 2, failed,
                           "not positive definite: it has no factor L with L L^T");
  DTensor y = call.Result(std::move(factor));
  if (!call.Records()) return y;
  call.Record({&y}, [sy = Saved(y)](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, CholeskyGradient(grads[0], sy.Get(kCholesky.name)));
  });
  return y;
}

// The lower triangle, mirrored.
DTensor Mirrored(const DTensor& x) { return Add(Tril(x), Transposed(Tril(x, -1))); }

// For at least as many rows as columns: (gq + q Mirrored(r gr^T - gq^T q)) r^-T.
DTensor TallQrGradient(const DTensor& q, const DTensor& r, const DTensor& gq, const DTensor& gr) {
  const DTensor inner = Sub(MatMul(r, Transposed(gr)), MatMul(Transposed(gq), q));
  const DTensor right = Add(gq, MatMul(q, Mirrored(inner)));
  return Transposed(SolveTriangular(r, Transposed(right), /*upper=*/true));
}

// With more columns than rows x is [left, rest] and r is [u, q^T rest]: a QR of the square on the
// left, and a product.
DTensor QrGradient(const DTensor& x, const DTensor& q, const DTensor& r, const DTensor& gq,
                   const DTensor& gr) {
  const int64_t m = x.dim(-2), n = x.dim(-1);
  if (m >= n) return TallQrGradient(q, r, gq, gr);
  const DTensor rest = Slice(x, -1, m, n - m), grad_rest = Slice(gr, -1, m, n - m);
  const DTensor left = TallQrGradient(
      q, Slice(r, -1, 0, m), Add(gq, MatMul(rest, Transposed(grad_rest))), Slice(gr, -1, 0, m));
  return Concat({left, MatMul(q, grad_rest)}, -1);
}

// With V^T dV = F o (V^T dx V), where F_ij = 1 / (l_j - l_i) off the diagonal, the gradient is
// V (diag(g_values) + F o skew(V^T g_vectors)) V^T. Either gradient may be none.
DTensor EighGradient(const DTensor& values, const DTensor& vectors, const DTensor& grad_values,
                     const DTensor& grad_vectors) {
  DTensor inner;
  if (grad_vectors) {
    const int rank = vectors.num_dims();
    const int64_t n = values.dim(-1);
    const DTensor product = MatMul(Transposed(vectors), grad_vectors);
    const DTensor skew = Mul(Sub(product, Transposed(product)), 0.5);
    const DTensor gaps = Sub(Unsqueeze(values, -2), Unsqueeze(values, -1));
    const DTensor diagonal =
        Compare(CompareOp::kEqual, internal::PositionsOn(values, n, rank - 2, rank),
                internal::PositionsOn(values, n, rank - 1, rank));
    inner = internal::Select(diagonal, Div(skew, gaps), /*keep=*/false);
  }
  if (grad_values) {
    const DTensor diagonal = DiagEmbed(grad_values);
    inner = inner ? Add(inner, diagonal) : diagonal;
  }
  return MatMul(MatMul(vectors, inner), Transposed(vectors));
}

}  // namespace

DTensor Cholesky(const DTensor& x, bool upper) {
  internal::CheckSquare(kCholesky.name, x);
  internal::CheckReal(kCholesky.name, x);
  return upper ? Transposed(LowerCholesky(Transposed(x))) : LowerCholesky(x);
}

std::pair<DTensor, DTensor> Qr(const DTensor& x, bool complete) {
  internal::CheckMatrices(kQr.name, x);
  internal::CheckReal(kQr.name, x);
  const int64_t m = x.dim(-2), n = x.dim(-1), k = complete ? m : std::min(m, n);
  OpCall call(kQr, {&x});
  call.Attribute(complete).Decide([&] { return internal::BatchRule(x, {{m, k}, {k, n}}); });
  auto [local_q, local_r] = ops::Qr(call.context(), call.local(0), complete);
  DTensor q = call.Result(std::move(local_q), 0);
  DTensor r = call.Result(std::move(local_r), 1);
  if (!call.Records()) return {q, r};
  call.Record({&q, &r}, [sx = Saved(call.input(0)), sq = Saved(q), sr = Saved(r)](
                            std::span<const DTensor> grads, Gradients& out) {
    const DTensor x = sx.Get(kQr.name), q = sq.Get(kQr.name), r = sr.Get(kQr.name);
    if (q.dim(-1) > x.dim(-1)) {
      ThrowInvalid("backward of qr: the complete q of ", x.ToString(),
                   " is not unique beyond as many columns; take the gradient of the reduced one");
    }
    const auto given = [](const DTensor& grad, const DTensor& result) {
      return grad ? grad : internal::FilledLike(result, result.shape(), 0);
    };
    out.Set(0, QrGradient(x, q, r, given(grads[0], q), given(grads[1], r)));
  });
  return {q, r};
}

std::pair<DTensor, DTensor> Eigh(const DTensor& x, bool upper) {
  internal::CheckSquare(kEigh.name, x);
  internal::CheckReal(kEigh.name, x);
  const int64_t n = x.dim(-1);
  OpCall call(kEigh, {&x});
  call.Decide([&] { return internal::BatchRule(x, {{n}, {n, n}}); });
  auto [local_values, local_vectors] = ops::Eigh(call.context(), call.local(0), upper);
  DTensor values = call.Result(std::move(local_values), 0);
  DTensor vectors = call.Result(std::move(local_vectors), 1);
  if (!call.Records()) return {values, vectors};
  call.Record({&values, &vectors}, [sl = Saved(values), sv = Saved(vectors)](
                                       std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, EighGradient(sl.Get(kEigh.name), sv.Get(kEigh.name), grads[0], grads[1]));
  });
  return {values, vectors};
}

}  // namespace shardmesh
