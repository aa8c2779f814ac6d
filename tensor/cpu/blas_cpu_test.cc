// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/blas_cpu.h"

#include <cstdlib>
#include <string>

#include "cblas.h"
#include "gtest/gtest.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"

namespace shardmesh::cpu {
namespace {

TEST(Blas, OrderOfAMatrixByItsStrides) {
  struct Row {
    int64_t rows, cols, row_stride, col_stride;
    const char* expected;
  } table[] = {
      {3, 5, 5, 1, "rows 5"},
      {3, 5, 7, 1, "rows 7"},
      {3, 5, 1, 3, "columns 3"},
      {3, 5, 1, 4, "columns 4"},
      {3, 5, 10, 2, "copy"},
      {3, 5, 0, 1, "copy"},
      {3, 5, 1, 0, "copy"},
      {1, 5, 0, 1, "rows 5"},
      {1, 5, 99, 3, "columns 3"},
      {3, 1, 5, 99, "rows 5"},
      {3, 1, 1, 99, "rows 1"},
      {1, 1, 0, 0, "rows 1"},
      {3, 5, int64_t{1} << 31, 1, "copy"},
      {0, 5, 5, 1, "rows 5"},
      {3, 0, 0, 1, "rows 1"},
  };
  for (const Row& row : table) {
    const auto order = BlasOrderOf(row.rows, row.cols, row.row_stride, row.col_stride);
    const std::string text =
        order ? (order->transposed ? "columns " : "rows ") + std::to_string(order->leading)
              : "copy";
    EXPECT_EQ(text, row.expected) << row.rows << " x " << row.cols << " strides " << row.row_stride
                                  << ", " << row.col_stride;
  }
}

// OpenBLAS 0.3.21 took Prescott's kernels (SSE3) on a processor that it did not know.
TEST(Blas, KernelsFitTheProcessor) {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr) GTEST_SKIP() << "chosen by the environment";
  if (CurrentIsa() == Isa::kBaseline) GTEST_SKIP() << "any kernels fit";
  PrepareBlas();
  EXPECT_NE(std::string(openblas_get_corename()), "Prescott");
  EXPECT_EQ(openblas_get_num_threads(), 1);
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE"), nullptr);
}

}  // namespace
}  // namespace shardmesh::cpu
