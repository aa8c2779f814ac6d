// SPDX-License-Identifier: Apache-2.0
//
// Pointwise ops of one operand and their derivatives, fused ones, and what holds for all.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
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
using testing::InMemoryOrder;
using testing::kAll;
using testing::kFloating;
using testing::kInf;
using testing::kNan;
using testing::kUnaryOps;
using testing::Layouts;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Reference;
using testing::Values;

TEST(Unary, IsRightForEveryDType) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const ElementwiseOp op : kUnaryOps) {
      Tensor x = RandomTensor(context, {7, 13}, dtype, 1);
      x = ops::Binary(context, BinaryOp::kMul, x, 5.0);
      const bool positive =
          op == ElementwiseOp::kLog || op == ElementwiseOp::kSqrt || op == ElementwiseOp::kRsqrt;
      if (positive) x = ops::Unary(context, ElementwiseOp::kAbs, x);
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
    for (const ElementwiseOp op : kUnaryOps) {
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
  const std::vector<double> negated = Values(ops::Unary(context, ElementwiseOp::kNeg, zeros));
  EXPECT_TRUE(std::signbit(negated[0]) && !std::signbit(negated[1]));
  EXPECT_TRUE(std::signbit(Values(ops::Unary(context, ElementwiseOp::kTanh, zeros))[1]));
  EXPECT_EQ(Values(ops::Unary(context, ElementwiseOp::kReciprocal, zeros)),
            (std::vector<double>{kInf, -kInf}));
}

TEST(Unary, TakesIntegersWhereTheResultIsOne) {
  ExecutionContext context;
  const int32_t low = std::numeric_limits<int32_t>::min();
  const Tensor x = Tensor::FromValues(context, {4}, {3, -5, 0, low});
  const auto values = [&](ElementwiseOp op) {
    return ops::Unary(context, op, x).ToVector<int32_t>();
  };
  EXPECT_EQ(values(ElementwiseOp::kNeg), (std::vector<int32_t>{-3, 5, 0, low}));  // Wraps.
  EXPECT_EQ(values(ElementwiseOp::kAbs), (std::vector<int32_t>{3, 5, 0, low}));
  EXPECT_EQ(values(ElementwiseOp::kRelu), (std::vector<int32_t>{3, 0, 0, 0}));
  EXPECT_EQ(values(ElementwiseOp::kSquare), (std::vector<int32_t>{9, 25, 0, 0}));
  EXPECT_EQ(ErrorOf([&] { ops::Unary(context, ElementwiseOp::kExp, x); }),
            "exp: needs a floating-point dtype, got i32");
  const Tensor flags = Tensor::FromValues(context, {1}, {true});
  EXPECT_NE(ErrorOf([&] { ops::Unary(context, ElementwiseOp::kNeg, flags); }), "no error");
}

// The sizes are those of a vector and its tail, and of more than one tile.
TEST(Pointwise, EachElementIsTheSameWhateverItsNeighbours) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor all = RandomTensor(context, {67}, dtype, 2);
    for (const ElementwiseOp op : kUnaryOps) {
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
      const std::string silu = Bits(ops::Unary(one, ElementwiseOp::kSilu, a));
      const std::string less = Bits(ops::Compare(one, CompareOp::kLess, a, b));
      const std::string scaled = Bits(ops::Binary(one, BinaryOp::kRDiv, a, 0.1));
      const std::string gated = Bits(testing::SiluMul(one, a, b));
      const std::string dgate = Bits(testing::SiluMulBackward(one, b, a, b).first);
      const std::string dup = Bits(testing::SiluMulBackward(one, b, a, b).second);
      const std::vector<Tensor> as = Layouts(one, a), bs = Layouts(one, b);
      for (size_t i = 0; i < as.size(); ++i) {
        const Tensor& x = as[i];
        const Tensor& y = bs[(i * 5 + 3) % bs.size()];
        for (ExecutionContext* context : {&one, &two, &three}) {
          ASSERT_EQ(Bits(ops::Binary(*context, BinaryOp::kDiv, x, y)), sum) << x.strides();
          ASSERT_EQ(Bits(ops::Unary(*context, ElementwiseOp::kSilu, x)), silu) << x.strides();
          ASSERT_EQ(Bits(ops::Compare(*context, CompareOp::kLess, x, y)), less);
          ASSERT_EQ(Bits(ops::Binary(*context, BinaryOp::kRDiv, x, 0.1)), scaled);
          ASSERT_EQ(Bits(testing::SiluMul(*context, x, y)), gated);
          ASSERT_EQ(Bits(testing::SiluMulBackward(*context, y, x, y).first), dgate);
          ASSERT_EQ(Bits(testing::SiluMulBackward(*context, y, x, y).second), dup);
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

TEST(UnaryBackward, IsTheDerivative) {
  ExecutionContext context;
  for (const ElementwiseOp op : kUnaryOps) {
    Tensor x = RandomTensor(context, {5, 7}, DType::kF64, 18);
    const bool positive = op == ElementwiseOp::kLog || op == ElementwiseOp::kSqrt ||
                          op == ElementwiseOp::kRsqrt || op == ElementwiseOp::kReciprocal;
    if (positive) {
      x = ops::Binary(context, BinaryOp::kAdd, ops::Unary(context, ElementwiseOp::kAbs, x), 0.1);
    }
    const Tensor grad = RandomTensor(context, {5, 7}, DType::kF64, 19);
    const std::vector<double> weights = Values(grad);
    const std::vector<double> expected = testing::FiniteDifferences(
        x, [&] { return testing::Dot(Values(ops::Unary(context, op, x)), weights); });
    const Tensor y = ops::Unary(context, op, x);
    // What the formula does not read need not be there.
    const Tensor dx =
        testing::UnaryBackward(context, op, grad, (RowOf(op).Reads() & 1u) != 0 ? x : Tensor(),
                               (RowOf(op).Reads() & 2u) != 0 ? y : Tensor());
    EXPECT_LT(testing::WorstRelative(Values(dx), expected), 1e-6) << Name(op);
    // In f32, to its precision.
    const auto narrow = [&](const Tensor& t) { return ops::Cast(context, t, DType::kF32); };
    const Tensor dx32 = testing::UnaryBackward(context, op, narrow(grad), narrow(x), narrow(y));
    EXPECT_LT(testing::WorstRelative(Values(dx32), Values(dx)), 2e-6) << Name(op);
  }
}

TEST(UnaryBackward, KinksHaveGradientZero) {
  ExecutionContext context;
  const Tensor x = MakeTensor(context, {3}, DType::kF32, {0.0, -0.0, 2});
  const Tensor grad = MakeTensor(context, {3}, DType::kF32, {3, 5, 7});
  for (const ElementwiseOp op : {ElementwiseOp::kAbs, ElementwiseOp::kRelu}) {
    const Tensor y = ops::Unary(context, op, x);
    EXPECT_EQ(Values(testing::UnaryBackward(context, op, grad, x, y)),
              (std::vector<double>{0, 0, 7}));
  }
}

TEST(SiluMul, IsSiluTimesAndItsDerivative) {
  ExecutionContext context;
  Tensor gate = RandomTensor(context, {5, 7}, DType::kF64, 20);
  Tensor up = RandomTensor(context, {5, 7}, DType::kF64, 21);
  const Tensor grad = RandomTensor(context, {5, 7}, DType::kF64, 22);
  const Tensor expected =
      ops::Binary(context, BinaryOp::kMul, ops::Unary(context, ElementwiseOp::kSilu, gate), up);
  EXPECT_LT(testing::WorstRelative(Values(testing::SiluMul(context, gate, up)), Values(expected)),
            1e-15);
  const auto loss = [&] {
    return testing::Dot(Values(testing::SiluMul(context, gate, up)), Values(grad));
  };
  const auto [dgate, dup] = testing::SiluMulBackward(context, grad, gate, up);
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
    EXPECT_EQ(ops::Unary(context, ElementwiseOp::kExp, empty).shape(), empty.shape());
    EXPECT_EQ(ops::Binary(context, BinaryOp::kAdd, empty, empty.Transpose(0, 2).Transpose(0, 2))
                  .NumElements(),
              0);
    const Tensor scalar = MakeTensor(context, {}, dtype, {-1.5});
    EXPECT_EQ(ops::Unary(context, ElementwiseOp::kAbs, scalar).Item(), 1.5);
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
  EXPECT_NE(ErrorOf([&] { ops::Unary(context, ElementwiseOp::kExp, a); }), "no error");
}

TEST(InPlace, EveryOpRaisesTheVersionByOneAlsoWithoutElements) {
  // FullyShard and autograd compare versions: ranks whose shard is empty decide as the others do.
  ExecutionContext context;
  ExecutionContext meta(Device::Meta());
  for (ExecutionContext* on : {&context, &meta}) {
    const auto zeros = [&](const Dims& shape, DType dtype = DType::kF32) {
      return ops::Zeros(*on, shape, dtype);
    };
    for (const int64_t rows : {3, 0}) {
      const Tensor like = zeros({rows, 5}), per_row = zeros({rows}), w = zeros({5});
      const RandomBox box{{rows, 5}, {0, 0}};
      Tensor dw = zeros({5}), db = zeros({5});
      const std::vector<std::pair<const char*, std::function<void(Tensor&)>>> all = {
          {"fill", [&](Tensor& out) { ops::Fill(*on, out, 1.0); }},
          {"copy", [&](Tensor& out) { ops::Copy(*on, like, out); }},
          {"add", [&](Tensor& out) { ops::BinaryInto(*on, BinaryOp::kAdd, out, w); }},
          {"mul", [&](Tensor& out) { ops::BinaryInto(*on, BinaryOp::kMul, out, 2.0); }},
          {"accumulate", [&](Tensor& out) { ops::Accumulate(*on, like, out); }},
          {"matmul",
           [&](Tensor& out) {
             ops::MatMulInto(*on, zeros({rows, 2}), zeros({2, 5}), false, out);
           }},
          {"uniform",
           [&](Tensor& out) {
             ops::RandomUniform(*on, {1, 2}, box, 0, 1, out);
           }},
          {"normal",
           [&](Tensor& out) {
             ops::RandomNormal(*on, {1, 2}, box, 0, 1, out);
           }},
          {"embedding",
           [&](Tensor& out) {
             ops::EmbeddingBackward(*on, zeros({4, 5}), zeros({4}, DType::kI64), 0, true, out);
           }},
          {"rms_norm",
           [&](Tensor& out) { ops::RmsNormBackward(*on, like, like, w, per_row, out, false, dw); }},
          {"layer_norm",
           [&](Tensor& out) {
             ops::LayerNormBackward(*on, like, like, w, per_row, per_row, out, false, dw, db);
           }},
      };
      for (const auto& [name, run] : all) {
        Tensor out = zeros({rows, 5});
        EXPECT_EQ(out.storage()->version(), 0) << "a result counts no write";
        run(out);
        EXPECT_EQ(out.storage()->version(), 1) << name << " of " << out.ToString();
      }
      EXPECT_EQ(dw.storage()->version(), 2);
      EXPECT_EQ(db.storage()->version(), 1);
      EXPECT_EQ(like.storage()->version(), 0) << "what is only read";
    }
  }
}

TEST(Pointwise, MetaGivesMeta) {
  ExecutionContext context;
  const Tensor x = Tensor::Meta({3, 5}, DType::kBF16), row = Tensor::Meta({5}, DType::kBF16);
  const Tensor sum = ops::Binary(context, BinaryOp::kAdd, x, row);
  EXPECT_TRUE(sum.device().IsMeta());
  EXPECT_EQ(sum.ToString(), "bf16[3,5]");
  EXPECT_EQ(ops::Compare(context, CompareOp::kLess, x, 0.0).ToString(), "bool[3,5]");
  EXPECT_EQ(testing::SiluMulBackward(context, x, x, x).second.ToString(), "bf16[3,5]");
  EXPECT_EQ(context.allocator()->total().allocations, 0);
}

}  // namespace
}  // namespace shardmesh
