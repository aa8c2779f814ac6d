// SPDX-License-Identifier: Apache-2.0
//
// The rows of tensor/elementwise_ops.inc on DTensors: rule, kernel and backward are the same for
// all of them.
#include <array>
#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::WriteSumTo;

namespace {

constexpr int kMaxOperands = 3;
using OperandPointers = std::span<const DTensor* const>;
using LocalPointers = absl::InlinedVector<const Tensor*, 5>;

// The ops of a row.
struct RowOps {
  Op value, backward;
};
constexpr RowOps kOps[] = {
#define SHARDMESH_UNARY(Function, name, ...) {{#name}, {#name "_backward"}},
#define SHARDMESH_UNARY_WITH(Function, name, ...) {{#name}, {#name "_backward"}},
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_BINARY(Function, name, ...) {{#name}, {#name "_backward"}},
#define SHARDMESH_BINARY_WITH(Function, name, ...) {{#name}, {#name "_backward"}},
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_TERNARY(Function, name, ...) {{#name}, {#name "_backward"}},
#define SHARDMESH_TERNARY_WITH(Function, name, ...) {{#name}, {#name "_backward"}},
#include "shardmesh/tensor/elementwise_ops.inc"
};

const RowOps& OpsOf(ElementwiseOp op) { return kOps[static_cast<int>(op)]; }

OpRule RuleOf(const ElementwiseRow& row, OperandPointers operands) {
  OpRule op_rule = internal::ElementwiseRule(row.name, operands);
  Rule& rule = op_rule.rule;
  if (row.Has(elementwise::kLinearA)) rule.Pass(ReduceOp::kSum, 1u);
  if (row.Has(elementwise::kLinearB)) rule.Pass(ReduceOp::kSum, 2u);
  if (row.Has(elementwise::kLinearAB)) rule.Pass(ReduceOp::kSum, 3u);
  if (row.Has(elementwise::kRising)) rule.Pass(ReduceOp::kMax, 1u).Pass(ReduceOp::kMin, 1u);
  if (row.Has(elementwise::kFalling) && IsFloating(operands[0]->dtype())) {
    rule.Pass(ReduceOp::kMax, ReduceOp::kMin, 1u).Pass(ReduceOp::kMin, ReduceOp::kMax, 1u);
  }
  return op_rule;
}

// The kernel's own checks, on no elements: before anything moves.
void CheckDTypes(ElementwiseOp op, ExecutionContext& context, OperandPointers operands,
                 const ElementwiseParams& params) {
  const ElementwiseRow& row = RowOf(op);
  for (const DTensor* operand : operands)
    internal::CheckSameDType(row.name, *operands[0], *operand);
  const Tensor none = Tensor::Empty(context, {0}, operands[0]->dtype());
  LocalPointers locals(operands.size(), &none);
  ops::Elementwise(context, op, {locals.data(), locals.size()}, params);
}

// Operand 0 is the upstream gradient, in which every gradient is linear; then what the row reads.
class GradientCall {
 public:
  GradientCall(ElementwiseOp op, int operand, int results, OperandPointers operands)
      : call_(OpsOf(op).backward, operands) {
    call_.Attribute(operand, results).Decide([&] {
      OpRule rule = internal::ElementwiseRule(OpsOf(op).backward.name, operands, {1u});
      for (int i = 1; i < results; ++i) {
        rule.rule.outputs.push_back(rule.rule.outputs[0]);
        rule.output_shapes.push_back(rule.output_shapes[0]);
      }
      return rule;
    });
    for (size_t i = 1; i < operands.size(); ++i)
      reads_.push_back(&call_.local(static_cast<int>(i)));
  }
  const OpCall& call() const { return call_; }
  std::span<const Tensor* const> reads() const { return {reads_.data(), reads_.size()}; }

 private:
  OpCall call_;
  LocalPointers reads_;
};

DTensor Gradient(ElementwiseOp op, int operand, OperandPointers operands,
                 const ElementwiseParams& params) {
  const GradientCall gradient(op, operand, /*results=*/1, operands);
  const OpCall& call = gradient.call();
  return call.Result(ops::ElementwiseGradient(call.context(), op, operand, call.local(0),
                                              gradient.reads(), params));
}

void BothGradients(ElementwiseOp op, OperandPointers operands, const ElementwiseParams& params,
                   Gradients& out) {
  const GradientCall gradient(op, /*operand=*/0, /*results=*/2, operands);
  const OpCall& call = gradient.call();
  auto [da, db] =
      ops::ElementwiseGradients(call.context(), op, call.local(0), gradient.reads(), params);
  out.Set(0, call.Result(std::move(da), 0));
  out.Set(1, call.Result(std::move(db), 1));
}

double LargestFinite(const char* op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::numeric_limits<float>::max();
    case DType::kF64:
      return std::numeric_limits<double>::max();
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF16:
      return 65504;
    default:
      ThrowNotFloating(dtype, op);
  }
}

// What backward needs of a call.
struct Recorded {
  ElementwiseOp op;
  ElementwiseParams params;
  std::array<Dims, kMaxOperands> shapes;
  absl::InlinedVector<Saved, 3> saved;

  void Differentiate(const DTensor& grad, Gradients& out) const {
    const ElementwiseRow& row = RowOf(op);
    absl::InlinedVector<DTensor, 4> values;
    for (const Saved& value : saved) values.push_back(value.Get(row.name));
    absl::InlinedVector<const DTensor*, 5> operands = {&grad};
    for (const DTensor& value : values) operands.push_back(&value);
    const OperandPointers all(operands.data(), operands.size());
    if (row.Has(elementwise::kFused) && out.Needs(0) && out.Needs(1) && shapes[0] == shapes[1])
      return BothGradients(op, all, params, out);
    for (int i = 0; i < row.arity; ++i) {
      if (((row.differentiable >> i) & 1u) == 0 || !out.Needs(i)) continue;
      WriteSumTo(out, i, Gradient(op, i, all, params), shapes[i]);
    }
  }
};

DTensor Apply(ElementwiseOp op, OperandPointers operands, const ElementwiseParams& params = {}) {
  const ElementwiseRow& row = RowOf(op);
  OpCall call(OpsOf(op).value, operands);
  call.Decide([&] {
    CheckDTypes(op, call.context(), operands, params);
    return RuleOf(row, operands);
  });
  LocalPointers locals;
  for (int i = 0; i < row.arity; ++i) locals.push_back(&call.local(i));
  DTensor y =
      call.Result(ops::Elementwise(call.context(), op, {locals.data(), locals.size()}, params));
  if (row.differentiable == 0 || !IsFloating(y.dtype()) || !call.Records()) return y;
  Recorded recorded = {op, params, {}, {}};
  for (int i = 0; i < row.arity; ++i) {
    recorded.shapes[i] = operands[i]->shape();
    if (((row.Reads() >> i) & 1u) != 0) recorded.saved.push_back(Saved(call.input(i)));
  }
  if (row.Has(elementwise::kReadsResult)) recorded.saved.push_back(Saved(y));
  call.Record({&y},
              [recorded = std::move(recorded)](std::span<const DTensor> grads, Gradients& out) {
                recorded.Differentiate(grads[0], out);
              });
  return y;
}

DTensor Apply(ElementwiseOp op, std::initializer_list<const DTensor*> operands,
              const ElementwiseParams& params = {}) {
  return Apply(op, OperandPointers(operands.begin(), operands.size()), params);
}

}  // namespace

#define SHARDMESH_UNARY(Function, ...) \
  DTensor Function(const DTensor& x) { return Apply(ElementwiseOp::k##Function, {&x}); }
#define SHARDMESH_BINARY(Function, ...)                  \
  DTensor Function(const DTensor& a, const DTensor& b) { \
    return Apply(ElementwiseOp::k##Function, {&a, &b});  \
  }
#define SHARDMESH_TERNARY(Function, ...)                                   \
  DTensor Function(const DTensor& a, const DTensor& b, const DTensor& c) { \
    return Apply(ElementwiseOp::k##Function, {&a, &b, &c});                \
  }
#include "shardmesh/tensor/elementwise_ops.inc"

// ---- rows with parameters -----------------------------------------------------------------------

DTensor Div(double a, const DTensor& b) { return Apply(ElementwiseOp::kNumberOver, {&b}, {a}); }
DTensor Round(const DTensor& x, int decimals) {
  if (decimals == 0) return Round(x);
  return Apply(ElementwiseOp::kRoundDecimals, {&x}, {static_cast<double>(decimals)});
}
DTensor NanToNum(const DTensor& x, double nan, std::optional<double> infinity,
                 std::optional<double> minus_infinity) {
  internal::CheckUsable("nan_to_num", x);
  const double largest = LargestFinite("nan_to_num", x.dtype());
  return Apply(ElementwiseOp::kNanToNum, {&x},
               {nan, infinity.value_or(largest), minus_infinity.value_or(-largest)});
}
DTensor Clamp(const DTensor& x, double low, double high) {
  return Apply(ElementwiseOp::kClampScalar, {&x}, {low, high});
}
DTensor Pow(const DTensor& x, double exponent) {
  return exponent == 2 ? Square(x) : Apply(ElementwiseOp::kPowScalar, {&x}, {exponent});
}
DTensor Logit(const DTensor& x, std::optional<double> eps) {
  return Apply(ElementwiseOp::kLogit, {&x}, {eps.value_or(-1)});
}
DTensor LeakyRelu(const DTensor& x, double slope) {
  return Apply(ElementwiseOp::kLeakyRelu, {&x}, {slope});
}
DTensor Elu(const DTensor& x, double alpha) {
  return Apply(ElementwiseOp::kElu, {&x}, {alpha, 1, 1});
}
DTensor Celu(const DTensor& x, double alpha) {
  return Apply(ElementwiseOp::kElu, {&x}, {alpha, 1, 1 / alpha});
}
DTensor Selu(const DTensor& x) {
  // The fixed point of mean 0 and variance 1 (Klambauer et al., 2017).
  return Apply(ElementwiseOp::kElu, {&x}, {1.6732632423543772, 1.0507009873554805, 1});
}
DTensor HardTanh(const DTensor& x, double low, double high) {
  return Apply(ElementwiseOp::kHardTanh, {&x}, {low, high});
}
DTensor HardShrink(const DTensor& x, double lambda) {
  return Apply(ElementwiseOp::kHardShrink, {&x}, {lambda});
}
DTensor SoftShrink(const DTensor& x, double lambda) {
  if (!(lambda >= 0)) ThrowInvalid("soft_shrink: expected lambda >= 0, got ", lambda);
  return Apply(ElementwiseOp::kSoftShrink, {&x}, {lambda});
}
DTensor Softplus(const DTensor& x, double beta, double threshold) {
  return Apply(ElementwiseOp::kSoftplus, {&x}, {beta, threshold});
}
DTensor Threshold(const DTensor& x, double threshold, double value) {
  return Apply(ElementwiseOp::kThreshold, {&x}, {threshold, value});
}
DTensor Lerp(const DTensor& a, const DTensor& b, double weight) {
  // Summands of either sign times an infinity would be infinities whose sum is nan.
  if (!std::isfinite(weight)) return Add(a, Mul(Sub(b, a), weight));
  return Apply(ElementwiseOp::kLerpScalar, {&a, &b}, {weight});
}
DTensor IsClose(const DTensor& a, const DTensor& b, double relative, double absolute,
                bool equal_nan) {
  return Apply(ElementwiseOp::kIsClose, {&a, &b}, {relative, absolute, equal_nan ? 1.0 : 0.0});
}
DTensor AddCMul(const DTensor& a, const DTensor& b, const DTensor& c, double value) {
  return Apply(ElementwiseOp::kAddCMul, {&a, &b, &c}, {value});
}
DTensor AddCDiv(const DTensor& a, const DTensor& b, const DTensor& c, double value) {
  return Apply(ElementwiseOp::kAddCDiv, {&a, &b, &c}, {value});
}
DTensor SmoothL1Error(const DTensor& x, const DTensor& target, double beta) {
  return Apply(ElementwiseOp::kSmoothL1Error, {&x, &target}, {beta});
}
DTensor HuberError(const DTensor& x, const DTensor& target, double delta) {
  return Apply(ElementwiseOp::kHuberError, {&x, &target}, {delta});
}
DTensor HingeEmbeddingError(const DTensor& x, const DTensor& target, double margin) {
  return Apply(ElementwiseOp::kHingeEmbeddingError, {&x, &target}, {margin});
}
DTensor KlDivError(const DTensor& x, const DTensor& target, bool log_target) {
  return Apply(ElementwiseOp::kKlDivError, {&x, &target}, {log_target ? 1.0 : 0.0});
}
DTensor PoissonNllError(const DTensor& x, const DTensor& target, bool log_input, bool full,
                        double eps) {
  return Apply(ElementwiseOp::kPoissonNllError, {&x, &target},
               {log_input ? 1.0 : 0.0, full ? 1.0 : 0.0, eps});
}
DTensor MarginRankingError(const DTensor& a, const DTensor& b, const DTensor& target,
                           double margin) {
  return Apply(ElementwiseOp::kMarginRankingError, {&a, &b, &target}, {margin});
}
DTensor GaussianNllError(const DTensor& x, const DTensor& target, const DTensor& variance,
                         bool full, double eps) {
  return Apply(ElementwiseOp::kGaussianNllError, {&x, &target, &variance}, {full ? 1.0 : 0.0, eps});
}

}  // namespace shardmesh
