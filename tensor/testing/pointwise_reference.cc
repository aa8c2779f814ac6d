// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/testing/pointwise_reference.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh::testing {

double Reference(ElementwiseOp op, double x) {
  switch (op) {
    case ElementwiseOp::kNeg:
      return -x;
    case ElementwiseOp::kAbs:
      return std::fabs(x);
    case ElementwiseOp::kExp:
      return std::exp(x);
    case ElementwiseOp::kLog:
      return std::log(x);
    case ElementwiseOp::kSqrt:
      return std::sqrt(x);
    case ElementwiseOp::kRsqrt:
      return 1 / std::sqrt(x);
    case ElementwiseOp::kReciprocal:
      return 1 / x;
    case ElementwiseOp::kTanh:
      return std::tanh(x);
    case ElementwiseOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ElementwiseOp::kSilu:
      return x / (1 + std::exp(-x));
    case ElementwiseOp::kRelu:
      return x < 0 ? 0 : x;
    case ElementwiseOp::kSquare:
      return x * x;
    case ElementwiseOp::kSin:
      return std::sin(x);
    case ElementwiseOp::kCos:
      return std::cos(x);
    default:
      break;
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

Tensor UnaryBackward(ExecutionContext& context, ElementwiseOp op, const Tensor& grad,
                     const Tensor& x, const Tensor& y) {
  std::vector<const Tensor*> reads;
  if ((RowOf(op).Reads() & 1u) != 0) reads.push_back(&x);
  if ((RowOf(op).Reads() & 2u) != 0) reads.push_back(&y);
  return ops::ElementwiseGradient(context, op, 0, grad, reads);
}

Tensor SiluMul(ExecutionContext& context, const Tensor& gate, const Tensor& up) {
  return ops::Elementwise(context, ElementwiseOp::kSiluMul, {&gate, &up});
}

std::pair<Tensor, Tensor> SiluMulBackward(ExecutionContext& context, const Tensor& grad,
                                          const Tensor& gate, const Tensor& up) {
  const Tensor* const reads[] = {&gate, &up};
  return ops::ElementwiseGradients(context, ElementwiseOp::kSiluMul, grad, reads);
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

std::vector<Tensor> Layouts(ExecutionContext& context, const Tensor& x) {
  std::vector<Tensor> layouts = {x};
  std::vector<int> order(x.num_dims());
  for (int i = 0; i < x.num_dims(); ++i) order[i] = i;
  do {
    layouts.push_back(InMemoryOrder(context, x, order));
    if (IsFloating(x.dtype())) layouts.push_back(InMemoryOrder(context, x, order, /*gap=*/3));
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

}  // namespace shardmesh::testing
