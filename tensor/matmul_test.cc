// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

// a[batch, m, k] b[batch, k, n] + c, in double.
std::vector<double> Reference(const std::vector<double>& a, const std::vector<double>& b,
                              int64_t batch, int64_t m, int64_t n, int64_t k,
                              std::vector<double> c = {}) {
  if (c.empty()) c.resize(batch * m * n, 0.0);
  for (int64_t p = 0; p < batch; ++p) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t l = 0; l < k; ++l) {
          c[(p * m + i) * n + j] += a[(p * m + i) * k + l] * b[(p * k + l) * n + j];
        }
      }
    }
  }
  return c;
}

double Tolerance(DType dtype) {
  return dtype == DType::kF64 ? 1e-14 : dtype == DType::kF32 ? 2e-6 : 1e-2;
}

constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

TEST(MatMul, EveryDTypeAndEveryMemoryOrderOfBothOperands) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const int m : {1, 3, 17}) {
      for (const int n : {1, 5, 19}) {
        for (const int k : {1, 7, 31}) {
          const Tensor a = RandomTensor(context, {m, k}, dtype, 1),
                       b = RandomTensor(context, {k, n}, dtype, 2);
          const auto expected = Reference(Values(a), Values(b), 1, m, n, k);
          for (const int64_t gap : {0, 3}) {
            for (const std::vector<int>& order_a : {std::vector{0, 1}, std::vector{1, 0}}) {
              for (const std::vector<int>& order_b : {std::vector{0, 1}, std::vector{1, 0}}) {
                const Tensor y = ops::MatMul(context, InMemoryOrder(context, a, order_a, gap),
                                             InMemoryOrder(context, b, order_b, gap));
                EXPECT_EQ(y.dtype(), dtype);
                EXPECT_LT(WorstRelative(Values(y), expected), Tolerance(dtype))
                    << dtype << " m " << m << " n " << n << " k " << k << " gap " << gap
                    << " orders " << order_a[0] << order_b[0];
              }
            }
          }
        }
      }
    }
  }
}

TEST(MatMul, ReadsOperandsWithNoContiguousDim) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor a = RandomTensor(context, {5, 2, 7, 2}, dtype, 1).Permute(std::vector{1, 3, 0, 2});
    const Tensor b = RandomTensor(context, {7, 2, 3, 2}, dtype, 2).Permute(std::vector{1, 3, 0, 2});
    const auto expected = Reference(Values(a), Values(b), 4, 5, 3, 7);
    EXPECT_LT(WorstRelative(Values(ops::MatMul(context, a, b)), expected), Tolerance(dtype));
    // A row repeated by stride 0.
    const Tensor row = RandomTensor(context, {1, 7}, dtype, 3).Expand({5, 7});
    const Tensor matrix = RandomTensor(context, {7, 3}, dtype, 4);
    EXPECT_LT(WorstRelative(Values(ops::MatMul(context, row, matrix)),
                            Reference(Values(row), Values(matrix), 1, 5, 3, 7)),
              Tolerance(dtype));
  }
}

TEST(MatMul, BatchDimsBroadcast) {
  ExecutionContext context;
  const Tensor a = RandomTensor(context, {2, 1, 3, 5}, DType::kF64, 1);
  const Tensor b = RandomTensor(context, {3, 5, 2}, DType::kF64, 2);
  const Tensor y = ops::MatMul(context, a, b);
  ASSERT_EQ(y.shape(), Dims({2, 3, 3, 2}));
  const auto expected =
      Reference(Values(a.Expand({2, 3, 3, 5})), Values(b.Expand({2, 3, 5, 2})), 6, 3, 2, 5);
  EXPECT_LT(WorstRelative(Values(y), expected), 1e-14);
}

TEST(MatMul, ManyRowsByOneMatrixIsTheProductOfTheFlattenedRowsBitForBit) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {7, 13, 24}, DType::kF32, 1);
  const Tensor w = RandomTensor(context, {40, 24}, DType::kF32, 2).Transpose(0, 1);
  const Tensor y = ops::MatMul(context, x, w);
  const Tensor flat = ops::MatMul(context, *x.TryView({91, 24}), w);
  EXPECT_EQ(Bits(y), Bits(flat));
  EXPECT_LT(WorstRelative(Values(y), Reference(Values(x), Values(w), 1, 91, 40, 24)), 2e-6);
  // Rows that do not merge: a gap after each batch.
  const Tensor narrowed = RandomTensor(context, {7, 14, 24}, DType::kF32, 3).Narrow(1, 0, 13);
  const auto expected = Reference(Values(narrowed), Values(w), 1, 91, 40, 24);
  EXPECT_LT(WorstRelative(Values(ops::MatMul(context, narrowed, w)), expected), 2e-6);
}

TEST(MatMul, IntoAnyMemoryOrderWithAndWithoutAccumulating) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const std::vector<int>& order :
         {std::vector{0, 1, 2}, std::vector{0, 2, 1}, std::vector{1, 2, 0}}) {
      for (const int64_t gap : {0, 2}) {
        const Tensor a = RandomTensor(context, {3, 11, 6}, dtype, 1),
                     b = RandomTensor(context, {3, 6, 13}, dtype, 2);
        const Tensor before = RandomTensor(context, {3, 11, 13}, dtype, 3);
        Tensor out = InMemoryOrder(context, before, order, gap);
        const int64_t version = out.storage()->version();
        ops::MatMulInto(context, a, b, /*accumulate=*/true, out);
        EXPECT_GT(out.storage()->version(), version);
        EXPECT_LT(WorstRelative(Values(out),
                                Reference(Values(a), Values(b), 3, 11, 13, 6, Values(before))),
                  Tolerance(dtype));
        ops::MatMulInto(context, a, b, /*accumulate=*/false, out);
        EXPECT_LT(WorstRelative(Values(out), Reference(Values(a), Values(b), 3, 11, 13, 6)),
                  Tolerance(dtype));
        out = InMemoryOrder(context, before, order,
                            gap);  // NaN in the gaps must not be read, nor overwritten.
        ops::MatMulInto(context, a, b, /*accumulate=*/true, out);
        EXPECT_LT(WorstRelative(Values(out),
                                Reference(Values(a), Values(b), 3, 11, 13, 6, Values(before))),
                  Tolerance(dtype));
      }
    }
  }
}

TEST(MatMul, OverwritesNaNUnlessItAccumulates) {
  ExecutionContext context;
  const Tensor a = RandomTensor(context, {3, 5}, DType::kF32, 1),
               b = RandomTensor(context, {5, 2}, DType::kF32, 2);
  Tensor out = MakeTensor(context, {3, 2}, DType::kF32, std::vector<double>(6, NAN));
  ops::MatMulInto(context, a, b, /*accumulate=*/false, out);
  EXPECT_LT(WorstRelative(Values(out), Reference(Values(a), Values(b), 1, 3, 2, 5)), 2e-6);
}

TEST(MatMul, NarrowOperandsGiveF32WithoutRounding) {
  ExecutionContext context;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor a = RandomTensor(context, {37, 2100}, dtype, 1),
                 b = RandomTensor(context, {2100, 41}, dtype, 2);
    const auto exact = Reference(Values(a), Values(b), 1, 37, 41, 2100);
    Tensor wide = ops::MatMul(context, a, b, DType::kF32);
    EXPECT_EQ(wide.dtype(), DType::kF32);
    EXPECT_LT(WorstRelative(Values(wide), exact), 2e-6);
    // In the narrow dtype it is the same sum, rounded once.
    const Tensor narrow = ops::MatMul(context, a, b);
    EXPECT_EQ(Bits(narrow), Bits(MakeTensor(context, {37, 41}, dtype, Values(wide))));
    const auto before = Values(wide);
    ops::MatMulInto(context, a, b, /*accumulate=*/true, wide);
    EXPECT_LT(WorstRelative(Values(wide), Reference(Values(a), Values(b), 1, 37, 41, 2100, before)),
              2e-6);
  }
}

TEST(MatMul, LargeProductsAreCutIntoTilesThatCoverThem) {
  ExecutionContext context;
  struct {
    int64_t m, n, k;
  } shapes[] = {{1031, 67, 521}, {67, 1031, 521}, {257, 263, 1087}, {4099, 33, 257}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [m, n, k] : shapes) {
      const Tensor a = RandomTensor(context, {m, k}, dtype, 1),
                   b = RandomTensor(context, {k, n}, dtype, 2);
      const Tensor y = ops::MatMul(context, a, b, DType::kF32);
      // Sampled: each 7th row.
      const auto va = Values(a), vb = Values(b), vy = Values(y);
      double worst = 0.0;
      for (int64_t i = 0; i < m; i += 7) {
        std::vector<double> sums(n, 0.0);
        for (int64_t l = 0; l < k; ++l) {
          for (int64_t j = 0; j < n; ++j) sums[j] += va[i * k + l] * vb[l * n + j];
        }
        for (int64_t j = 0; j < n; ++j) worst = std::max(worst, std::fabs(sums[j] - vy[i * n + j]));
      }
      EXPECT_LT(worst, 2e-4) << m << " " << n << " " << k;
    }
  }
}

TEST(MatMul, SameBitsForAnyNumberOfThreads) {
  struct {
    Dims a, b;
  } shapes[] = {{{1031, 257}, {257, 131}},
                {{61, 2053}, {2053, 257}},
                {{64, 33, 17}, {64, 17, 29}},
                {{5, 300, 140}, {140, 260}}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const auto& [shape_a, shape_b] : shapes) {
      std::string bits[3];
      for (const int threads : {1, 2, 3}) {
        ExecutionContext context(Device::Cpu(), threads);
        const Tensor a = RandomTensor(context, shape_a, dtype, 1),
                     b = RandomTensor(context, shape_b, dtype, 2);
        bits[threads - 1] = Bits(ops::MatMul(context, a, b));
      }
      EXPECT_EQ(bits[0], bits[1]);
      EXPECT_EQ(bits[0], bits[2]);
    }
  }
}

TEST(MatMul, EmptyExtents) {
  ExecutionContext context;
  const Tensor zero = ops::MatMul(context, RandomTensor(context, {3, 0}, DType::kF32, 1),
                                  RandomTensor(context, {0, 2}, DType::kF32, 1));
  EXPECT_EQ(Values(zero), std::vector<double>(6, 0.0)) << "an empty sum is zero";
  Tensor kept = MakeTensor(context, {2, 2}, DType::kBF16, {1, -2, 3, -4});
  ops::MatMulInto(context, RandomTensor(context, {2, 0}, DType::kBF16, 1),
                  RandomTensor(context, {0, 2}, DType::kBF16, 1),
                  /*accumulate=*/true, kept);
  EXPECT_EQ(Values(kept), (std::vector<double>{1, -2, 3, -4}));
  for (const Dims& shape : {Dims{0, 5}, Dims{2, 0, 5}, Dims{0, 3, 5}}) {
    const Tensor y = ops::MatMul(context, RandomTensor(context, shape, DType::kF64, 1),
                                 RandomTensor(context, {5, 2}, DType::kF64, 1));
    EXPECT_EQ(y.NumElements(), 0);
    EXPECT_EQ(y.dim(-1), 2);
  }
  EXPECT_EQ(ops::MatMul(context, RandomTensor(context, {3, 5}, DType::kF32, 1),
                        RandomTensor(context, {5, 0}, DType::kF32, 1))
                .shape(),
            Dims({3, 0}));
}

TEST(MatMul, RefusesAResultThatOverlapsAnOperandOrRepeatsElements) {
  ExecutionContext context;
  Tensor memory = RandomTensor(context, {7, 5}, DType::kF32, 1);
  const Tensor a = memory.Narrow(0, 0, 5), b = RandomTensor(context, {5, 5}, DType::kF32, 2);
  Tensor shifted = memory.Narrow(0, 2, 5), same = a;
  const auto message = [&](const Tensor& x, const Tensor& y, Tensor& out) {
    return std::string(Catch([&] { ops::MatMulInto(context, x, y, false, out); }).message());
  };
  EXPECT_EQ(message(a, b, shifted), "matmul: the result f32[5,5] overlaps an operand, f32[5,5]");
  EXPECT_EQ(message(b, a, same), "matmul: the result f32[5,5] overlaps an operand, f32[5,5]");
  Tensor expanded = RandomTensor(context, {1, 5}, DType::kF32, 3).Expand({5, 5});
  EXPECT_NE(message(a, b, expanded), "");
  Tensor row = memory.Narrow(0, 6, 1);  // Of the same storage, but apart.
  EXPECT_EQ(message(a.Narrow(0, 0, 1), b, row), "");
}

TEST(MatMul, InfersOnMetaWithoutElements) {
  ExecutionContext context;
  const Tensor y = ops::MatMul(context, Tensor::Meta({4, 1, 1 << 20, 1 << 20}, DType::kBF16),
                               Tensor::Meta({3, 1 << 20, 7}, DType::kBF16), DType::kF32);
  EXPECT_TRUE(y.device().IsMeta());
  EXPECT_EQ(y.ToString(), "f32[4,3,1048576,7]");
}

TEST(MatMul, ErrorsNameTheOperands) {
  ExecutionContext context;
  const Tensor a = RandomTensor(context, {3, 5}, DType::kF32, 1);
  const auto message = [&](const Tensor& x, const Tensor& y, std::optional<DType> dtype = {}) {
    return std::string(Catch([&] { ops::MatMul(context, x, y, dtype); }).message());
  };
  EXPECT_EQ(message(a, RandomTensor(context, {4, 5}, DType::kF32, 1)),
            "matmul: f32[3,5] has 5 columns, but f32[4,5] has 4 rows");
  EXPECT_EQ(message(a, RandomTensor(context, {5, 2}, DType::kF64, 1)),
            "matmul: operands of different dtypes: f32[3,5], f64[5,2]");
  EXPECT_EQ(message(a, RandomTensor(context, {5}, DType::kF32, 1)),
            "matmul: operands need at least two dims: f32[3,5], f32[5]");
  EXPECT_NE(message(RandomTensor(context, {2, 2}, DType::kI32, 1),
                    RandomTensor(context, {2, 2}, DType::kI32, 1)),
            "");
  EXPECT_EQ(message(a, RandomTensor(context, {5, 2}, DType::kF32, 1), DType::kBF16),
            "matmul: operands of f32 do not give a result of bf16");
  EXPECT_NE(message(a, Tensor::Meta({5, 2}, DType::kF32)), "");
  EXPECT_NE(message(RandomTensor(context, {2, 3, 5}, DType::kF32, 1),
                    RandomTensor(context, {3, 5, 2}, DType::kF32, 1)),
            "");
}

}  // namespace
}  // namespace shardmesh
