// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/checkpoint_frame.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::CheckRankAtLeast;

namespace {

constexpr Op kMatMul{"matmul"}, kLinear{"linear"};
constexpr Op kLinearInput{"linear_backward_input"}, kLinearWeight{"linear_backward_weight"};

// "b.. k, n k -> b.. n": the batch dims of `x`, then its last dim, which is one of the weight's.
OpRule LinearRule(const char* op, const DTensor& x, const DTensor& weight, int contracted) {
  CheckRankAtLeast(op, x, 1);
  if (weight.num_dims() != 2)
    ThrowInvalid(op, ": expected a weight of 2 dims, got ", weight.ToString());
  if (x.dim(-1) != weight.dim(contracted)) {
    ThrowInvalid(op, ": the last dim of ", x.ToString(), " is not dim ", contracted,
                 " of the weight ", weight.ToString());
  }
  Rule rule = internal::FactorsOf(x.shape());  // The last factor is the contracted one.
  const int other = static_cast<int>(rule.factors.size());
  rule.factors.push_back({"other", false, {}});
  const int k = x.num_dims() - 1;
  rule.inputs.push_back(contracted == 1 ? Rule::FactorOfDim{other, k}
                                        : Rule::FactorOfDim{k, other});
  rule.outputs = {rule.inputs[0]};
  rule.outputs[0].back() = other;
  rule.linear = {1u, 2u};
  Dims shape = x.shape();
  shape[k] = weight.dim(1 - contracted);
  return {std::move(rule), {shape}};
}

// x [.., k] times the matrix [k, n], written in `dtype`; x may be one row without batch dims.
Tensor TimesMatrix(ExecutionContext& context, const Tensor& x, const Tensor& matrix, DType dtype) {
  if (x.num_dims() > 1) return ops::MatMul(context, x, matrix, dtype);
  return ops::MatMul(context, x.Unsqueeze(0), matrix, dtype).Squeeze(0);
}

// grad [.., n] x weight [n, k] -> [.., k].
DTensor LinearBackwardInput(const DTensor& grad, const DTensor& weight) {
  OpCall call(kLinearInput, {&grad, &weight});
  call.Decide([&] { return LinearRule(kLinearInput.name, grad, weight, /*contracted=*/0); });
  return call.ResultOf(grad.dtype(), TimesMatrix(call.context(), call.local(0), call.local(1),
                                                 call.LocalDType(grad.dtype())));
}

Tensor AsMatrix(ExecutionContext& context, const Tensor& x) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.num_dims(); ++d) rows *= x.dim(d);
  return ops::Reshape(context, x, {rows, x.dim(-1)});
}

// Sum over the batch dims of left [.., n] and right [.., k] -> [n, k].
void WriteOuterSum(Gradients& out, int operand, const DTensor& left, const DTensor& right) {
  OpCall call(kLinearWeight, {&left, &right});
  call.Decide([&] {
    Rule rule = internal::FactorsOf(left.shape());
    const int n = left.num_dims() - 1;
    const int k = static_cast<int>(rule.factors.size());
    rule.factors.push_back({"k", false, {}});
    rule.inputs.push_back(rule.inputs[0]);
    rule.inputs[1].back() = k;
    rule.outputs = {{n, k}};
    rule.linear = {1u, 2u};
    return OpRule{std::move(rule), {{left.dim(-1), right.dim(-1)}}};
  });
  const Tensor n = AsMatrix(call.context(), call.local(0)).Transpose(0, 1);
  const Tensor k = AsMatrix(call.context(), call.local(1));
  out.Write(operand, call.mesh(), call.output_layout(), left.dtype(),
            [&](Tensor& target, bool accumulate) {
              ops::MatMulInto(call.context(), n, k, accumulate, target);
            });
}

OpRule MatMulRule(const DTensor& a, const DTensor& b) {
  CheckRankAtLeast(kMatMul.name, a, 2);
  CheckRankAtLeast(kMatMul.name, b, 2);
  if (a.dim(-1) != b.dim(-2)) {
    ThrowInvalid(kMatMul.name, ": the last dim of ", a.ToString(), " is not the next to last of ",
                 b.ToString());
  }
  Dims batch_a(std::span<const int64_t>(a.shape().begin(), a.num_dims() - 2));
  Dims batch_b(std::span<const int64_t>(b.shape().begin(), b.num_dims() - 2));
  Dims shape = BroadcastShapes(batch_a, batch_b, kMatMul.name);
  const int batch = shape.size();
  Rule rule = internal::FactorsOf(shape);
  rule.inputs.clear();
  for (const char* name : {"m", "k", "n"}) rule.factors.push_back({name, false, {}});
  const int m = batch, k = batch + 1, n = batch + 2;
  const auto dims = [&](const Dims& own, int row, int column) {
    Rule::FactorOfDim factors;
    const int lead = batch - own.size();
    for (int d = 0; d < own.size(); ++d) {
      factors.push_back(own[d] == shape[lead + d] ? lead + d : Rule::kNotShardable);
    }
    factors.push_back(row);
    factors.push_back(column);
    return factors;
  };
  rule.inputs = {dims(batch_a, m, k), dims(batch_b, k, n)};
  rule.outputs = {dims(shape, m, n)};
  rule.linear = {1u, 2u};
  shape.push_back(a.dim(-2));
  shape.push_back(b.dim(-1));
  return {std::move(rule), {shape}};
}

// A vector is a row on the left and a column on the right, of which the other dim goes again.
DTensor VectorMatMul(const DTensor& a, const DTensor& b) {
  const bool is_row = a.num_dims() == 1, is_column = b.num_dims() == 1;
  DTensor y = MatMul(is_row ? Unsqueeze(a, 0) : a, is_column ? Unsqueeze(b, 1) : b);
  if (is_column) y = Squeeze(y, {-1});
  return is_row ? Squeeze(y, {is_column ? -1 : -2}) : y;
}

}  // namespace

DTensor MatMul(const DTensor& a, const DTensor& b) {
  if ((a && a.num_dims() == 1) || (b && b.num_dims() == 1)) return VectorMatMul(a, b);
  if (internal::IsKept(kMatMul.name, a)) return internal::Kept(a, [&] { return MatMul(a, b); });
  OpCall call(kMatMul, {&a, &b});
  call.Decide([&] {
    internal::CheckSameDType(kMatMul.name, a, b);
    return MatMulRule(a, b);
  });
  DTensor y = call.ResultOf(a.dtype(), ops::MatMul(call.context(), call.local(0), call.local(1),
                                                   call.LocalDType(a.dtype())));
  if (!call.Records()) return y;
  call.Record({&y}, [sa = Saved(call.input(0)), sb = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor x = sa.Get(kMatMul.name), w = sb.Get(kMatMul.name);
    if (out.Needs(0)) {
      internal::WriteSumTo(out, 0, MatMul(grads[0], Transpose(w, -2, -1)), x.shape());
    }
    if (!out.Needs(1)) return;
    if (w.num_dims() == 2) {
      WriteOuterSum(out, 1, x, grads[0]);
    } else {
      internal::WriteSumTo(out, 1, MatMul(Transpose(x, -2, -1), grads[0]), w.shape());
    }
  });
  return y;
}

DTensor Linear(const DTensor& x, const DTensor& weight, const DTensor& bias) {
  if (internal::IsKept(kLinear.name, x))
    return internal::Kept(x, [&] { return Linear(x, weight, bias); });
  OpCall call(kLinear, {&x, &weight});
  call.Decide([&] {
    internal::CheckSameDType(kLinear.name, x, weight);
    return LinearRule(kLinear.name, x, weight, /*contracted=*/1);
  });
  if (bias && !(bias.shape() == Dims{weight.dim(0)})) {
    ThrowInvalid("linear: expected a bias [", weight.dim(0), "] for the weight ", weight.ToString(),
                 ", got ", bias.ToString());
  }
  DTensor y = call.ResultOf(
      x.dtype(), TimesMatrix(call.context(), call.local(0), call.local(1).Transpose(0, 1),
                             call.LocalDType(x.dtype())));
  if (call.Records()) {
    call.Record({&y}, [sx = Saved(call.input(0)), sw = Saved(call.input(1))](
                          std::span<const DTensor> grads, Gradients& out) {
      if (out.Needs(0)) out.Set(0, LinearBackwardInput(grads[0], sw.Get(kLinear.name)));
      if (out.Needs(1)) WriteOuterSum(out, 1, grads[0], sx.Get(kLinear.name));
    });
  }
  return bias ? Add(y, bias) : y;
}

}  // namespace shardmesh
