// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/blas_cpu.h"

#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "cblas.h"
#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"

// Not in cblas.h, and absent from an OpenBLAS that was built for one processor.
extern "C" {
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}

namespace shardmesh::cpu {
namespace {

// OpenBLAS 0.3.21 does not know processors that came after it, and then picks kernels of 2004 (a
// tenth of the speed). Its own choice is made when it is loaded; this makes it again, by the
// variable that is documented for it.
void MendChoiceOfKernels() {
  constexpr std::array<std::string_view, 8> kOld = {"Unknown", "Prescott", "Core2",       "Penryn",
                                                    "Atom",    "Nehalem",  "Sandybridge", "Katmai"};
  if (CurrentIsa() == Isa::kBaseline || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  if (gotoblas_dynamic_init == nullptr || gotoblas_dynamic_quit == nullptr) return;
  const std::string_view chosen = openblas_get_corename();
  bool old = false;
  for (std::string_view name : kOld) old = old || chosen == name;
  if (!old) return;
  setenv("OPENBLAS_CORETYPE", CurrentIsa() == Isa::kAvx512 ? "SkylakeX" : "Haswell",
         /*overwrite=*/1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
}

constexpr CBLAS_TRANSPOSE Flag(const BlasOrder& order) {
  return order.transposed ? CblasTrans : CblasNoTrans;
}

template <typename T>
void GemmOf(int64_t m, int64_t n, int64_t k, T alpha, const MatrixView<T>& a,
            const MatrixView<T>& b, bool accumulate, T* c, int64_t ldc) {
  const auto order_a = BlasOrderOf(m, k, a.row_stride, a.col_stride);
  const auto order_b = BlasOrderOf(k, n, b.row_stride, b.col_stride);
  SHARDMESH_CHECK(order_a && order_b) << "an operand needs a copy first";
  const T beta = accumulate ? T{1} : T{0};
  const int rows = static_cast<int>(m), cols = static_cast<int>(n), depth = static_cast<int>(k);
  if constexpr (sizeof(T) == sizeof(float)) {
    cblas_sgemm(CblasRowMajor, Flag(*order_a), Flag(*order_b), rows, cols, depth, alpha, a.data,
                order_a->leading, b.data, order_b->leading, beta, c, static_cast<int>(ldc));
  } else {
    cblas_dgemm(CblasRowMajor, Flag(*order_a), Flag(*order_b), rows, cols, depth, alpha, a.data,
                order_a->leading, b.data, order_b->leading, beta, c, static_cast<int>(ldc));
  }
}

}  // namespace

std::optional<BlasOrder> BlasOrderOf(int64_t rows, int64_t cols, int64_t row_stride,
                                     int64_t col_stride) {
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  // Where there is but one row, its stride is any number.
  const int64_t row_leading = rows <= 1 ? cols : row_stride;
  if ((col_stride == 1 || cols <= 1) && row_leading >= cols && row_leading <= kMax) {
    return BlasOrder{/*transposed=*/false, static_cast<int>(row_leading > 0 ? row_leading : 1)};
  }
  const int64_t col_leading = cols <= 1 ? rows : col_stride;
  if ((row_stride == 1 || rows <= 1) && col_leading >= rows && col_leading <= kMax) {
    return BlasOrder{/*transposed=*/true, static_cast<int>(col_leading > 0 ? col_leading : 1)};
  }
  return std::nullopt;
}

void PrepareBlas() {
  static std::once_flag once;
  std::call_once(once, [] {
    MendChoiceOfKernels();
    openblas_set_num_threads(1);
  });
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView<float>& a,
          const MatrixView<float>& b, bool accumulate, float* c, int64_t ldc) {
  GemmOf(m, n, k, alpha, a, b, accumulate, c, ldc);
}

void Gemm(int64_t m, int64_t n, int64_t k, double alpha, const MatrixView<double>& a,
          const MatrixView<double>& b, bool accumulate, double* c, int64_t ldc) {
  GemmOf(m, n, k, alpha, a, b, accumulate, c, ldc);
}

}  // namespace shardmesh::cpu
