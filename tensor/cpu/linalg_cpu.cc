// SPDX-License-Identifier: Apache-2.0
//
// Factorisations and solvers of small dense matrices, by the LAPACK that is part of OpenBLAS.
//
// LAPACK reads a column-major matrix: in the memory of a row-major one it sees the transpose. Where
// the transpose will do (determinants, symmetric matrices with the other triangle named, solving by
// the factors of the transpose) nothing is copied for it.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "cblas.h"
#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/blas_cpu.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

// Fortran's calling convention: arguments by address, lengths of texts at the end.
extern "C" {
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info, size_t);
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, size_t);
void sgetrf_(const int* m, const int* n, float* a, const int* lda, int* pivots, int* info);
void dgetrf_(const int* m, const int* n, double* a, const int* lda, int* pivots, int* info);
void sgetrs_(const char* trans, const int* n, const int* columns, const float* a, const int* lda,
             const int* pivots, float* b, const int* ldb, int* info, size_t);
void dgetrs_(const char* trans, const int* n, const int* columns, const double* a, const int* lda,
             const int* pivots, double* b, const int* ldb, int* info, size_t);
void sgeqrf_(const int* m, const int* n, float* a, const int* lda, float* tau, float* work,
             const int* lwork, int* info);
void dgeqrf_(const int* m, const int* n, double* a, const int* lda, double* tau, double* work,
             const int* lwork, int* info);
void sorgqr_(const int* m, const int* n, const int* k, float* a, const int* lda, const float* tau,
             float* work, const int* lwork, int* info);
void dorgqr_(const int* m, const int* n, const int* k, double* a, const int* lda, const double* tau,
             double* work, const int* lwork, int* info);
void ssyevd_(const char* job, const char* uplo, const int* n, float* a, const int* lda,
             float* values, float* work, const int* lwork, int* iwork, const int* liwork, int* info,
             size_t, size_t);
void dsyevd_(const char* job, const char* uplo, const int* n, double* a, const int* lda,
             double* values, double* work, const int* lwork, int* iwork, const int* liwork,
             int* info, size_t, size_t);
}

namespace shardmesh {
namespace {

using internal::OutputData;

template <typename T>
struct Lapack;
template <>
struct Lapack<float> {
  static constexpr auto kPotrf = &spotrf_;
  static constexpr auto kGetrf = &sgetrf_;
  static constexpr auto kGetrs = &sgetrs_;
  static constexpr auto kGeqrf = &sgeqrf_;
  static constexpr auto kOrgqr = &sorgqr_;
  static constexpr auto kSyevd = &ssyevd_;
};
template <>
struct Lapack<double> {
  static constexpr auto kPotrf = &dpotrf_;
  static constexpr auto kGetrf = &dgetrf_;
  static constexpr auto kGetrs = &dgetrs_;
  static constexpr auto kGeqrf = &dgeqrf_;
  static constexpr auto kOrgqr = &dorgqr_;
  static constexpr auto kSyevd = &dsyevd_;
};

// Slots of working memory.
enum Slot { kMatrix, kColumns, kPivots, kReflections, kWork, kIntegerWork };

template <typename F>
void VisitReal(const Tensor& x, const F& fn) {
  SHARDMESH_CHECK(x.dtype() == DType::kF32 || x.dtype() == DType::kF64) << Name(x.dtype());
  if (x.dtype() == DType::kF32) return fn.template operator()<float>();
  fn.template operator()<double>();
}

int Extent(const Tensor& x, int dim) { return static_cast<int>(x.dim(dim)); }

// Matrices, or what there is one of for each: all dims but the last `own`.
int64_t BatchOf(const Tensor& x, int own = 2) {
  int64_t count = 1;
  for (int d = 0; d < x.num_dims() - own; ++d) count *= x.dim(d);
  return count;
}

// Calls fn(scratch, i) for i in [0, count), on all threads; `extent` is that of a matrix.
template <typename F>
void ForEachMatrix(ExecutionContext& context, int64_t count, int64_t extent, const F& fn) {
  cpu::PrepareBlas();
  const int64_t work = std::max<int64_t>(1, std::min<int64_t>(extent, 1024));
  const int64_t tile = std::max<int64_t>(1, cpu::kTileElements / (work * work * work));
  cpu::ForTiles(context, count, tile, [&](int64_t begin, int64_t end) {
    cpu::Scratch scratch(context);
    for (int64_t i = begin; i < end; ++i) fn(scratch, i);
  });
}

// The same where fn says whether it succeeded: the first i for which it did not.
template <typename F>
std::optional<int64_t> FirstFailure(ExecutionContext& context, int64_t count, int64_t extent,
                                    const F& fn) {
  std::atomic<int64_t> first = count;
  ForEachMatrix(context, count, extent, [&](cpu::Scratch& scratch, int64_t i) {
    if (fn(scratch, i)) return;
    int64_t seen = first.load();
    while (i < seen && !first.compare_exchange_weak(seen, i)) {
    }
  });
  return first < count ? std::optional<int64_t>(first) : std::nullopt;
}

// to[j, i] = from[i, j].
template <typename T>
void CopyTransposed(const T* from, int64_t rows, int64_t columns, T* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
}

// LAPACK's leading dimension of a matrix of so many rows.
int Leading(int rows) { return std::max(1, rows); }

// ---- Cholesky -----------------------------------------------------------------------------------

// A matrix with nan is not positive definite either; what OpenBLAS makes of it depends on its
// version.
template <typename T>
bool CholeskyOf(int n, const T* x, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    std::copy(x + i * n, x + i * n + i + 1, out + i * n);
    std::fill(out + i * n + i + 1, out + (i + 1) * n, T{0});
  }
  const int leading = Leading(n);
  int info = 0;
  Lapack<T>::kPotrf("U", &n, out, &leading, &info, 1);
  for (int64_t i = 0; i < n; ++i) {
    if (!(out[i * n + i] > T{0})) return false;
  }
  return info == 0;
}

std::optional<int64_t> Cholesky(ExecutionContext& context, const Tensor& x, Tensor& out) {
  std::optional<int64_t> failed;
  VisitReal(x, [&]<typename T>() {
    const int n = Extent(x, -1);
    const int64_t size = int64_t{n} * n;
    failed = FirstFailure(context, BatchOf(x), n, [&](cpu::Scratch&, int64_t i) {
      return CholeskyOf(n, x.data<T>() + i * size, OutputData<T>(out) + i * size);
    });
  });
  return failed;
}

// ---- LU -----------------------------------------------------------------------------------------

// The LU factors of what LAPACK sees of a row-major matrix, in slots kMatrix and kPivots. False if
// U has a zero on the diagonal.
template <typename T>
bool Factorise(cpu::Scratch& scratch, int n, const T* x) {
  T* lu = scratch.Get<T>(kMatrix, int64_t{n} * n);
  int* pivots = scratch.Get<int>(kPivots, n);
  std::copy(x, x + int64_t{n} * n, lu);
  const int leading = Leading(n);
  int info = 0;
  Lapack<T>::kGetrf(&n, &n, lu, &leading, pivots, &info);
  return info == 0;
}

template <typename T>
void LogDeterminantOf(cpu::Scratch& scratch, int n, const T* x, T& sign, T& log_abs) {
  if (!Factorise(scratch, n, x)) {
    sign = 0;
    log_abs = -std::numeric_limits<T>::infinity();
    return;
  }
  const T* lu = scratch.Get<T>(kMatrix, int64_t{n} * n);
  const int* pivots = scratch.Get<int>(kPivots, n);
  double sum = 0;
  bool is_negative = false;
  for (int64_t i = 0; i < n; ++i) {
    const double pivot = lu[i * n + i];
    is_negative ^= (pivot < 0) ^ (pivots[i] != i + 1);
    sum += std::log(std::abs(pivot));
  }
  log_abs = static_cast<T>(sum);
  sign = std::isnan(sum) ? log_abs : static_cast<T>(is_negative ? -1 : 1);
}

void LogDeterminant(ExecutionContext& context, const Tensor& x, Tensor& sign, Tensor& log_abs) {
  VisitReal(x, [&]<typename T>() {
    const int n = Extent(x, -1);
    ForEachMatrix(context, BatchOf(x), n, [&](cpu::Scratch& scratch, int64_t i) {
      LogDeterminantOf(scratch, n, x.data<T>() + i * n * n, OutputData<T>(sign)[i],
                       OutputData<T>(log_abs)[i]);
    });
  });
}

// The factors are those of the transpose, by which LAPACK solves the transposed system.
template <typename T>
bool SolveOf(cpu::Scratch& scratch, int n, int columns, const T* a, const T* b, T* out) {
  if (!Factorise(scratch, n, a)) return false;
  const T* lu = scratch.Get<T>(kMatrix, int64_t{n} * n);
  const int* pivots = scratch.Get<int>(kPivots, n);
  T* solution = scratch.Get<T>(kColumns, int64_t{n} * columns);
  CopyTransposed(b, n, columns, solution);
  const int leading = Leading(n);
  int info = 0;
  Lapack<T>::kGetrs("T", &n, &columns, lu, &leading, pivots, solution, &leading, &info, 1);
  CopyTransposed(solution, columns, n, out);
  return true;
}

std::optional<int64_t> Solve(ExecutionContext& context, const Tensor& a, const Tensor& b,
                             Tensor& out) {
  std::optional<int64_t> failed;
  VisitReal(a, [&]<typename T>() {
    const int n = Extent(a, -1), columns = Extent(b, -1);
    const int64_t size = int64_t{n} * n, other = int64_t{n} * columns;
    failed = FirstFailure(context, BatchOf(a), n, [&](cpu::Scratch& scratch, int64_t i) {
      return SolveOf(scratch, n, columns, a.data<T>() + i * size, b.data<T>() + i * other,
                     OutputData<T>(out) + i * other);
    });
  });
  return failed;
}

// ---- triangular systems -------------------------------------------------------------------------

template <typename T>
void SolveTriangularOf(int n, int columns, const T* a, bool upper, bool unit_diagonal, T* b) {
  const CBLAS_UPLO triangle = upper ? CblasUpper : CblasLower;
  const CBLAS_DIAG diagonal = unit_diagonal ? CblasUnit : CblasNonUnit;
  if constexpr (sizeof(T) == sizeof(float)) {
    cblas_strsm(CblasRowMajor, CblasLeft, triangle, CblasNoTrans, diagonal, n, columns, T{1}, a,
                Leading(n), b, Leading(columns));
  } else {
    cblas_dtrsm(CblasRowMajor, CblasLeft, triangle, CblasNoTrans, diagonal, n, columns, T{1}, a,
                Leading(n), b, Leading(columns));
  }
}

void SolveTriangular(ExecutionContext& context, const Tensor& a, const Tensor& b, bool upper,
                     bool unit_diagonal, Tensor& out) {
  if (out.NumElements() == 0) return;
  VisitReal(a, [&]<typename T>() {
    const int n = Extent(a, -1), columns = Extent(b, -1);
    const int64_t size = int64_t{n} * n, other = int64_t{n} * columns;
    ForEachMatrix(context, BatchOf(a), n, [&](cpu::Scratch&, int64_t i) {
      T* solution = OutputData<T>(out) + i * other;
      std::copy(b.data<T>() + i * other, b.data<T>() + (i + 1) * other, solution);
      SolveTriangularOf(n, columns, a.data<T>() + i * size, upper, unit_diagonal, solution);
    });
  });
}

// ---- QR -----------------------------------------------------------------------------------------

template <typename T>
void QrOf(cpu::Scratch& scratch, int m, int n, int k, const T* x, T* q, T* r) {
  constexpr int kBlock = 64;  // Columns that LAPACK reflects at a time, at most.
  const int reflections = std::min(m, n), leading = Leading(m);
  const int columns = std::max(n, k);
  const int lwork = static_cast<int>(
      std::min<int64_t>(int64_t{Leading(columns)} * kBlock, std::numeric_limits<int>::max()));
  T* a = scratch.Get<T>(kMatrix, int64_t{m} * columns);  // Column-major.
  T* tau = scratch.Get<T>(kReflections, Leading(reflections));
  T* work = scratch.Get<T>(kWork, lwork);
  int info = 0;
  CopyTransposed(x, m, n, a);
  Lapack<T>::kGeqrf(&m, &n, a, &leading, tau, work, &lwork, &info);
  SHARDMESH_CHECK(info == 0) << "geqrf: " << info;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < n; ++j) r[i * n + j] = i <= j ? a[j * m + i] : T{0};
  }
  Lapack<T>::kOrgqr(&m, &k, &reflections, a, &leading, tau, work, &lwork, &info);
  SHARDMESH_CHECK(info == 0) << "orgqr: " << info;
  CopyTransposed(a, k, m, q);
}

void Qr(ExecutionContext& context, const Tensor& x, Tensor& q, Tensor& r) {
  VisitReal(x, [&]<typename T>() {
    const int m = Extent(x, -2), n = Extent(x, -1), k = Extent(q, -1);
    ForEachMatrix(context, BatchOf(x), std::max(m, n), [&](cpu::Scratch& scratch, int64_t i) {
      QrOf(scratch, m, n, k, x.data<T>() + i * m * n, OutputData<T>(q) + i * m * k,
           OutputData<T>(r) + i * k * n);
    });
  });
}

// ---- symmetric eigenvalues ----------------------------------------------------------------------

// False if there is none: an element is not finite, or the iteration does not converge.
template <typename T>
bool EighOf(cpu::Scratch& scratch, int n, const T* x, bool upper, T* values, T* vectors) {
  T* a = scratch.Get<T>(kMatrix, int64_t{n} * n);
  bool is_finite = true;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = upper ? i : 0; j < (upper ? n : i + 1); ++j)
      is_finite &= std::isfinite(a[i * n + j] = x[i * n + j]);
  }
  if (!is_finite) return false;
  const int leading = Leading(n), lwork = 1 + 6 * n + 2 * n * n, liwork = 3 + 5 * n;
  T* work = scratch.Get<T>(kWork, lwork);
  int* integers = scratch.Get<int>(kIntegerWork, liwork);
  int info = 0;
  Lapack<T>::kSyevd("V", upper ? "L" : "U", &n, a, &leading, values, work, &lwork, integers,
                    &liwork, &info, 1, 1);
  CopyTransposed(a, n, n, vectors);
  return info == 0;
}

void Eigh(ExecutionContext& context, const Tensor& x, bool upper, Tensor& values, Tensor& vectors) {
  VisitReal(x, [&]<typename T>() {
    const int64_t n = x.dim(-1);
    ForEachMatrix(context, BatchOf(x), n, [&](cpu::Scratch& scratch, int64_t i) {
      T* own_values = OutputData<T>(values) + i * n;
      T* own_vectors = OutputData<T>(vectors) + i * n * n;
      if (EighOf(scratch, static_cast<int>(n), x.data<T>() + i * n * n, upper, own_values,
                 own_vectors))
        return;
      std::fill(own_values, own_values + n, std::numeric_limits<T>::quiet_NaN());
      std::fill(own_vectors, own_vectors + n * n, std::numeric_limits<T>::quiet_NaN());
    });
  });
}

}  // namespace

void FillLinalgKernels(KernelTable& table) {
  table.cholesky = Cholesky;
  table.log_determinant = LogDeterminant;
  table.solve = Solve;
  table.solve_triangular = SolveTriangular;
  table.qr = Qr;
  table.eigh = Eigh;
}

}  // namespace shardmesh
