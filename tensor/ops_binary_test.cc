// SPDX-License-Identifier: Apache-2.0
//
// Pointwise ops of several operands: arithmetic, comparisons, where, in place.
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/pointwise_reference.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::ErrorOf;
using testing::ExpectClose;
using testing::kAll;
using testing::kBinaryOps;
using testing::kCompareOps;
using testing::kFloating;
using testing::kInf;
using testing::kNan;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Reference;
using testing::Values;

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
  EXPECT_NE(ErrorOf([&] { testing::SiluMul(context, a, c); }), "no error");
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

TEST(CompareInteger, IsExactAndTakesEveryInteger) {
  ExecutionContext context;
  constexpr int64_t kOdd = 9007199254740993;  // No double.
  const Tensor x = Tensor::FromValues<int64_t>(context, {3}, {kOdd - 1, kOdd, kOdd + 1});
  const auto compare = [&](CompareOp op, const Tensor& a, int64_t b) {
    return ops::CompareInteger(context, op, a, b).ToVector<bool>();
  };
  using Bools = std::vector<bool>;
  EXPECT_EQ(compare(CompareOp::kEqual, x, kOdd), Bools({false, true, false}));
  EXPECT_EQ(compare(CompareOp::kNotEqual, x, kOdd), Bools({true, false, true}));
  EXPECT_EQ(compare(CompareOp::kLess, x, kOdd), Bools({true, false, false}));
  EXPECT_EQ(compare(CompareOp::kGreaterEqual, x, kOdd), Bools({false, true, true}));
  const Tensor small = Tensor::FromValues<int32_t>(context, {2}, {-100, 7});
  EXPECT_EQ(compare(CompareOp::kNotEqual, small, -100), Bools({false, true}));
  for (const int64_t b : {int64_t{1} << 40, (int64_t{1} << 32) - 100}) {  // -100 and 7 if cut.
    EXPECT_EQ(compare(CompareOp::kEqual, small, b), Bools({false, false}));
    EXPECT_EQ(compare(CompareOp::kNotEqual, small, b), Bools({true, true}));
    EXPECT_EQ(compare(CompareOp::kLessEqual, small, b), Bools({true, true}));
    EXPECT_EQ(compare(CompareOp::kGreater, small, b), Bools({false, false}));
    EXPECT_EQ(compare(CompareOp::kLess, small, -b), Bools({false, false}));
    EXPECT_EQ(compare(CompareOp::kGreaterEqual, small, -b), Bools({true, true}));
  }
  EXPECT_EQ(Catch([&] {
              compare(CompareOp::kLess, RandomTensor(context, {2}, DType::kF32, 1), 3);
            }).message(),
            "less: expected a tensor of integers, got f32[2]");
}

}  // namespace
}  // namespace shardmesh
