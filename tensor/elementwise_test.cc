// SPDX-License-Identifier: Apache-2.0
//
// Every row of elementwise_ops.inc: its gradients are the derivatives of its value, what it does to
// one element depends on that element alone, and dtypes are checked.
#include "shardmesh/tensor/elementwise.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/pointwise_reference.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::ErrorOf;
using testing::MakeTensor;
using testing::Values;

ElementwiseParams ParamsOf(ElementwiseOp op) {
  static const std::map<ElementwiseOp, ElementwiseParams> params = {
      {ElementwiseOp::kRoundDecimals, {1}},
      {ElementwiseOp::kNanToNum, {1, 2, 3}},
      {ElementwiseOp::kClampScalar, {-1.1, 1.3}},
      {ElementwiseOp::kNumberOver, {-2.5}},
      {ElementwiseOp::kPowScalar, {3}},
      {ElementwiseOp::kLogit, {0.05}},
      {ElementwiseOp::kLeakyRelu, {0.1}},
      {ElementwiseOp::kElu, {0.7, 1.1, 0.9}},
      {ElementwiseOp::kHardTanh, {-1.1, 1.3}},
      {ElementwiseOp::kHardShrink, {0.61}},
      {ElementwiseOp::kSoftShrink, {0.61}},
      {ElementwiseOp::kSoftplus, {1.5, 2.01}},
      {ElementwiseOp::kThreshold, {0.3, -5}},
      {ElementwiseOp::kLerpScalar, {0.3}},
      {ElementwiseOp::kIsClose, {0.1, 0.1}},
      {ElementwiseOp::kAddCMul, {-0.7}},
      {ElementwiseOp::kAddCDiv, {-0.7}},
      {ElementwiseOp::kSmoothL1Error, {0.9}},
      {ElementwiseOp::kHuberError, {0.9}},
      {ElementwiseOp::kHingeEmbeddingError, {1.5}},
      {ElementwiseOp::kKlDivError, {0}},
      {ElementwiseOp::kPoissonNllError, {0, 1, 1e-3}},
      {ElementwiseOp::kMarginRankingError, {0.2}},
      {ElementwiseOp::kGaussianNllError, {1, 1e-3}},
  };
  const auto found = params.find(op);
  EXPECT_EQ(found != params.end(), RowOf(op).has_params) << Name(op);
  return found == params.end() ? ElementwiseParams{} : found->second;
}

// Within the row's domain, of either sign where that has any.
Tensor OperandOf(ExecutionContext& context, const ElementwiseRow& row, const Dims& shape,
                 DType dtype, uint64_t seed) {
  std::vector<double> values = testing::RandomValues(shape.NumElements(), seed);  // In [-1, 1).
  for (double& x : values) {
    const bool is_positive = row.Has(elementwise::kPositive);
    if (row.Has(elementwise::kIntegers) || !IsFloating(dtype)) {
      x = dtype == DType::kBool ? x > 0 : std::round(x * 9) + (x < 0 ? -1 : 1);
    } else if (row.Has(elementwise::kAboveOne)) {
      x = 2.5 + x;
    } else if (row.Has(elementwise::kUnit)) {
      x = is_positive || row.has_params || row.arity == 2 ? 0.5 + 0.45 * x : 0.95 * x;
    } else {
      x = is_positive ? 2.25 + 2 * x : 2.5 * x + (x < 0 ? -0.01 : 0.01);
    }
  }
  return MakeTensor(context, shape, dtype, values);
}

std::vector<const Tensor*> Pointers(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& x : tensors) pointers.push_back(&x);
  return pointers;
}

std::vector<Tensor> OperandsOf(ExecutionContext& context, ElementwiseOp op, const Dims& shape,
                               DType dtype) {
  std::vector<Tensor> operands;
  const ElementwiseRow& row = RowOf(op);
  for (int i = 0; i < row.arity; ++i)
    operands.push_back(OperandOf(context, row, shape, dtype, 40 + static_cast<uint64_t>(i)));
  return operands;
}

std::vector<const Tensor*> ReadsOf(ElementwiseOp op, const std::vector<Tensor>& operands,
                                   const Tensor& y) {
  std::vector<const Tensor*> reads;
  const ElementwiseRow& row = RowOf(op);
  for (int i = 0; i < row.arity; ++i) {
    if (((row.Reads() >> i) & 1u) != 0) reads.push_back(&operands[static_cast<size_t>(i)]);
  }
  if (row.Has(elementwise::kReadsResult)) reads.push_back(&y);
  return reads;
}

template <typename F>
void ForEachOp(const F& fn) {
  for (int i = 0; i < NumElementwiseOps(); ++i) {
    const auto op = static_cast<ElementwiseOp>(i);
    SCOPED_TRACE(std::string(Name(op)));
    fn(op, RowOf(op));
  }
}

TEST(ElementwiseRows, GradientsAreDerivatives) {
  ExecutionContext context;
  ForEachOp([&](ElementwiseOp op, const ElementwiseRow& row) {
    if (row.differentiable == 0) return;
    const ElementwiseParams params = ParamsOf(op);
    std::vector<Tensor> operands = OperandsOf(context, op, {5, 7}, DType::kF64);
    const Tensor grad = testing::RandomTensor(context, {5, 7}, DType::kF64, 51);
    const auto value = [&] {
      return Values(ops::Elementwise(context, op, Pointers(operands), params));
    };
    const Tensor y = ops::Elementwise(context, op, Pointers(operands), params);
    for (int i = 0; i < row.arity; ++i) {
      if (((row.differentiable >> i) & 1u) == 0) continue;
      SCOPED_TRACE(i);
      // Rounding has steps; nothing happens between them.
      const std::vector<double> expected = testing::FiniteDifferences(
          operands[static_cast<size_t>(i)], [&] { return testing::Dot(value(), Values(grad)); });
      const Tensor dx =
          ops::ElementwiseGradient(context, op, i, grad, ReadsOf(op, operands, y), params);
      EXPECT_LT(testing::WorstRelative(Values(dx), expected), 2e-6);
      if (!row.Has(elementwise::kFused)) continue;
      const auto both =
          ops::ElementwiseGradients(context, op, grad, ReadsOf(op, operands, y), params);
      EXPECT_EQ(Bits(i == 0 ? both.first : both.second), Bits(dx));
    }
  });
}

// The sizes are those of a vector and its tail.
TEST(ElementwiseRows, EachElementIsTheSameWhateverItsNeighboursAndStrides) {
  ExecutionContext context;
  ForEachOp([&](ElementwiseOp op, const ElementwiseRow& row) {
    for (const DType dtype : testing::kAll) {
      const bool is_integer = dtype == DType::kI32 || dtype == DType::kI64;
      const bool takes = dtype == DType::kBool ? row.Has(elementwise::kBools)
                         : is_integer ? row.Has(elementwise::kIntegers | elementwise::kNumbers)
                                      : !row.Has(elementwise::kIntegers);
      const std::vector<Tensor> operands = OperandsOf(context, op, {3, 67}, dtype);
      const ElementwiseParams params = ParamsOf(op);
      if (!takes) {
        EXPECT_NE(ErrorOf([&] {
                    ops::Elementwise(context, op, Pointers(operands), params);
                  }).find(row.name),
                  std::string::npos)
            << dtype;
        continue;
      }
      const Tensor all = ops::Elementwise(context, op, Pointers(operands), params);
      EXPECT_EQ(all.dtype(), row.Has(elementwise::kBoolResult) ? DType::kBool : dtype);
      for (const int64_t n : {1, 3, 17, 66}) {
        std::vector<Tensor> parts;
        for (const Tensor& x : operands) parts.push_back(x.Narrow(1, 67 - n, n));
        EXPECT_EQ(Bits(ops::Elementwise(context, op, Pointers(parts), params)),
                  Bits(all.Narrow(1, 67 - n, n)))
            << dtype << " " << n;
      }
      // The first operand broadcasts.
      if (row.arity == 1) continue;
      std::vector<Tensor> wide = operands;
      wide[0] = operands[0].Narrow(0, 1, 1);
      const Tensor expected = ops::Elementwise(context, op, Pointers(wide), params);
      wide[0] = ops::Clone(context, wide[0].Expand({3, 67}));
      EXPECT_EQ(Bits(ops::Elementwise(context, op, Pointers(wide), params)), Bits(expected));
    }
  });
}

TEST(ElementwiseRows, RefuseWhatDoesNotFit) {
  ExecutionContext context;
  const Tensor x = MakeTensor(context, {3}, DType::kI64, {7, -7, 3});
  const Tensor zeros = MakeTensor(context, {3}, DType::kI64, {2, 0, 1});
  EXPECT_EQ(ErrorOf([&] {
              ops::Elementwise(context, ElementwiseOp::kRemainder, {&x, &zeros});
            }),
            "remainder: an integer is divided by 0 in i64[3]");
  const Tensor floats = MakeTensor(context, {3}, DType::kF32, {7, -7, 3});
  EXPECT_EQ(ErrorOf([&] {
              ops::Elementwise(context, ElementwiseOp::kHypot, {&floats, &x});
            }),
            "hypot: f32[3] and i64[3] differ in dtype; cast one of them");
  EXPECT_EQ(ErrorOf([&] {
              ops::Elementwise(context, ElementwiseOp::kGcd, {&floats, &floats});
            }),
            "gcd: needs an integer dtype, got f32");
}

TEST(ElementwiseRows, DivideIntegersAsPythonDoes) {
  ExecutionContext context;
  const auto low = static_cast<double>(std::numeric_limits<int32_t>::min());
  const Tensor a = MakeTensor(context, {6}, DType::kI32, {7, -7, 7, -7, 6, low});
  const Tensor b = MakeTensor(context, {6}, DType::kI32, {3, 3, -3, -3, 3, -1});
  const auto values = [&](ElementwiseOp op) {
    return Values(ops::Elementwise(context, op, {&a, &b}));
  };
  EXPECT_EQ(values(ElementwiseOp::kFloorDivide), (std::vector<double>{2, -3, -3, 2, 2, low}));
  EXPECT_EQ(values(ElementwiseOp::kTruncDivide), (std::vector<double>{2, -2, -2, 2, 2, low}));
  EXPECT_EQ(values(ElementwiseOp::kRemainder), (std::vector<double>{1, 2, -2, -1, 0, 0}));
  EXPECT_EQ(values(ElementwiseOp::kFMod), (std::vector<double>{1, -1, 1, -1, 0, 0}));
}

// Closed forms and published tables.
TEST(SpecialFunctions, HaveKnownValues) {
  ExecutionContext context;
  const auto at = [&](ElementwiseOp op, double x) {
    const Tensor value = MakeTensor(context, {}, DType::kF64, {x});
    return ops::Elementwise(context, op, {&value}).Item();
  };
  const auto near = [](double actual, double expected) {
    EXPECT_NEAR(actual, expected, 4e-15 * std::fabs(expected)) << expected;
  };
  near(at(ElementwiseOp::kDigamma, 1), -0.57721566490153286061);  // Euler's constant.
  near(at(ElementwiseOp::kDigamma, 0.5), -1.96351002602142347944);
  near(at(ElementwiseOp::kErfcx, 1), 0.42758357615580700442);
  near(at(ElementwiseOp::kErfcx, 0), 1);
  near(at(ElementwiseOp::kErfinv, 0.5), 0.47693627620446987338);
  near(at(ElementwiseOp::kI0, 1), 1.26606587775200833560);
  near(at(ElementwiseOp::kLgamma, 0.5), 0.57236494292470008707);  // log(pi) / 2
  for (const double x : {1e-300, 1e-9, 0.1, 0.49, 0.51, 0.9, 0.999999, 1 - 0x1p-53}) {
    const double y = at(ElementwiseOp::kErfinv, x);
    // Backwards, with the digits that erfc has.
    if (x < 0.9) near(std::erf(y), x);
    EXPECT_NEAR(std::erfc(y), 1 - x, 1e-14 * y * y * (1 - x) + 2e-16) << x;
    EXPECT_EQ(at(ElementwiseOp::kErfinv, -x), -y);
  }
  // Both sides of where the continued fraction begins, and far out: 1 / (x sqrt(pi)).
  near(at(ElementwiseOp::kErfcx, std::nextafter(4.0, 0.0)), at(ElementwiseOp::kErfcx, 4));
  near(at(ElementwiseOp::kErfcx, 1e9), 0.56418958354775628695e-9);
  EXPECT_EQ(at(ElementwiseOp::kErfcx, -30), std::numeric_limits<double>::infinity());
  // By reflection: psi(1 - x) - psi(x) = pi / tan(pi x).
  EXPECT_NEAR(at(ElementwiseOp::kDigamma, 1.3) - at(ElementwiseOp::kDigamma, -0.3),
              std::acos(-1.0) / std::tan(std::acos(-1.0) * -0.3), 1e-14);
  EXPECT_NEAR(at(ElementwiseOp::kLogNdtr, -40), -804.608442013754, 1e-9);
}

}  // namespace
}  // namespace shardmesh
