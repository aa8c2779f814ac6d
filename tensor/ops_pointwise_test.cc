// SPDX-License-Identifier: Apache-2.0
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

constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                          DType::kI32, DType::kI64, DType::kBool};

constexpr UnaryOp kUnaryOps[] = {
    UnaryOp::kNeg,   UnaryOp::kAbs,        UnaryOp::kExp,  UnaryOp::kLog,     UnaryOp::kSqrt,
    UnaryOp::kRsqrt, UnaryOp::kReciprocal, UnaryOp::kTanh, UnaryOp::kSigmoid, UnaryOp::kSilu,
    UnaryOp::kRelu,  UnaryOp::kSquare,     UnaryOp::kSin,  UnaryOp::kCos};
constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd,  BinaryOp::kSub,     BinaryOp::kMul,
                                   BinaryOp::kDiv,  BinaryOp::kMaximum, BinaryOp::kMinimum,
                                   BinaryOp::kRSub, BinaryOp::kRDiv};
constexpr CompareOp kCompareOps[] = {CompareOp::kEqual,   CompareOp::kNotEqual,
                                     CompareOp::kLess,    CompareOp::kLessEqual,
                                     CompareOp::kGreater, CompareOp::kGreaterEqual};

double Reference(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kAbs:
      return std::fabs(x);
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSqrt:
      return std::sqrt(x);
    case UnaryOp::kRsqrt:
      return 1 / std::sqrt(x);
    case UnaryOp::kReciprocal:
      return 1 / x;
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryOp::kSilu:
      return x / (1 + std::exp(-x));
    case UnaryOp::kRelu:
      return x < 0 ? 0 : x;
    case UnaryOp::kSquare:
      return x * x;
    case UnaryOp::kSin:
      return std::sin(x);
    case UnaryOp::kCos:
      return std::cos(x);
  }
  return kNan;
}

double Reference(BinaryOp op, double a, double b) {
  const bool is_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kMaximum:
      return is_nan ? kNan : std::max(a, b);
    case BinaryOp::kMinimum:
      return is_nan ? kNan : std::min(a, b);
    case BinaryOp::kRSub:
      return b - a;
    case BinaryOp::kRDiv:
      return b / a;
  }
  return kNan;
}

bool Reference(CompareOp op, double a, double b) {
  switch (op) {
    case CompareOp::kEqual:
      return a == b;
    case CompareOp::kNotEqual:
      return a != b;
    case CompareOp::kLess:
      return a < b;
    case CompareOp::kLessEqual:
      return a <= b;
    case CompareOp::kGreater:
      return a > b;
    case CompareOp::kGreaterEqual:
      return a >= b;
  }
  return false;
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-15;
    case DType::kF32:
      return 4e-7;
    case DType::kF16:
      return 0x1p-11 + 1e-6;
    default:
      return 0x1p-8 + 1e-6;
  }
}

void ExpectClose(const Tensor& actual, const std::vector<double>& expected,
                 const std::string& what) {
  const std::vector<double> values = Values(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << what << " at " << i << " is " << values[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(values[i], expected[i]) << what << " at " << i;
    } else {
      const double tolerance = Tolerance(actual.dtype()) * std::fabs(expected[i]) +
                               (IsFloating(actual.dtype()) ? 1e-7 : 0);
      EXPECT_NEAR(values[i], expected[i], tolerance) << what << " at " << i;
    }
  }
}

std::string ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

// x with the dims in memory in several orders, with and without gaps.
std::vector<Tensor> Layouts(ExecutionContext& context, const Tensor& x) {
  std::vector<Tensor> layouts = {x};
  std::vector<int> order(x.rank());
  for (int i = 0; i < x.rank(); ++i) order[i] = i;
  do {
    layouts.push_back(InMemoryOrder(context, x, order));
    if (IsFloating(x.dtype())) layouts.push_back(InMemoryOrder(context, x, order, /*gap=*/3));
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

TEST(Unary, IsRightForEveryDType) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const UnaryOp op : kUnaryOps) {
      Tensor x = RandomTensor(context, {7, 13}, dtype, 1);
      x = ops::Binary(context, BinaryOp::kMul, x, 5.0);
      const bool positive = op == UnaryOp::kLog || op == UnaryOp::kSqrt || op == UnaryOp::kRsqrt;
      if (positive) x = ops::Unary(context, UnaryOp::kAbs, x);
      std::vector<double> expected;
      for (const double value : Values(x)) expected.push_back(Reference(op, value));
      ExpectClose(ops::Unary(context, op, x), expected,
                  std::string(Name(op)) + " " + std::string(Name(dtype)));
    }
  }
}

TEST(Unary, SpecialValues) {
  ExecutionContext context;
  const std::vector<double> x = {0.0,    -0.0, 1.0,   -1.0, 0.5,   -2.5, 1e-30,
                                 -1e-30, 88.5, -88.0, kInf, -kInf, kNan, 3e-39};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor input = MakeTensor(context, {static_cast<int64_t>(x.size())}, dtype, x);
    for (const UnaryOp op : kUnaryOps) {
      std::vector<double> expected;
      for (const double value : Values(input)) {
        const double exact = Reference(op, value);
        expected.push_back(dtype == DType::kF32 ? static_cast<float>(exact) : exact);
      }
      ExpectClose(ops::Unary(context, op, input), expected,
                  std::string(Name(op)) + " " + std::string(Name(dtype)));
    }
  }
  // Zeros keep their signs.
  const Tensor zeros = MakeTensor(context, {2}, DType::kF32, {0.0, -0.0});
  const std::vector<double> negated = Values(ops::Unary(context, UnaryOp::kNeg, zeros));
  EXPECT_TRUE(std::signbit(negated[0]) && !std::signbit(negated[1]));
  EXPECT_TRUE(std::signbit(Values(ops::Unary(context, UnaryOp::kTanh, zeros))[1]));
  EXPECT_EQ(Values(ops::Unary(context, UnaryOp::kReciprocal, zeros)),
            (std::vector<double>{kInf, -kInf}));
}

TEST(Unary, TakesIntegersWhereTheResultIsOne) {
  ExecutionContext context;
  const int32_t low = std::numeric_limits<int32_t>::min();
  const Tensor x = Tensor::FromValues(context, {4}, {3, -5, 0, low});
  const auto values = [&](UnaryOp op) { return ops::Unary(context, op, x).ToVector<int32_t>(); };
  EXPECT_EQ(values(UnaryOp::kNeg), (std::vector<int32_t>{-3, 5, 0, low}));  // Wraps.
  EXPECT_EQ(values(UnaryOp::kAbs), (std::vector<int32_t>{3, 5, 0, low}));
  EXPECT_EQ(values(UnaryOp::kRelu), (std::vector<int32_t>{3, 0, 0, 0}));
  EXPECT_EQ(values(UnaryOp::kSquare), (std::vector<int32_t>{9, 25, 0, 0}));
  EXPECT_EQ(ErrorOf([&] { ops::Unary(context, UnaryOp::kExp, x); }),
            "exp: needs a floating-point dtype, got i32");
  const Tensor flags = Tensor::FromValues(context, {1}, {true});
  EXPECT_NE(ErrorOf([&] { ops::Unary(context, UnaryOp::kNeg, flags); }), "no error");
}

// The sizes are those of a vector and its tail, and of more than one tile.
TEST(Pointwise, EachElementIsTheSameWhateverItsNeighbours) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor all = RandomTensor(context, {67}, dtype, 2);
    for (const UnaryOp op : kUnaryOps) {
      const Tensor expected = ops::Unary(context, op, all);
      for (const int64_t n : {1, 3, 8, 15, 17, 31, 33, 66}) {
        const Tensor part = ops::Unary(context, op, all.Narrow(0, 67 - n, n));
        ASSERT_EQ(Bits(part), Bits(expected.Narrow(0, 67 - n, n)))
            << Name(op) << " " << dtype << " " << n;
      }
    }
  }
}

TEST(Pointwise, SameBitsForAnyStridesAndThreads) {
  ExecutionContext one(Device::Cpu(), 1), two(Device::Cpu(), 2), three(Device::Cpu(), 3);
  for (const Dims& shape : {Dims{3, 5, 7}, Dims{5, 67, 101}}) {  // Less than a tile; more.
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor a = RandomTensor(one, shape, dtype, 3), b = RandomTensor(one, shape, dtype, 4);
      const std::string sum = Bits(ops::Binary(one, BinaryOp::kDiv, a, b));
      const std::string silu = Bits(ops::Unary(one, UnaryOp::kSilu, a));
      const std::string less = Bits(ops::Compare(one, CompareOp::kLess, a, b));
      const std::string scaled = Bits(ops::Binary(one, BinaryOp::kRDiv, a, 0.1));
      const std::string gated = Bits(ops::SiluMul(one, a, b));
      const std::string dgate = Bits(ops::SiluMulBackward(one, b, a, b).first);
      const std::string dup = Bits(ops::SiluMulBackward(one, b, a, b).second);
      const std::vector<Tensor> as = Layouts(one, a), bs = Layouts(one, b);
      for (size_t i = 0; i < as.size(); ++i) {
        const Tensor& x = as[i];
        const Tensor& y = bs[(i * 5 + 3) % bs.size()];
        for (ExecutionContext* context : {&one, &two, &three}) {
          ASSERT_EQ(Bits(ops::Binary(*context, BinaryOp::kDiv, x, y)), sum) << x.strides();
          ASSERT_EQ(Bits(ops::Unary(*context, UnaryOp::kSilu, x)), silu) << x.strides();
          ASSERT_EQ(Bits(ops::Compare(*context, CompareOp::kLess, x, y)), less);
          ASSERT_EQ(Bits(ops::Binary(*context, BinaryOp::kRDiv, x, 0.1)), scaled);
          ASSERT_EQ(Bits(ops::SiluMul(*context, x, y)), gated);
          ASSERT_EQ(Bits(ops::SiluMulBackward(*context, y, x, y).first), dgate);
          ASSERT_EQ(Bits(ops::SiluMulBackward(*context, y, x, y).second), dup);
        }
      }
    }
  }
}

TEST(Pointwise, WritesToAnyStrides) {
  ExecutionContext context(Device::Cpu(), 2);
  for (const Dims& shape : {Dims{3, 5, 7}, Dims{5, 67, 101}}) {
    const Tensor b = RandomTensor(context, shape, DType::kF32, 5);
    const Tensor a = RandomTensor(context, shape, DType::kF32, 6);
    const std::string expected = Bits(ops::Binary(context, BinaryOp::kSub, a, b));
    for (const Tensor& layout : Layouts(context, a)) {
      Tensor x = layout;
      if (x.storage() == a.storage()) continue;
      ops::BinaryInto(context, BinaryOp::kSub, x, b);
      ASSERT_EQ(Bits(x), expected) << x.strides();
    }
    // The gaps between rows are not written: InMemoryOrder fills them with NaN.
    Tensor x = InMemoryOrder(context, a, {1, 0, 2}, /*gap=*/3);
    ops::BinaryInto(context, BinaryOp::kSub, x, b);
    const Tensor memory =
        Tensor::Over(x.storage(), {x.storage()->bytes() / 4}, DType::kF32, /*offset=*/0);
    int64_t gaps = 0;
    for (const double value : Values(memory)) gaps += std::isnan(value);
    EXPECT_EQ(gaps, memory.NumElements() - x.NumElements());
  }
}

TEST(Binary, IsRightForEveryDType) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor a = RandomTensor(context, {7, 13}, dtype, 7);
    const Tensor b = RandomTensor(context, {7, 13}, dtype, 8);
    const std::vector<double> x = Values(a), y = Values(b);
    for (const BinaryOp op : kBinaryOps) {
      std::vector<double> expected, with_scalar;
      for (size_t i = 0; i < x.size(); ++i) {
        expected.push_back(Reference(op, x[i], y[i]));
        with_scalar.push_back(Reference(op, x[i], 0.1));
      }
      const std::string what = std::string(Name(op)) + " " + std::string(Name(dtype));
      ExpectClose(ops::Binary(context, op, a, b), expected, what);
      ExpectClose(ops::Binary(context, op, a, 0.1), with_scalar, what + " scalar");
    }
    for (const CompareOp op : kCompareOps) {
      std::vector<double> expected, with_scalar;
      for (size_t i = 0; i < x.size(); ++i) {
        expected.push_back(Reference(op, x[i], i % 3 ? y[i] : x[i]));
        with_scalar.push_back(Reference(op, x[i], x[5]));
      }
      Tensor c = ops::Clone(context, b);
      for (int64_t i = 0; i < c.NumElements(); i += 3) {
        Tensor to = c.TryView({-1})->Narrow(0, i, 1);
        ops::Copy(context, a.TryView({-1})->Narrow(0, i, 1), to);
      }
      const std::string what = std::string(Name(op)) + " " + std::string(Name(dtype));
      ExpectClose(ops::Compare(context, op, a, c), expected, what);
      ExpectClose(ops::Compare(context, op, a, x[5]), with_scalar, what + " scalar");
    }
  }
}

TEST(Binary, IntegersWrapAndBoolsAreLogic) {
  ExecutionContext context;
  const int64_t high = std::numeric_limits<int64_t>::max();
  const Tensor a = Tensor::FromValues<int64_t>(context, {3}, {high, -7, 5});
  const Tensor b = Tensor::FromValues<int64_t>(context, {3}, {1, 3, -11});
  const auto values = [&](BinaryOp op) {
    return ops::Binary(context, op, a, b).ToVector<int64_t>();
  };
  EXPECT_EQ(values(BinaryOp::kAdd)[0], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(values(BinaryOp::kSub), (std::vector<int64_t>{high - 1, -10, 16}));
  EXPECT_EQ(values(BinaryOp::kRSub), (std::vector<int64_t>{1 - high, 10, -16}));
  EXPECT_EQ(values(BinaryOp::kMul), (std::vector<int64_t>{high, -21, -55}));
  EXPECT_EQ(values(BinaryOp::kMaximum), (std::vector<int64_t>{high, 3, 5}));
  EXPECT_EQ(ErrorOf([&] { ops::Binary(context, BinaryOp::kDiv, a, b); }),
            "div: needs a floating-point dtype, got i64");
  const Tensor p = Tensor::FromValues(context, {4}, {false, false, true, true});
  const Tensor q = Tensor::FromValues(context, {4}, {false, true, false, true});
  using Bools = std::vector<bool>;
  const auto logic = [&](BinaryOp op) { return ops::Binary(context, op, p, q).ToVector<bool>(); };
  EXPECT_EQ(logic(BinaryOp::kAdd), (Bools{false, true, true, true}));
  EXPECT_EQ(logic(BinaryOp::kMul), (Bools{false, false, false, true}));
  EXPECT_EQ(logic(BinaryOp::kMaximum), (Bools{false, true, true, true}));
  EXPECT_EQ(logic(BinaryOp::kMinimum), (Bools{false, false, false, true}));
  EXPECT_NE(ErrorOf([&] { logic(BinaryOp::kSub); }), "no error");
}

TEST(Binary, NanWinsAndInfinitiesCompare) {
  ExecutionContext context;
  const std::vector<double> x = {kNan, 1, kNan, kInf, -kInf, 0, 2},
                            y = {1, kNan, kNan, 1, 1, -kInf, 2};
  for (const DType dtype : kFloating) {
    const Tensor a = MakeTensor(context, {7}, dtype, x), b = MakeTensor(context, {7}, dtype, y);
    for (const BinaryOp op : {BinaryOp::kMaximum, BinaryOp::kMinimum}) {
      std::vector<double> expected;
      for (size_t i = 0; i < x.size(); ++i) expected.push_back(Reference(op, x[i], y[i]));
      ExpectClose(ops::Binary(context, op, a, b), expected, std::string(Name(op)));
      const std::vector<double> all_nan(7, kNan);
      ExpectClose(ops::Binary(context, op, a, kNan), all_nan, "with a NaN");
    }
    for (const CompareOp op : kCompareOps) {
      std::vector<double> expected;
      for (size_t i = 0; i < x.size(); ++i) expected.push_back(Reference(op, x[i], y[i]));
      ExpectClose(ops::Compare(context, op, a, b), expected, std::string(Name(op)));
    }
  }
}

TEST(Binary, Broadcasts) {
  ExecutionContext context;
  const Dims shapes[] = {{},        {1},       {7},       {5, 1},    {5, 7},
                         {3, 1, 7}, {3, 5, 1}, {3, 5, 7}, {1, 1, 1}, {3, 1, 1}};
  for (const DType dtype : {DType::kF64, DType::kBF16}) {
    for (const Dims& a_shape : shapes) {
      for (const Dims& b_shape : shapes) {
        const Tensor a = RandomTensor(context, a_shape, dtype, 9);
        const Tensor b = RandomTensor(context, b_shape, dtype, 10);
        const Dims shape = BroadcastShapes(a_shape, b_shape, "test");
        const std::vector<double> x = Values(a.Expand(shape)), y = Values(b.Expand(shape));
        std::vector<double> expected, less;
        for (size_t i = 0; i < x.size(); ++i) {
          expected.push_back(x[i] * y[i]);
          less.push_back(x[i] < y[i]);
        }
        const Tensor product = ops::Binary(context, BinaryOp::kMul, a, b);
        EXPECT_EQ(product.shape(), shape);
        ExpectClose(product, expected, "mul");
        ExpectClose(ops::Compare(context, CompareOp::kLess, a, b), less, "less");
      }
    }
  }
  const Tensor empty = Tensor::Empty(context, {3, 0}, DType::kF32);
  const Tensor row = Tensor::Empty(context, {3, 1}, DType::kF32);
  EXPECT_EQ(ops::Binary(context, BinaryOp::kAdd, empty, row).shape(), (Dims{3, 0}));
}

TEST(Binary, MistakesAreNamedBeforeAnythingIsAllocated) {
  ExecutionContext context;
  const Tensor a = Tensor::Empty(context, {3, 5}, DType::kF32);
  const Tensor b = Tensor::Empty(context, {3, 5}, DType::kBF16);
  const Tensor c = Tensor::Empty(context, {3, 4}, DType::kF32);
  const int64_t allocations = context.allocator()->total().allocations;
  EXPECT_EQ(ErrorOf([&] { ops::Binary(context, BinaryOp::kAdd, a, b); }),
            "add: f32[3,5] and bf16[3,5] differ in dtype; cast one of them");
  EXPECT_EQ(ErrorOf([&] { ops::Compare(context, CompareOp::kLess, a, b); }),
            "less: f32[3,5] and bf16[3,5] differ in dtype; cast one of them");
  EXPECT_EQ(ErrorOf([&] { ops::Binary(context, BinaryOp::kMul, a, c); }),
            "mul: shapes [3,5] and [3,4] do not broadcast");
  EXPECT_NE(ErrorOf([&] { ops::Binary(context, BinaryOp::kMul, a, Tensor()); }), "no error");
  EXPECT_NE(ErrorOf([&] {
              ops::Binary(context, BinaryOp::kMul, a, Tensor::Meta({3, 5}, DType::kF32));
            }),
            "no error");
  EXPECT_NE(ErrorOf([&] { ops::SiluMul(context, a, c); }), "no error");
  EXPECT_EQ(context.allocator()->total().allocations, allocations);
}

TEST(Binary, ScalarsMustBeValuesOfTheDType) {
  ExecutionContext context;
  const Tensor x = Tensor::FromValues<int64_t>(context, {2}, {1, 2});
  EXPECT_EQ(ErrorOf([&] { ops::Compare(context, CompareOp::kLess, x, 1.5); }),
            "less: 1.5 is not a value of dtype i64");
  EXPECT_EQ(ErrorOf([&] { ops::Binary(context, BinaryOp::kAdd, x, kNan); }),
            "add: nan is not a value of dtype i64");
  const Tensor small = Tensor::FromValues<int32_t>(context, {1}, {1});
  EXPECT_NE(ErrorOf([&] { ops::Binary(context, BinaryOp::kAdd, small, 0x1p31); }), "no error");
  EXPECT_EQ(ops::Binary(context, BinaryOp::kAdd, small, -0x1p31).Item(), 1 - 0x1p31);
  EXPECT_EQ(ops::Binary(context, BinaryOp::kRSub, x, 10.0).ToVector<int64_t>(),
            (std::vector<int64_t>{9, 8}));
}

TEST(Binary, SmallFloatsTakeScalarsInFullPrecision) {
  ExecutionContext context;
  // 3 * 0.3 in f32 rounds to another bf16 than 3 * bf16(0.3).
  const Tensor x = MakeTensor(context, {1}, DType::kBF16, {3});
  const double product = ops::Binary(context, BinaryOp::kMul, x, 0.3).Item();
  EXPECT_EQ(product, static_cast<float>(BFloat16(3.0f * 0.3f)));
  EXPECT_NE(product, static_cast<float>(BFloat16(3.0f * static_cast<float>(BFloat16(0.3f)))));
  // A comparison is with the scalar as a bf16.
  const Tensor tenth = MakeTensor(context, {1}, DType::kBF16, {0.1});
  EXPECT_EQ(ops::Compare(context, CompareOp::kEqual, tenth, 0.1).Item(), 1);
}

TEST(BinaryInto, WritesInPlaceAndCounts) {
  ExecutionContext context;
  for (const DType dtype : kAll) {
    Tensor a = RandomTensor(context, {3, 7}, dtype, 11);
    const Tensor b = RandomTensor(context, {7}, dtype, 12);
    const std::string expected = Bits(ops::Binary(context, BinaryOp::kMaximum, a, b));
    const int64_t version = a.storage()->version(), other = b.storage()->version();
    const void* data = a.raw_data();
    ops::BinaryInto(context, BinaryOp::kMaximum, a, b);
    EXPECT_EQ(Bits(a), expected);
    EXPECT_EQ(a.raw_data(), data);
    EXPECT_EQ(a.storage()->version(), version + 1);
    EXPECT_EQ(b.storage()->version(), other);
    const std::string scaled = Bits(ops::Binary(context, BinaryOp::kMul, a, 1.0));
    ops::BinaryInto(context, BinaryOp::kMul, a, 1.0);
    EXPECT_EQ(Bits(a), scaled);
    EXPECT_EQ(a.storage()->version(), version + 2);
  }
}

TEST(BinaryInto, ReadsAnOverlappingOperandBeforeItWrites) {
  ExecutionContext context;
  Tensor x = MakeTensor(context, {6}, DType::kF32, {1, 2, 3, 4, 5, 6});
  Tensor tail = x.Narrow(0, 1, 5);
  ops::BinaryInto(context, BinaryOp::kAdd, tail, x.Narrow(0, 0, 5));
  EXPECT_EQ(Values(x), (std::vector<double>{1, 3, 5, 7, 9, 11}));
  ops::BinaryInto(context, BinaryOp::kAdd, x, x);  // The same view needs no copy.
  EXPECT_EQ(Values(x), (std::vector<double>{2, 6, 10, 14, 18, 22}));
  Tensor first = x.Narrow(0, 0, 1);
  ops::BinaryInto(context, BinaryOp::kSub, x, first);  // Broadcast from what is written first.
  EXPECT_EQ(Values(x), (std::vector<double>{0, 4, 8, 12, 16, 20}));
}

TEST(BinaryInto, RefusesWhatItCannotWrite) {
  ExecutionContext context;
  Tensor row = RandomTensor(context, {1, 5}, DType::kF32, 13);
  const Tensor full = RandomTensor(context, {3, 5}, DType::kF32, 14);
  EXPECT_EQ(ErrorOf([&] { ops::BinaryInto(context, BinaryOp::kAdd, row, full); }),
            "add: the result in place of f32[1,5] cannot have the shape of f32[3,5]");
  Tensor expanded = row.Expand({3, 5});
  EXPECT_EQ(ErrorOf([&] { ops::BinaryInto(context, BinaryOp::kAdd, expanded, full); }),
            "add: cannot write to f32[3,5], an expanded view: its dim 0 repeats elements");
  EXPECT_EQ(row.storage()->version(), 0);
}

TEST(Where, Selects) {
  ExecutionContext context;
  for (const DType dtype : kAll) {
    const Tensor a = RandomTensor(context, {3, 7}, dtype, 15);
    const Tensor b = RandomTensor(context, {7}, dtype, 16);
    const Tensor cond = Tensor::FromValues(context, {3, 1}, {true, false, true});
    const Tensor out = ops::Where(context, cond, a, b);
    const std::vector<double> x = Values(a), y = Values(b), z = Values(out);
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(z[i], i / 7 == 1 ? y[i % 7] : x[i]) << dtype;
  }
  const Tensor x = RandomTensor(context, {3}, DType::kF32, 17);
  EXPECT_EQ(ErrorOf([&] { ops::Where(context, x, x, x); }),
            "where: the condition must have the dtype bool, got f32[3]");
  const Tensor cond = ops::Compare(context, CompareOp::kLess, x, 0.0);
  EXPECT_NE(ErrorOf([&] { ops::Where(context, cond, x, ops::Cast(context, x, DType::kF64)); }),
            "no error");
  // NaN where it is not selected does no harm.
  const Tensor nan = ops::Full(context, {3}, DType::kF32, kNan);
  const Tensor never = ops::Compare(context, CompareOp::kLess, x, -5.0);
  EXPECT_EQ(Values(ops::Where(context, never, nan, x)), Values(x));
}

TEST(UnaryBackward, IsTheDerivative) {
  ExecutionContext context;
  for (const UnaryOp op : kUnaryOps) {
    Tensor x = RandomTensor(context, {5, 7}, DType::kF64, 18);
    const bool positive = op == UnaryOp::kLog || op == UnaryOp::kSqrt || op == UnaryOp::kRsqrt ||
                          op == UnaryOp::kReciprocal;
    if (positive) {
      x = ops::Binary(context, BinaryOp::kAdd, ops::Unary(context, UnaryOp::kAbs, x), 0.1);
    }
    const Tensor grad = RandomTensor(context, {5, 7}, DType::kF64, 19);
    const std::vector<double> weights = Values(grad);
    const std::vector<double> expected = testing::FiniteDifferences(
        x, [&] { return testing::Dot(Values(ops::Unary(context, op, x)), weights); });
    const Tensor y = ops::Unary(context, op, x);
    // What the formula does not read need not be there.
    const Tensor dx = ops::UnaryBackward(context, op, grad, BackwardReadsInput(op) ? x : Tensor(),
                                         BackwardReadsOutput(op) ? y : Tensor());
    EXPECT_LT(testing::WorstRelative(Values(dx), expected), 1e-6) << Name(op);
    // In f32, to its precision.
    const auto narrow = [&](const Tensor& t) { return ops::Cast(context, t, DType::kF32); };
    const Tensor dx32 = ops::UnaryBackward(context, op, narrow(grad), narrow(x), narrow(y));
    EXPECT_LT(testing::WorstRelative(Values(dx32), Values(dx)), 2e-6) << Name(op);
  }
}

TEST(UnaryBackward, KinksHaveGradientZero) {
  ExecutionContext context;
  const Tensor x = MakeTensor(context, {3}, DType::kF32, {0.0, -0.0, 2});
  const Tensor grad = MakeTensor(context, {3}, DType::kF32, {3, 5, 7});
  for (const UnaryOp op : {UnaryOp::kAbs, UnaryOp::kRelu}) {
    const Tensor y = ops::Unary(context, op, x);
    EXPECT_EQ(Values(ops::UnaryBackward(context, op, grad, x, y)), (std::vector<double>{0, 0, 7}));
  }
}

TEST(SiluMul, IsSiluTimesAndItsDerivative) {
  ExecutionContext context;
  Tensor gate = RandomTensor(context, {5, 7}, DType::kF64, 20);
  Tensor up = RandomTensor(context, {5, 7}, DType::kF64, 21);
  const Tensor grad = RandomTensor(context, {5, 7}, DType::kF64, 22);
  const Tensor expected =
      ops::Binary(context, BinaryOp::kMul, ops::Unary(context, UnaryOp::kSilu, gate), up);
  EXPECT_LT(testing::WorstRelative(Values(ops::SiluMul(context, gate, up)), Values(expected)),
            1e-15);
  const auto loss = [&] {
    return testing::Dot(Values(ops::SiluMul(context, gate, up)), Values(grad));
  };
  const auto [dgate, dup] = ops::SiluMulBackward(context, grad, gate, up);
  EXPECT_LT(testing::WorstRelative(Values(dgate), testing::FiniteDifferences(gate, loss)), 1e-6);
  EXPECT_LT(testing::WorstRelative(Values(dup), testing::FiniteDifferences(up, loss)), 1e-6);
}

TEST(Accumulate, AddsInTheWiderDType) {
  ExecutionContext context;
  // An update below bf16's step is kept by f32.
  const Tensor small = ops::Full(context, {3, 5}, DType::kBF16, 0x1p-9);
  Tensor sum = ops::Full(context, {3, 5}, DType::kF32, 1.0);
  ops::Accumulate(context, small, sum);
  EXPECT_EQ(Values(sum)[7], 1 + 0x1p-9);
  EXPECT_EQ(sum.storage()->version(), 1);
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      const Tensor x = RandomTensor(context, {3, 5}, from, 23);
      Tensor out = RandomTensor(context, {3, 5}, to, 24);
      const std::vector<double> a = Values(x), b = Values(out);
      const bool widens = IsFloating(from) && IsFloating(to) && SizeOf(to) > SizeOf(from);
      if (from != to && !widens) {
        EXPECT_NE(ErrorOf([&] { ops::Accumulate(context, x, out); }), "no error") << from << to;
        continue;
      }
      ops::Accumulate(context, x, out);
      std::vector<double> expected;
      for (size_t i = 0; i < a.size(); ++i) {
        expected.push_back(to == DType::kBool ? a[i] != 0 || b[i] != 0 : a[i] + b[i]);
      }
      ExpectClose(out, expected, std::string(Name(from)) + " to " + std::string(Name(to)));
    }
  }
}

TEST(Accumulate, AnyStridesAndOverlap) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {5, 7}, DType::kBF16, 25);
  const Tensor start = RandomTensor(context, {5, 7}, DType::kF32, 26);
  Tensor expected = ops::Clone(context, start);
  ops::Accumulate(context, x, expected);
  for (const Tensor& from : Layouts(context, x)) {
    Tensor out = InMemoryOrder(context, start, {1, 0}, /*gap=*/2);
    ops::Accumulate(context, from, out);
    EXPECT_EQ(Bits(out), Bits(expected));
  }
  Tensor y = MakeTensor(context, {4}, DType::kF32, {1, 2, 3, 4});
  Tensor tail = y.Narrow(0, 1, 3);
  ops::Accumulate(context, y.Narrow(0, 0, 3), tail);
  EXPECT_EQ(Values(y), (std::vector<double>{1, 3, 5, 7}));
}

TEST(Pointwise, EmptyAndScalarTensors) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor empty = Tensor::Empty(context, {3, 0, 5}, dtype);
    EXPECT_EQ(ops::Unary(context, UnaryOp::kExp, empty).shape(), empty.shape());
    EXPECT_EQ(ops::Binary(context, BinaryOp::kAdd, empty, empty.Transpose(0, 2).Transpose(0, 2))
                  .NumElements(),
              0);
    const Tensor scalar = MakeTensor(context, {}, dtype, {-1.5});
    EXPECT_EQ(ops::Unary(context, UnaryOp::kAbs, scalar).Item(), 1.5);
    EXPECT_EQ(ops::Binary(context, BinaryOp::kAdd, scalar, scalar).shape(), Dims{});
  }
}

TEST(Pointwise, ReleasedStorageIsAnError) {
  ExecutionContext context;
  const Tensor a = RandomTensor(context, {3}, DType::kF32, 27);
  const Tensor b = RandomTensor(context, {3}, DType::kF32, 28);
  a.storage()->Release("resharded by unit 0");
  EXPECT_EQ(ErrorOf([&] { ops::Binary(context, BinaryOp::kAdd, b, a); }),
            "the memory of this tensor (12 bytes) was released: resharded by unit 0");
  EXPECT_NE(ErrorOf([&] { ops::Unary(context, UnaryOp::kExp, a); }), "no error");
}

TEST(Pointwise, MetaGivesMeta) {
  ExecutionContext context;
  const Tensor x = Tensor::Meta({3, 5}, DType::kBF16), row = Tensor::Meta({5}, DType::kBF16);
  const Tensor sum = ops::Binary(context, BinaryOp::kAdd, x, row);
  EXPECT_TRUE(sum.device().IsMeta());
  EXPECT_EQ(sum.ToString(), "bf16[3,5]");
  EXPECT_EQ(ops::Compare(context, CompareOp::kLess, x, 0.0).ToString(), "bool[3,5]");
  EXPECT_EQ(ops::SiluMulBackward(context, x, x, x).second.ToString(), "bf16[3,5]");
  EXPECT_EQ(context.allocator()->total().allocations, 0);
}

}  // namespace
}  // namespace shardmesh
