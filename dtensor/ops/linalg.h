// SPDX-License-Identifier: Apache-2.0
//
// Linear algebra of small dense matrices, many at a time. Names, arguments and conventions are
// those of PyTorch's linalg; the last two dims are a matrix, those before them a batch.
//
//   #include "shardmesh/dtensor/ops/linalg.h"
//   DTensor l = Cholesky(covariance);                        // [8, n, n], sharded along the batch
//   DTensor z = SolveTriangular(l, noise, /*upper=*/false);
//
// Shards of a batch stay; the two dims of a matrix are gathered, but those of MatrixPower, and the
// columns of a right-hand side. Solving and Cross are linear in each operand that says so: there a
// Partial passes through. All are computed by LAPACK, on one thread per matrix.
//
// What dtensor/ops.h says of errors and of who must call holds here too. In addition:
// Errors: throws Error(kInvalidArgument) naming the op unless operands are f32 or f64. The same,
//         naming the first matrix of the global batch, where a matrix is singular or not positive
//         definite, unless stated otherwise. As that depends on values, the ranks that hold the
//         batch agree on it first and all throw alike: one all-reduce of 8 bytes where the batch is
//         sharded, none elsewhere.
#ifndef SHARDMESH_DTENSOR_OPS_LINALG_H_
#define SHARDMESH_DTENSOR_OPS_LINALG_H_

#include <cstdint>
#include <utility>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

// ---- factorisations (ops/linalg_factors.cc) -----------------------------------------------------
/// The lower triangular L with x = L L^T, or with `upper` the U with x = U^T U. Reads that triangle
/// of x only; the gradient is the symmetric one.
/// Shape:  [.., n, n].
/// Errors: a matrix is not positive definite.
/// Source: gradient by I. Murray, "Differentiation of the Cholesky decomposition", 2016.
DTensor Cholesky(const DTensor& x, bool upper = false);

/// Orthonormal columns q and upper triangular r with x = q r. Signs are those of Householder
/// reflections (LAPACK's geqrf): the diagonal of r may be negative.
/// Shape:  x [.., m, n] -> q [.., m, k], r [.., k, n], with k = m if `complete`, else min(m, n).
/// Errors: backward throws Error(kInvalidArgument) for `complete` with m > n, as the columns of q
///         beyond n are not unique. Where the first k columns of x are dependent the gradient is
///         infinite or nan.
/// Source: gradient by S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra
///         functions with application in optimum experimental design", 2010.
std::pair<DTensor, DTensor> Qr(const DTensor& x, bool complete = false);

/// Eigenvalues, ascending, and eigenvectors (columns, of norm 1) of the symmetric matrix of which x
/// has the lower triangle, or with `upper` the upper one; the gradient is the symmetric one. nan
/// where x is not finite. The sign of a vector is not unique: what is differentiated must not
/// depend on it. Nor is the gradient of the vectors of equal eigenvalues: it is infinite or nan.
/// Shape:  x [.., n, n] -> values [.., n], vectors [.., n, n]; n is at most 32,766.
std::pair<DTensor, DTensor> Eigh(const DTensor& x, bool upper = false);

// ---- determinants, systems, products (ops/linalg.cc) --------------------------------------------
/// 0 where x is singular, and no error; the gradient is right there too. Computed in f64.
/// Shape: [.., n, n] -> [..].
DTensor Det(const DTensor& x);

/// The sign of the determinant, which has no gradient, and the logarithm of its magnitude: 0 and
/// -inf where x is singular.
/// Shape:  [.., n, n] -> [..], [..].
/// Errors: backward throws where a matrix is singular.
std::pair<DTensor, DTensor> SlogDet(const DTensor& x);

/// Errors: a matrix is singular.
DTensor Inv(const DTensor& x);

/// y with a y = b. b is vectors if it has one dim or the shape of `a` without its last dim, else
/// matrices. Batches broadcast. Linear in b.
/// Shape:  a [.., n, n], b [.., n] -> [.., n]; or b [.., n, k] -> [.., n, k].
/// Errors: a matrix of `a` is singular.
DTensor Solve(const DTensor& a, const DTensor& b);

/// y with a y = b, or with `left` false y a = b, for a triangular `a`, whose other triangle is not
/// read; with `unitriangular` its diagonal counts as ones and is not read. Batches broadcast. A
/// zero on the diagonal gives infinities or nan, and no error. Linear in b.
/// Shape: a [.., n, n], b [.., n, k] -> [.., n, k]; or b [.., k, n] -> [.., k, n].
DTensor SolveTriangular(const DTensor& a, const DTensor& b, bool upper, bool left = true,
                        bool unitriangular = false);

/// x^exponent by repeated squaring; x^0 is the identity, also of a singular x. Any floating dtype
/// where the exponent is not negative; rounded once.
/// Errors: the exponent is negative and a matrix is singular.
DTensor MatrixPower(const DTensor& x, int64_t exponent);

/// The cross product along `dim`, which has extent 3 in both; the other dims broadcast. Linear in
/// each operand. Any dtype but bool.
/// Errors: throws Error(kInvalidArgument) naming both unless they have as many dims as each other.
DTensor Cross(const DTensor& a, const DTensor& b, int dim = -1);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_LINALG_H_
