// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::Dot;
using testing::FiniteDifferences;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

double Tolerance(DType dtype) {
  return dtype == DType::kF64   ? 1e-14
         : dtype == DType::kF32 ? 2e-6
         : dtype == DType::kF16 ? 1e-3
                                : 8e-3;
}

// ---- references, in double or wider, over [rows, n] ---------------------------------------------

std::vector<double> SoftmaxReference(const std::vector<double>& x, int64_t n, bool log) {
  std::vector<double> y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += n) {
    double max = -kInfinity, sum = 0.0;
    for (int64_t i = 0; i < n; ++i) max = std::max(max, x[begin + i]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x[begin + i] - max);
    for (int64_t i = 0; i < n; ++i) {
      const double shifted = x[begin + i] - max;
      y[begin + i] = log ? shifted - std::log(sum) : std::exp(shifted) / sum;
    }
  }
  return y;
}

// Of elements [begin, begin + n) from their mean, or from 0.
std::vector<long double> Deviations(const std::vector<double>& x, size_t begin, size_t n,
                                    bool from_mean) {
  std::vector<long double> result(x.begin() + begin, x.begin() + begin + n);
  if (!from_mean) return result;
  long double mean = 0;  // Of the differences to the first, which are exact.
  for (long double& value : result) mean += (value -= x[begin]) / n;
  for (long double& value : result) value -= mean;
  return result;
}

struct NormReference {
  std::vector<double> y, mean, inv;
};

// RMSNorm, or with `centered` LayerNorm.
NormReference Norm(const std::vector<double>& x, const std::vector<double>& w,
                   const std::vector<double>& b, double eps, bool centered) {
  const size_t n = w.size();
  NormReference result;
  for (size_t begin = 0; begin < x.size(); begin += n) {
    const std::vector<long double> deviations = Deviations(x, begin, n, centered);
    long double square = 0;
    for (const long double d : deviations) square += d * d / n;
    const long double inv = 1 / std::sqrt(square + eps);
    for (size_t i = 0; i < n; ++i) {
      result.y.push_back(
          static_cast<double>(deviations[i] * inv * w[i] + (b.empty() ? 0.0 : b[i])));
    }
    result.mean.push_back(static_cast<double>(x[begin] - deviations[0]));
    result.inv.push_back(static_cast<double>(inv));
  }
  return result;
}

// ---- softmax ------------------------------------------------------------------------------------

TEST(Softmax, EveryDTypeAndLengthOfRow) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const int64_t n : {1, 2, 7, 8, 31, 32, 33, 67, 257}) {
      std::vector<double> values = testing::RandomValues(5 * n, n);
      for (double& value : values) value *= 9.0;
      const Tensor x = MakeTensor(context, {5, n}, dtype, values);
      for (const bool log : {false, true}) {
        const Tensor y = ops::Softmax(context, x, -1, log);
        EXPECT_LT(WorstRelative(Values(y), SoftmaxReference(Values(x), n, log)), Tolerance(dtype))
            << dtype << " n " << n << " log " << log;
      }
    }
  }
}

TEST(Softmax, AnyDimOfAnyMemoryOrder) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5, 7}, DType::kF64, 1);
  for (const int dim : {0, 1, 2, -3}) {
    const Tensor last = x.Transpose(dim, -1);
    const auto expected = SoftmaxReference(Values(last), last.dim(-1), false);
    for (const auto& order : {std::vector{0, 1, 2}, std::vector{2, 0, 1}, std::vector{1, 2, 0}}) {
      const Tensor y = ops::Softmax(context, InMemoryOrder(context, x, order, 2), dim);
      EXPECT_EQ(y.shape(), x.shape());
      EXPECT_LT(WorstRelative(Values(y.Transpose(dim, -1)), expected), 1e-14) << dim;
    }
  }
}

TEST(Softmax, LargeAndInfiniteValues) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x =
        MakeTensor(context, {2, 3}, dtype, {1000.0, 999.0, -kInfinity, -1e30, -1e30, -1e30});
    const double e = std::exp(-1.0);
    EXPECT_LT(WorstRelative(Values(ops::Softmax(context, x, 1)),
                            {1 / (1 + e), e / (1 + e), 0.0, 1.0 / 3, 1.0 / 3, 1.0 / 3}),
              1e-6);
    const Tensor nan = MakeTensor(context, {3}, dtype, {0.0, NAN, 1.0});
    for (const double value : Values(ops::Softmax(context, nan, 0))) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Softmax, BackwardIsTheGradient) {
  ExecutionContext context;
  for (const bool log : {false, true}) {
    for (const int dim : {0, 1}) {
      Tensor x = RandomTensor(context, {5, 7}, DType::kF64, 1);
      const Tensor grad = RandomTensor(context, {5, 7}, DType::kF64, 2);
      const auto expected = FiniteDifferences(
          x, [&] { return Dot(Values(grad), Values(ops::Softmax(context, x, dim, log))); });
      const Tensor y = ops::Softmax(context, x, dim, log);
      EXPECT_LT(WorstRelative(Values(ops::SoftmaxBackward(context, grad, y, dim, log)), expected),
                1e-8);
      const Tensor strided =
          ops::SoftmaxBackward(context, InMemoryOrder(context, grad, {1, 0}, 3), y, dim, log);
      EXPECT_LT(WorstRelative(Values(strided), expected), 1e-8);
    }
  }
}

// ---- norms --------------------------------------------------------------------------------------

TEST(RmsNorm, EveryDTypeAndLengthOfRow) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const int64_t n : {1, 3, 8, 31, 64, 131}) {
      const Tensor x = RandomTensor(context, {2, 3, n}, dtype, 1),
                   w = RandomTensor(context, {n}, dtype, 2);
      const auto expected = Norm(Values(x), Values(w), {}, 1e-3, /*centered=*/false);
      for (const auto& order : {std::vector{0, 1, 2}, std::vector{2, 1, 0}}) {
        const auto result = ops::RmsNorm(context, InMemoryOrder(context, x, order, 1), w, 1e-3);
        EXPECT_EQ(result.y.dtype(), dtype);
        EXPECT_EQ(result.inv_std.dtype(), dtype == DType::kF64 ? DType::kF64 : DType::kF32);
        EXPECT_EQ(result.inv_std.shape(), Dims({2, 3}));
        EXPECT_LT(WorstRelative(Values(result.y), expected.y), Tolerance(dtype))
            << dtype << " n " << n;
        EXPECT_LT(WorstRelative(Values(result.inv_std), expected.inv),
                  dtype == DType::kF64 ? 1e-14 : 2e-6);
      }
    }
  }
}

TEST(LayerNorm, EveryDTypeWithAndWithoutBias) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const int64_t n : {1, 3, 8, 31, 64, 131}) {
      const Tensor x = RandomTensor(context, {2, 3, n}, dtype, 1),
                   w = RandomTensor(context, {n}, dtype, 2);
      for (const Tensor& b : {RandomTensor(context, {n}, dtype, 3), Tensor()}) {
        const auto expected = Norm(Values(x), Values(w), b ? Values(b) : std::vector<double>(),
                                   1e-3, /*centered=*/true);
        const auto result =
            ops::LayerNorm(context, InMemoryOrder(context, x, {1, 2, 0}, 1), w, b, 1e-3);
        EXPECT_LT(WorstRelative(Values(result.y), expected.y), 2 * Tolerance(dtype))
            << dtype << " n " << n;
        EXPECT_LT(WorstRelative(Values(result.mean), expected.mean),
                  dtype == DType::kF64 ? 1e-14 : 2e-6);
        EXPECT_LT(WorstRelative(Values(result.inv_std), expected.inv),
                  dtype == DType::kF64 ? 1e-14 : 2e-6);
      }
    }
  }
}

// The mean of squares would lose everything: x is far from zero.
TEST(LayerNorm, KeepsDigitsOfRowsFarFromZero) {
  ExecutionContext context;
  const Tensor x = MakeTensor(context, {1, 4}, DType::kF32, {10001, 10002, 10003, 10004});
  const Tensor w = MakeTensor(context, {4}, DType::kF32, {1, 1, 1, 1});
  const auto expected = Norm(Values(x), Values(w), {}, 1e-5, /*centered=*/true);
  EXPECT_LT(WorstRelative(Values(ops::LayerNorm(context, x, w, Tensor(), 1e-5).y), expected.y),
            1e-6);
}

TEST(RmsNorm, BackwardIsTheGradient) {
  ExecutionContext context;
  Tensor x = RandomTensor(context, {3, 5, 7}, DType::kF64, 1),
         w = RandomTensor(context, {7}, DType::kF64, 2);
  const Tensor grad = RandomTensor(context, {3, 5, 7}, DType::kF64, 3);
  const auto loss = [&] { return Dot(Values(grad), Values(ops::RmsNorm(context, x, w, 0.01).y)); };
  const auto expected_dx = FiniteDifferences(x, loss), expected_dw = FiniteDifferences(w, loss);
  const auto inv = ops::RmsNorm(context, x, w, 0.01).inv_std;
  Tensor dx = InMemoryOrder(context, x, {2, 0, 1}, 1), dw = InMemoryOrder(context, w, {0});
  ops::RmsNormBackward(context, InMemoryOrder(context, grad, {1, 0, 2}, 2), x, w, inv, dx,
                       /*accumulate_dw=*/false, dw);
  EXPECT_LT(WorstRelative(Values(dx), expected_dx), 1e-8);
  EXPECT_LT(WorstRelative(Values(dw), expected_dw), 1e-8);
  // A second time, adding; and each gradient alone.
  Tensor none;
  ops::RmsNormBackward(context, grad, x, w, inv, none, /*accumulate_dw=*/true, dw);
  auto doubled = expected_dw;
  for (double& value : doubled) value *= 2.0;
  EXPECT_LT(WorstRelative(Values(dw), doubled), 1e-8);
  Tensor alone = Tensor::Empty(context, x.shape(), DType::kF64);
  ops::RmsNormBackward(context, grad, x, w, inv, alone, /*accumulate_dw=*/false, none);
  EXPECT_EQ(Bits(alone), Bits(dx));
}

TEST(LayerNorm, BackwardIsTheGradient) {
  ExecutionContext context;
  Tensor x = RandomTensor(context, {3, 5, 7}, DType::kF64, 1),
         w = RandomTensor(context, {7}, DType::kF64, 2);
  Tensor b = RandomTensor(context, {7}, DType::kF64, 3);
  const Tensor grad = RandomTensor(context, {3, 5, 7}, DType::kF64, 4);
  const auto loss = [&] {
    return Dot(Values(grad), Values(ops::LayerNorm(context, x, w, b, 0.01).y));
  };
  const auto expected_dx = FiniteDifferences(x, loss), expected_dw = FiniteDifferences(w, loss),
             expected_db = FiniteDifferences(b, loss);
  const auto forward = ops::LayerNorm(context, x, w, b, 0.01);
  Tensor dx = Tensor::Empty(context, x.shape(), DType::kF64),
         dw = MakeTensor(context, {7}, DType::kF64, std::vector<double>(7, 1.0));
  Tensor db = MakeTensor(context, {7}, DType::kF64, std::vector<double>(7, -1.0));
  ops::LayerNormBackward(context, grad, x, w, forward.mean, forward.inv_std, dx,
                         /*accumulate=*/true, dw, db);
  EXPECT_LT(WorstRelative(Values(dx), expected_dx), 1e-8);
  auto plus_one = expected_dw, minus_one = expected_db;
  for (double& value : plus_one) value += 1.0;
  for (double& value : minus_one) value -= 1.0;
  EXPECT_LT(WorstRelative(Values(dw), plus_one), 1e-8);
  EXPECT_LT(WorstRelative(Values(db), minus_one), 1e-8);
  ops::LayerNormBackward(context, grad, x, w, forward.mean, forward.inv_std, dx,
                         /*accumulate=*/false, dw, db);
  EXPECT_LT(WorstRelative(Values(dw), expected_dw), 1e-8);
  EXPECT_LT(WorstRelative(Values(db), expected_db), 1e-8);
  Tensor none, dw_alone = Tensor::Empty(context, {7}, DType::kF64);
  ops::LayerNormBackward(context, grad, x, w, forward.mean, forward.inv_std, none,
                         /*accumulate=*/false, dw_alone, none);
  EXPECT_EQ(Bits(dw_alone), Bits(dw));
}

// bf16 adds up in f32: 2^-9 would be lost beside 1 in bf16.
TEST(Norms, GradientsOfNarrowWeightsAddUpInF32) {
  ExecutionContext context;
  const int64_t rows = 513;
  std::vector<double> g(rows, 0x1p-9);
  g[0] = 1.0;
  const Tensor x = MakeTensor(context, {rows, 1}, DType::kBF16, std::vector<double>(rows, 1.0));
  const Tensor w = MakeTensor(context, {1}, DType::kBF16, {1.0});
  const Tensor grad = MakeTensor(context, {rows, 1}, DType::kBF16, g);
  const Tensor inv = MakeTensor(context, {rows}, DType::kF32, std::vector<double>(rows, 1.0));
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Tensor none, dw = Tensor::Empty(context, {1}, dtype);
    ops::RmsNormBackward(context, grad, x, w, inv, none, /*accumulate_dw=*/false, dw);
    EXPECT_EQ(Values(dw), std::vector<double>{2.0});
  }
}

// Rows of `n` values (i * 5 % n - 2) * step + offset, rounded to `dtype`.
Tensor FarRows(ExecutionContext& context, DType dtype, int64_t n, double offset, double step) {
  std::vector<double> values;
  for (int64_t i = 0; i < 2 * n; ++i) values.push_back(((i * 5 + i / n) % n - 2.0) * step + offset);
  return MakeTensor(context, {2, n}, dtype, values);
}

// d sum(grad * norm(x)) / dx, in long double by the formula.
std::vector<double> NormGradient(const Tensor& x_tensor, const Tensor& w_tensor,
                                 const Tensor& grad_tensor, double eps, bool centered) {
  const auto x = Values(x_tensor), w = Values(w_tensor), grad = Values(grad_tensor);
  const size_t n = w.size();
  std::vector<double> dx;
  for (size_t begin = 0; begin < x.size(); begin += n) {
    const std::vector<long double> deviations = Deviations(x, begin, n, centered);
    long double square = 0, mean_gw = 0, slope = 0;
    for (const long double d : deviations) square += d * d / n;
    const long double inv = 1 / std::sqrt(square + eps);
    for (size_t i = 0; i < n; ++i) {
      const long double gw = static_cast<long double>(grad[begin + i]) * w[i] / n;
      if (centered) mean_gw += gw;
      slope += gw * (deviations[i] * inv);
    }
    for (size_t i = 0; i < n; ++i) {
      const long double h = deviations[i] * inv;
      dx.push_back(static_cast<double>(
          inv * (static_cast<long double>(grad[begin + i]) * w[i] - mean_gw - h * slope)));
    }
  }
  return dx;
}

struct FarCase {
  double offset, step, eps;
};

void ExpectNormsOf(DType dtype, const FarCase& c, bool centered) {
  ExecutionContext context;
  for (const int64_t n : {4, 7, 67}) {
    const Tensor x = FarRows(context, dtype, n, c.offset, c.step);
    const Tensor w = RandomTensor(context, {n}, dtype, 2),
                 grad = RandomTensor(context, {2, n}, dtype, 3);
    const auto result = centered ? ops::LayerNorm(context, x, w, Tensor(), c.eps)
                                 : ops::RmsNorm(context, x, w, c.eps);
    const double tolerance = dtype == DType::kF32 ? 4e-6 : 1e-13;
    // f32 values are exact in the reference; f64 ones stay where its squares do not overflow.
    const auto expected = Norm(Values(x), Values(w), {}, c.eps, centered).y;
    const auto place = [&] {
      return std::string(Name(dtype)) + (centered ? " layer " : " rms ") +
             std::to_string(c.offset) + " + " + std::to_string(c.step) + " n " + std::to_string(n);
    };
    EXPECT_LT(WorstRelative(Values(result.y), expected), tolerance) << place();
    Tensor dx = Tensor::Empty(context, x.shape(), dtype), none;
    Tensor dw = Tensor::Empty(context, w.shape(), dtype);
    if (centered) {
      ops::LayerNormBackward(context, grad, x, w, result.mean, result.inv_std, dx, false, dw, none);
    } else {
      ops::RmsNormBackward(context, grad, x, w, result.inv_std, dx, false, dw);
    }
    EXPECT_LT(WorstRelative(Values(dx), NormGradient(x, w, grad, c.eps, centered)), 4 * tolerance)
        << place();
    std::vector<double> expected_dw(n, 0.0);
    for (int64_t i = 0; i < 2 * n; ++i)
      expected_dw[i % n] += Values(grad)[i] * (expected[i] / Values(w)[i % n]);
    EXPECT_LT(WorstRelative(Values(dw), expected_dw), 4 * tolerance) << place();
  }
}

// Rows far from 0 came out 6 % wrong, rows of 1e20 as zeros, and rows of 1e-30 without eps as inf.
TEST(Norms, KeepDigitsOfRowsFarFromZeroAndOfAnySize) {
  for (const FarCase& c : {FarCase{1e4, 1e-3, 1e-12},
                           {1e5, 0.25, 1e-5},
                           {-1e8, 8, 1e-5},
                           {1e8, 64, 1e-5},
                           {0, 1e20, 1e-5},
                           {1e20, 1e18, 1e-5},
                           {0, 1e-20, 0},
                           {0, 1e-30, 0},
                           {1e-30, 1e-31, 1e-5},
                           {3e36, 1e36, 1e-5},
                           {0, 1e-12, 1e-30}}) {
    ExpectNormsOf(DType::kF32, c, /*centered=*/true);
    ExpectNormsOf(DType::kF32, c, /*centered=*/false);
  }
  for (const FarCase& c : {FarCase{1e8, 1e-3, 1e-12}, {0, 1e150, 1e-5}, {0, 1e-140, 0}}) {
    ExpectNormsOf(DType::kF64, c, /*centered=*/true);
    ExpectNormsOf(DType::kF64, c, /*centered=*/false);
  }
}

// Beyond what squares of doubles hold, by what a row of another size gives.
TEST(Norms, OfF64RowsBeyondTheRangeOfSquares) {
  ExecutionContext context;
  const Tensor w = RandomTensor(context, {7}, DType::kF64, 2);
  const Tensor near = FarRows(context, DType::kF64, 7, 0.5, 1);
  for (const int exponent : {1000, -1000}) {
    std::vector<double> scaled = Values(near);
    for (double& value : scaled) value = std::ldexp(value, exponent);
    const Tensor far = MakeTensor(context, {2, 7}, DType::kF64, scaled);
    EXPECT_LT(WorstRelative(Values(ops::RmsNorm(context, far, w, 0).y),
                            Values(ops::RmsNorm(context, near, w, 0).y)),
              1e-15);
    EXPECT_LT(WorstRelative(Values(ops::LayerNorm(context, far, w, w, 0).y),
                            Values(ops::LayerNorm(context, near, w, w, 0).y)),
              1e-15);
    // Where eps counts, a tiny row is x / sqrt(eps).
    if (exponent < 0) {
      std::vector<double> expected;
      for (int i = 0; i < 14; ++i) expected.push_back(scaled[i] / 0.5 * Values(w)[i % 7]);
      EXPECT_LT(WorstRelative(Values(ops::RmsNorm(context, far, w, 0.25).y), expected), 1e-15);
    }
  }
  const Tensor zeros = MakeTensor(context, {1, 7}, DType::kF64, std::vector<double>(7, 0.0));
  EXPECT_EQ(Values(ops::RmsNorm(context, zeros, w, 1e-6).y), std::vector<double>(7, 0.0));
  EXPECT_EQ(Values(ops::LayerNorm(context, zeros, w, w, 1e-6).y), Values(w));
}

// The gradient of softmax does not change if all of its upstream gradient moves.
TEST(Softmax, KeepsDigitsOfValuesAndGradientsFarFromZero) {
  ExecutionContext context;
  const int64_t n = 7;
  for (const double offset : {1e5, -1e8}) {
    const double step = offset > 0 ? 0.25 : 8;
    const Tensor x = FarRows(context, DType::kF32, n, offset, step),
                 grad = FarRows(context, DType::kF32, n, -offset, step);
    for (const bool log : {false, true}) {
      const Tensor y = ops::Softmax(context, x, -1, log);
      EXPECT_LT(WorstRelative(Values(y), SoftmaxReference(Values(x), n, log)), 1e-6);
    }
    const Tensor y = ops::Softmax(context, x, -1);
    const auto ys = SoftmaxReference(Values(x), n, false), gs = Values(grad);
    std::vector<double> expected;
    for (int64_t row = 0; row < 2; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += ys[row * n + i] * (gs[row * n + i] + offset);
      for (int64_t i = 0; i < n; ++i)
        expected.push_back(ys[row * n + i] * (gs[row * n + i] + offset - sum));
    }
    EXPECT_LT(WorstRelative(Values(ops::SoftmaxBackward(context, grad, y, -1)), expected), 4e-6);
  }
}

TEST(Rows, NarrowDTypesAreF32RoundedOnce) {
  ExecutionContext context;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor x = RandomTensor(context, {5, 37}, dtype, 1),
                 w = RandomTensor(context, {37}, dtype, 2);
    const Tensor wide_x = MakeTensor(context, {5, 37}, DType::kF32, Values(x));
    const Tensor wide_w = MakeTensor(context, {37}, DType::kF32, Values(w));
    const auto rounded = [&](const Tensor& y) {
      return Bits(MakeTensor(context, y.shape(), dtype, Values(y)));
    };
    EXPECT_EQ(Bits(ops::Softmax(context, x, -1)), rounded(ops::Softmax(context, wide_x, -1)));
    EXPECT_EQ(Bits(ops::RmsNorm(context, x, w, 1e-6).y),
              rounded(ops::RmsNorm(context, wide_x, wide_w, 1e-6).y));
    EXPECT_EQ(Bits(ops::LayerNorm(context, x, w, w, 1e-6).y),
              rounded(ops::LayerNorm(context, wide_x, wide_w, wide_w, 1e-6).y));
  }
}

TEST(Rows, SameBitsForAnyNumberOfThreadsAndAnyMemoryOrder) {
  std::vector<std::string> bits;
  for (const int threads : {1, 2, 3}) {
    for (const bool strided : {false, true}) {
      ExecutionContext context(Device::Cpu(), threads);
      Tensor x = RandomTensor(context, {1031, 67}, DType::kF32, 1),
             grad = RandomTensor(context, {1031, 67}, DType::kF32, 2);
      const Tensor w = RandomTensor(context, {67}, DType::kF32, 3);
      if (strided)
        x = InMemoryOrder(context, x, {1, 0}, 1), grad = InMemoryOrder(context, grad, {1, 0}, 2);
      Tensor dx = Tensor::Empty(context, x.shape(), DType::kF32),
             dw = Tensor::Empty(context, {67}, DType::kF32);
      Tensor db = Tensor::Empty(context, {67}, DType::kF32);
      const Tensor y = ops::Softmax(context, x, -1);
      std::string all = Bits(y) + Bits(ops::SoftmaxBackward(context, grad, y, -1));
      const auto rms = ops::RmsNorm(context, x, w, 1e-6);
      ops::RmsNormBackward(context, grad, x, w, rms.inv_std, dx, false, dw);
      all += Bits(rms.y) + Bits(dx) + Bits(dw);
      const auto layer = ops::LayerNorm(context, x, w, w, 1e-6);
      ops::LayerNormBackward(context, grad, x, w, layer.mean, layer.inv_std, dx, false, dw, db);
      bits.push_back(all + Bits(layer.y) + Bits(dx) + Bits(dw) + Bits(db));
    }
  }
  for (const std::string& other : bits) EXPECT_TRUE(other == bits[0]);
}

// Each buffer is a row in f32, where rows cannot be used as they are, of one tile at a time.
TEST(Rows, WorkingMemoryIsCountedAndGivenBack) {
  ExecutionContext context;
  const auto peak_of = [&](const std::function<void()>& kernel) {
    context.allocator()->ResetPeaks();
    kernel();
    const MemoryStats stats = context.allocator()->stats(MemoryCategory::kScratch);
    EXPECT_EQ(stats.bytes, 0);
    return stats.peak_bytes;
  };
  const int64_t n = 30011;
  const Tensor narrow = RandomTensor(context, {3, n}, DType::kBF16, 1),
               wide = RandomTensor(context, {3, n}, DType::kF32, 1);
  EXPECT_EQ(peak_of([&] { ops::Softmax(context, wide, -1); }), 0);
  EXPECT_EQ(peak_of([&] { ops::Softmax(context, narrow, -1); }), 2 * n * 4);
  const Tensor y = ops::Softmax(context, narrow, -1);
  EXPECT_EQ(peak_of([&] { ops::SoftmaxBackward(context, narrow, y, -1); }), 3 * n * 4);
  const Tensor w = RandomTensor(context, {n}, DType::kBF16, 2);
  EXPECT_EQ(peak_of([&] { ops::RmsNorm(context, narrow, w, 1e-6); }), 3 * n * 4);
}

TEST(Rows, EmptyTensors) {
  ExecutionContext context;
  const Tensor w = RandomTensor(context, {5}, DType::kF32, 1);
  const Tensor x = Tensor::Empty(context, {3, 0, 5}, DType::kF32);
  EXPECT_EQ(ops::Softmax(context, x, -1).shape(), x.shape());
  EXPECT_EQ(ops::Softmax(context, x, 1).shape(), x.shape());
  const auto result = ops::RmsNorm(context, x, w, 1e-6);
  EXPECT_EQ(result.inv_std.shape(), Dims({3, 0}));
  Tensor dx = Tensor::Empty(context, x.shape(), DType::kF32),
         dw = RandomTensor(context, {5}, DType::kF32, 2);
  const auto before = Values(dw);
  ops::RmsNormBackward(context, x, x, w, result.inv_std, dx, /*accumulate_dw=*/true, dw);
  EXPECT_EQ(Values(dw), before);
  ops::RmsNormBackward(context, x, x, w, result.inv_std, dx, /*accumulate_dw=*/false, dw);
  EXPECT_EQ(Values(dw), std::vector<double>(5, 0.0)) << "the sum over no rows is zero";
  const auto layer = ops::LayerNorm(context, x, w, w, 1e-6);
  Tensor db = RandomTensor(context, {5}, DType::kF32, 2);
  ops::LayerNormBackward(context, x, x, w, layer.mean, layer.inv_std, dx, /*accumulate=*/false, dw,
                         db);
  EXPECT_EQ(Values(db), std::vector<double>(5, 0.0));
}

TEST(Rows, ErrorsNameTheOp) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 1);
  const auto message = [](auto fn) { return std::string(Catch(fn).message()); };
  EXPECT_EQ(message([&] { ops::Softmax(context, x, 2); }),
            "softmax: dim 2 is out of range for a tensor of 2 dims");
  EXPECT_EQ(
      message([&] { ops::Softmax(context, RandomTensor(context, {3}, DType::kI64, 1), 0, true); }),
      "log_softmax: needs a floating-point dtype, got i64");
  EXPECT_EQ(
      message([&] { ops::RmsNorm(context, x, RandomTensor(context, {3}, DType::kF32, 1), 1e-6); }),
      "rms_norm: the weight must have the shape [5], got f32[3]");
  EXPECT_EQ(
      message([&] { ops::RmsNorm(context, x, RandomTensor(context, {5}, DType::kBF16, 1), 1e-6); }),
      "rms_norm: operands of different dtypes: f32[3,5], bf16[5]");
  EXPECT_EQ(message([&] { ops::LayerNorm(context, x, Tensor(), Tensor(), 1e-6); }),
            "layer_norm: an operand is missing");
  EXPECT_EQ(
      message([&] { ops::LayerNorm(context, x, Tensor::Meta({5}, DType::kF32), Tensor(), 1e-6); }),
      "layer_norm: operands on different devices: f32[3,5] on cpu, f32[5] on meta");
  Tensor dx, dw = RandomTensor(context, {5}, DType::kF64, 1);
  EXPECT_EQ(message([&] {
              ops::RmsNormBackward(context, x, x, *x.Narrow(0, 0, 1).TryView({5}),
                                   RandomTensor(context, {3}, DType::kF32, 1), dx, false, dw);
            }),
            "rms_norm backward: dw must have the dtype f32, got f64[5]");
  EXPECT_TRUE(ops::RmsNorm(context, Tensor::Meta({3, 5}, DType::kBF16),
                           Tensor::Meta({5}, DType::kBF16), 1e-6)
                  .inv_std.device()
                  .IsMeta());
}

}  // namespace
}  // namespace shardmesh
