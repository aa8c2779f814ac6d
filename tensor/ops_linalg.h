// SPDX-License-Identifier: Apache-2.0
//
// Linear algebra on local tensors; what tensor/ops.h says holds here too. The last two dims are a
// matrix, those before them a batch.
//
//   const auto [factor, failed] = ops::Cholesky(context, x);
//   if (failed) ...                       // matrix *failed of the batch is not positive definite
//
// Errors: every function throws Error(kInvalidArgument) naming the op, unless operands are f32 or
// f64, of one dtype, and of shapes that fit.
#ifndef SHARDMESH_TENSOR_OPS_LINALG_H_
#define SHARDMESH_TENSOR_OPS_LINALG_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "shardmesh/tensor/kernel_table.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::ops {

/// `failed`: the first matrix of the batch, in row-major order, for which there is no result. Then
/// `value` is unspecified. An outcome and no Error, so that ranks can agree on one.
struct MatrixResult {
  Tensor value;
  std::optional<int64_t> failed;
};

/// L with x = L L^T. Reads the lower triangle. Fails unless x is positive definite.
MatrixResult Cholesky(ExecutionContext&, const Tensor& x);

struct LogDeterminantResult {
  Tensor sign, log_abs;  ///< 0 and -inf where x is singular.
};
LogDeterminantResult LogDeterminant(ExecutionContext&, const Tensor& x);
/// By way of f64, so that only the result is rounded.
Tensor Determinant(ExecutionContext&, const Tensor& x);
/// The derivative of the determinant by each element of x: det(x) x^-T where x has an inverse. A
/// polynomial in the elements, and right to rounding for singular matrices of any rank.
Tensor Cofactors(ExecutionContext&, const Tensor& x);

/// y with a y = b, for a [.., n, n] and b [.., n, k] whose batch dims broadcast. Fails where `a` is
/// singular, at that matrix of the broadcast batch.
MatrixResult Solve(ExecutionContext&, const Tensor& a, const Tensor& b);
/// The same for a triangular `a`, whose other triangle is not read; with `unit_diagonal` its
/// diagonal is not read either. A zero on the diagonal gives infinities or nan.
Tensor SolveTriangular(ExecutionContext&, const Tensor& a, const Tensor& b, bool upper,
                       bool unit_diagonal);
/// x^-1. Fails where x is singular.
MatrixResult Inverse(ExecutionContext&, const Tensor& x);

/// x [.., m, n] = q [.., m, k] r [.., k, n], with k = m if `complete`, else min(m, n). Signs are
/// those of Householder reflections, as in LAPACK.
struct QrResult {
  Tensor q, r;
};
QrResult Qr(ExecutionContext&, const Tensor& x, bool complete);

/// Ascending eigenvalues [.., n] of the symmetric matrix whose upper or lower triangle x has, and
/// the eigenvectors as columns. nan where x is not finite. At most 32,766 rows.
struct EighResult {
  Tensor values, vectors;
};
EighResult Eigh(ExecutionContext&, const Tensor& x, bool upper);

}  // namespace shardmesh::ops

#endif  // SHARDMESH_TENSOR_OPS_LINALG_H_
