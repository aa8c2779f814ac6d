// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

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

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");
constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                          DType::kI32, DType::kI64, DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

double Identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return 0;
    case ReduceOp::kMin:
      return kInf;
    case ReduceOp::kMax:
      return -kInf;
    case ReduceOp::kProduct:
      return 1;
  }
  return kNan;
}

double Combine(ReduceOp op, double a, double b) {
  const bool is_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMin:
      return is_nan ? kNan : std::min(a, b);
    case ReduceOp::kMax:
      return is_nan ? kNan : std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return kNan;
}

// In double, one after the other.
std::vector<double> Reference(ReduceOp op, const Tensor& x, uint32_t mask) {
  Dims out_shape = x.shape();
  for (int dim = 0; dim < x.num_dims(); ++dim) {
    if (mask >> dim & 1) out_shape[dim] = 1;
  }
  const Dims strides = ContiguousStrides(out_shape);
  std::vector<double> out(out_shape.NumElements(), Identity(op));
  const std::vector<double> values = Values(x);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), to = 0;
    for (int dim = x.num_dims() - 1; dim >= 0; --dim) {
      if (!(mask >> dim & 1)) to += rest % x.dim(dim) * strides[dim];
      rest /= x.dim(dim);
    }
    out[to] = Combine(op, out[to], values[i]);
  }
  return out;
}

std::vector<int> DimsOf(uint32_t mask) {
  std::vector<int> dims;
  for (int dim = 0; dim < 32; ++dim) {
    if (mask >> dim & 1) dims.push_back(dim);
  }
  return dims;
}

Tensor Sum(ExecutionContext& context, const Tensor& x, const std::vector<int>& dims = {}) {
  return ops::Reduce(context, ReduceOp::kSum, x, dims, /*keepdim=*/false);
}

std::string ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(Reduce, EveryOpDTypeAndSetOfDims) {
  ExecutionContext context;
  for (const Dims& shape : {Dims{3, 5, 7}, Dims{2, 1, 37}, Dims{41, 3, 2}}) {
    for (const DType dtype : kAll) {
      for (const ReduceOp op : kOps) {
        Tensor x = RandomTensor(context, shape, dtype, 1);
        if (!IsFloating(dtype) && dtype != DType::kBool) {  // Random ones are all 0.
          const Tensor numbers = RandomTensor(context, shape, DType::kF64, 1);
          x = ops::Cast(context, ops::Binary(context, BinaryOp::kMul, numbers, 4.0), dtype);
        }
        if (op == ReduceOp::kProduct && IsFloating(dtype)) {  // Near 1 and -1: no underflow.
          const Tensor small = ops::Binary(context, BinaryOp::kMul, x, 0.02);
          x = ops::Where(context, ops::Compare(context, CompareOp::kLess, x, 0.0),
                         ops::Binary(context, BinaryOp::kSub, small, 1.0),
                         ops::Binary(context, BinaryOp::kAdd, small, 1.0));
        }
        for (uint32_t mask = 1; mask < 8; ++mask) {
          const std::vector<double> expected = Reference(op, x, mask);
          const Tensor out = ops::Reduce(context, op, x, DimsOf(mask), /*keepdim=*/true);
          const bool grows = op == ReduceOp::kSum || op == ReduceOp::kProduct;
          EXPECT_EQ(out.dtype(), grows && !IsFloating(dtype) ? DType::kI64 : dtype);
          const double tolerance = dtype == DType::kF64   ? 1e-14
                                   : dtype == DType::kF32 ? 3e-7
                                   : IsFloating(dtype)    ? 5e-3
                                                          : 0;
          EXPECT_LE(testing::WorstRelative(Values(out), expected), tolerance)
              << Name(op) << " " << dtype << shape << " dims " << mask;
        }
      }
    }
  }
}

TEST(Reduce, ShapesWithAndWithoutKeepdim) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5, 7}, DType::kF32, 2);
  const int dims[] = {-1, 0};
  EXPECT_EQ(ops::Reduce(context, ReduceOp::kSum, x, dims, true).shape(), (Dims{1, 5, 1}));
  EXPECT_EQ(ops::Reduce(context, ReduceOp::kSum, x, dims, false).shape(), (Dims{5}));
  EXPECT_EQ(ops::Reduce(context, ReduceOp::kSum, x, {}, true).shape(), (Dims{1, 1, 1}));
  EXPECT_EQ(Sum(context, x).shape(), Dims{});
  const Tensor scalar = MakeTensor(context, {}, DType::kF32, {2.5});
  EXPECT_EQ(Sum(context, scalar).Item(), 2.5);
  // A dim of one element is reduced like any other.
  EXPECT_EQ(Sum(context, x.Narrow(1, 2, 1), {1}).shape(), (Dims{3, 7}));
}

TEST(Reduce, MistakesAreNamed) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 3);
  EXPECT_EQ(ErrorOf([&] { Sum(context, x, {2}); }),
            "sum: dim 2 is out of range for a tensor of 2 dims");
  EXPECT_EQ(ErrorOf([&] { Sum(context, x, {1, -1}); }), "sum: dim -1 of f32[3,5] is given twice");
}

TEST(Reduce, NothingGivesTheIdentity) {
  ExecutionContext context;
  for (const DType dtype : kAll) {
    const Tensor x = Tensor::Empty(context, {3, 0}, dtype);
    for (const ReduceOp op : kOps) {
      const int last[] = {1};
      const Tensor rows = ops::Reduce(context, op, x, last, false);
      EXPECT_EQ(rows.shape(), Dims{3});
      double expected = Identity(op);
      if (std::isinf(expected) && !IsFloating(dtype)) {
        const bool is_max = op == ReduceOp::kMax;
        expected = VisitDType(dtype, [&]<typename T>() -> double {
          if constexpr (std::is_integral_v<T>) {
            return static_cast<double>(is_max ? std::numeric_limits<T>::lowest()
                                              : std::numeric_limits<T>::max());
          }
          return 0;
        });
      }
      EXPECT_EQ(Values(rows), std::vector<double>(3, expected)) << Name(op) << dtype;
      const Tensor all = ops::Reduce(context, op, x, {}, false);
      const double value = IsFloating(dtype) ? all.Item() : static_cast<double>(all.IntegerItem());
      EXPECT_EQ(value, expected);
      const int first[] = {0};
      EXPECT_EQ(ops::Reduce(context, op, x, first, false).shape(), Dims{0});
    }
  }
}

TEST(Reduce, NanWins) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const Dims& shape : {Dims{9, 40}, Dims{40, 9}}) {
      for (int64_t place = 0; place < 360; place += 7) {
        std::vector<double> values = testing::RandomValues(360, 4);
        values[place] = kNan;
        const Tensor x = MakeTensor(context, shape, dtype, values);
        for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
          for (const int dim : {0, 1}) {
            const int dims[] = {dim};
            const std::vector<double> out = Values(ops::Reduce(context, op, x, dims, false));
            const int64_t at = dim == 0 ? place % shape[1] : place / shape[1];
            for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
              EXPECT_EQ(std::isnan(out[i]), i == at) << Name(op) << shape << place << " " << i;
            }
          }
        }
      }
    }
  }
  const Tensor x = MakeTensor(context, {3}, DType::kF32, {-kInf, 1, -kInf});
  EXPECT_EQ(Sum(context, x).Item(), -kInf);
}

// The counts lie around a block of 1024, and around a vector.
TEST(Reduce, SameBitsForAnyStridesAndThreads) {
  ExecutionContext one(Device::Cpu(), 1), two(Device::Cpu(), 2), three(Device::Cpu(), 3);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const Dims& shape : {Dims{1, 3000}, Dims{1023, 11}, Dims{1025, 9}, Dims{31, 33},
                              Dims{5, 2049}, Dims{3, 17}, Dims{2500, 130}, Dims{67, 300}}) {
      const Tensor x = RandomTensor(one, shape, dtype, 5);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        for (const uint32_t mask : {1u, 2u, 3u}) {
          const std::string expected = Bits(ops::Reduce(one, op, x, DimsOf(mask), true));
          for (const int64_t gap : {0, 3}) {
            for (const std::vector<int>& order : {std::vector<int>{0, 1}, std::vector<int>{1, 0}}) {
              const Tensor y = InMemoryOrder(one, x, order, gap);
              for (ExecutionContext* context : {&one, &two, &three}) {
                ASSERT_EQ(Bits(ops::Reduce(*context, op, y, DimsOf(mask), true)), expected)
                    << Name(op) << " " << dtype << shape << " strides " << y.strides() << " dims "
                    << mask << " threads " << context->threads();
              }
            }
          }
        }
      }
    }
  }
}

TEST(Reduce, SameBitsForAnyOrderOfThreeDims) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {13, 29, 37}, DType::kF32, 6);
  for (uint32_t mask = 1; mask < 8; ++mask) {
    const std::string expected = Bits(Sum(context, x, DimsOf(mask)));
    std::vector<int> order = {0, 1, 2};
    do {
      const Tensor y = InMemoryOrder(context, x, order, /*gap=*/1);
      ASSERT_EQ(Bits(Sum(context, y, DimsOf(mask))), expected) << y.strides() << " dims " << mask;
    } while (std::next_permutation(order.begin(), order.end()));
  }
  const Tensor repeated = RandomTensor(context, {29, 1}, DType::kF32, 7).Expand({3, 29, 37});
  const Tensor copied = ops::Clone(context, repeated);
  for (uint32_t mask = 1; mask < 8; ++mask) {
    ASSERT_EQ(Bits(Sum(context, repeated, DimsOf(mask))), Bits(Sum(context, copied, DimsOf(mask))));
  }
}

TEST(Reduce, ARowIsTheSameAlone) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {257, 100}, DType::kF32, 8);
  const Tensor rows = Sum(context, x, {1}), columns = Sum(context, x, {0});
  for (const int64_t i : {0, 99, 128, 256}) {
    EXPECT_EQ(Bits(Sum(context, x.Narrow(0, i, 1))), Bits(rows.Narrow(0, i, 1)));
  }
  for (const int64_t i : {0, 50, 99}) {
    EXPECT_EQ(Bits(Sum(context, x.Narrow(1, i, 1))), Bits(columns.Narrow(0, i, 1)));
  }
}

TEST(Reduce, LongSumsStayAccurate) {
  ExecutionContext context(Device::Cpu(), 2);
  const int64_t count = 3000017;
  const Tensor ones = ops::Full(context, {count}, DType::kF32, 0.1);
  EXPECT_NEAR(Sum(context, ones).Item() / (count * static_cast<double>(0.1f)), 1, 5e-7);
  // More ones than bf16, or f32 adding one by one, could count.
  const Tensor small = ops::Full(context, {20000}, DType::kBF16, 1.0);
  EXPECT_EQ(Sum(context, small).Item(), static_cast<float>(BFloat16(20000.0f)));
  const Tensor x = RandomTensor(context, {count}, DType::kF32, 9);
  double exact = 0, magnitude = 0;
  for (const double value : Values(x)) exact += value, magnitude += std::fabs(value);
  EXPECT_LT(std::fabs(Sum(context, x).Item() - exact), 1e-8 * magnitude);
}

TEST(Reduce, IntegersAndBoolsCount) {
  ExecutionContext context;
  const Tensor large = ops::Full(context, {3}, DType::kI32, 2e9);
  EXPECT_EQ(Sum(context, large).ToVector<int64_t>()[0], 6000000000);
  const Tensor flags = ops::Full(context, {5, 301}, DType::kBool, 1.0);
  const Tensor count = Sum(context, flags, {1});
  EXPECT_EQ(count.dtype(), DType::kI64);
  EXPECT_EQ(Values(count), std::vector<double>(5, 301));
  const int64_t high = std::numeric_limits<int64_t>::max();
  const Tensor exact = Tensor::FromValues<int64_t>(context, {3}, {high, -1, 1 - high});
  EXPECT_EQ(Sum(context, exact).ToVector<int64_t>()[0], 0);
  EXPECT_EQ(ops::Reduce(context, ReduceOp::kMax, exact, {}, false).ToVector<int64_t>()[0], high);
}

TEST(Reduce, WritesAWiderDType) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {7, 300}, DType::kBF16, 10);
  Tensor wide = Tensor::Empty(context, {7, 1}, DType::kF32);
  KernelsFor(Device::Cpu()).reduce(context, ReduceOp::kSum, x, 0, wide);
  EXPECT_LT(testing::WorstRelative(Values(wide), Reference(ReduceOp::kSum, x, 2)), 1e-6);
}

TEST(SumOfSquares, IsExactForTinyAndHugeValues) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = RandomTensor(context, {37, 301}, dtype, 11);
    double expected = 0;
    for (const double value : Values(x)) expected += value * value;
    const Tensor sum = ops::SumOfSquares(context, x);
    EXPECT_EQ(sum.ToString(), "f64[]");
    EXPECT_NEAR(sum.Item() / expected, 1, 1e-14) << dtype;
    EXPECT_EQ(Bits(ops::SumOfSquares(context, InMemoryOrder(context, x, {1, 0}, 5))), Bits(sum));
  }
  // Their squares are not floats.
  EXPECT_NEAR(ops::SumOfSquares(context, ops::Full(context, {2}, DType::kF32, 1e-30)).Item(), 2e-60,
              1e-66);
  EXPECT_NEAR(ops::SumOfSquares(context, ops::Full(context, {2}, DType::kF32, 1e30)).Item(), 2e60,
              1e54);
  EXPECT_EQ(ops::SumOfSquares(context, Tensor::Empty(context, {0}, DType::kF32)).Item(), 0);
  EXPECT_NE(ErrorOf([&] { ops::SumOfSquares(context, ops::Full(context, {2}, DType::kI64, 1)); }),
            "no error");
}

TEST(Reduce, MetaGivesMeta) {
  ExecutionContext context;
  const Tensor x = Tensor::Meta({3, 5}, DType::kBool);
  EXPECT_EQ(Sum(context, x, {0}).ToString(), "i64[5]");
  EXPECT_TRUE(Sum(context, x, {0}).device().IsMeta());
}

TEST(Reduce, WritesTheAccumulatorOfSmallDTypesUnrounded) {
  ExecutionContext context;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& order : {std::vector{0, 1}, std::vector{1, 0}}) {
      const Tensor x =
          InMemoryOrder(context, RandomTensor(context, {37, 5}, dtype, 3), order, /*gap=*/1);
      const std::vector<int> dims = {0};
      const Tensor sum = ops::Reduce(context, ReduceOp::kSum, x, dims, false, DType::kF32);
      EXPECT_EQ(sum.dtype(), DType::kF32);
      // Sums of so few values of at most 11 bits are exact in f32.
      EXPECT_EQ(Values(sum), Reference(ReduceOp::kSum, x, 1));
    }
    const Tensor large = MakeTensor(context, {3}, dtype, {30000, 40960, 57344});
    EXPECT_EQ(ops::Reduce(context, ReduceOp::kSum, large, {}, false, DType::kF32).Item(),
              Values(large)[0] + Values(large)[1] + Values(large)[2]);
    EXPECT_EQ(ops::Reduce(context, ReduceOp::kMax, large, {}, false, DType::kF32).Item(), 57344);
  }
  const Tensor x = RandomTensor(context, {3}, DType::kF32, 1);
  const absl::Status status =
      Catch([&] { ops::Reduce(context, ReduceOp::kSum, x, {}, false, DType::kF64); });
  EXPECT_EQ(status.message(), "sum: operands of f32 do not give a result of f64");
}

}  // namespace
}  // namespace shardmesh
