// SPDX-License-Identifier: Apache-2.0
//
// The matrix product of two blocks of memory, by OpenBLAS on the calling thread.
//
//   Gemm(m, n, k, MatrixView<float>{a, /*row_stride=*/k, /*col_stride=*/1}, b,
//   /*accumulate=*/false, c, /*ldc=*/n);
//
// OpenBLAS is not split-invariant: a product cut into tiles may round otherwise than the whole.
// Callers cut tiles by shapes alone, so that at least threads and runs do not matter.
#ifndef SHARDMESH_TENSOR_CPU_BLAS_CPU_H_
#define SHARDMESH_TENSOR_CPU_BLAS_CPU_H_

#include <cstdint>
#include <optional>

namespace shardmesh::cpu {

/// Elements data[i * row_stride + j * col_stride].
template <typename T>
struct MatrixView {
  const T* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;

  MatrixView Transposed() const { return {data, col_stride, row_stride}; }
  MatrixView Block(int64_t row, int64_t col) const {
    return {data + row * row_stride + col * col_stride, row_stride, col_stride};
  }
};

/// How BLAS reads a matrix of row-major order, or the transpose of one.
struct BlasOrder {
  bool transposed;
  int leading;  ///< Elements from one row (or, transposed, column) to the next.
};

/// The order of a [rows, cols] matrix with these strides, or nothing if it has to be copied for
/// BLAS.
std::optional<BlasOrder> BlasOrderOf(int64_t rows, int64_t cols, int64_t row_stride,
                                     int64_t col_stride);

/// Ready for use from several threads: one thread a call, kernels that fit the processor. Repeating
/// it is free.
void PrepareBlas();

/// c[m, n] (+)= alpha * sum_k a[m, k] b[k, n]; a and b have an order for BLAS, c is row-major. m,
/// n, k within int; k > 0.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView<float>& a,
          const MatrixView<float>& b, bool accumulate, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, double alpha, const MatrixView<double>& a,
          const MatrixView<double>& b, bool accumulate, double* c, int64_t ldc);

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_BLAS_CPU_H_
