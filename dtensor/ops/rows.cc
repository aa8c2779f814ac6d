// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::CheckRankAtLeast;

namespace {

constexpr Op kSoftmax{"softmax"}, kLogSoftmax{"log_softmax"}, kSoftmaxBackward{"softmax_backward"};
constexpr Op kRmsNorm{"rms_norm"}, kRmsNormBackward{"rms_norm_backward"};
constexpr Op kLayerNorm{"layer_norm"}, kLayerNormBackward{"layer_norm_backward"};

DTensor SoftmaxBackward(const DTensor& grad, const DTensor& y, int dim, bool log) {
  OpCall call(kSoftmaxBackward, {&grad, &y});
  call.Attribute(dim, log).Decide([&] {
    Rule rule = internal::FactorsOf(y.shape(), {dim});
    rule.inputs.push_back(rule.inputs[0]);
    rule.outputs = {rule.inputs[0]};
    rule.linear = {1u};
    return OpRule{std::move(rule), {y.shape()}};
  });
  return call.Result(ops::SoftmaxBackward(call.context(), call.local(0), call.local(1), dim, log));
}

DTensor SoftmaxOver(const Op& op, const DTensor& x, int given, bool log) {
  internal::CheckUsable(op.name, x);
  const int dim = internal::DimOf(op.name, x, given);
  OpCall call(op, {&x});
  call.Attribute(dim).Decide([&] {
    internal::CheckFloating(op.name, x);
    Rule rule = internal::FactorsOf(x.shape(), {dim});
    rule.outputs = {rule.inputs[0]};
    return OpRule{std::move(rule), {x.shape()}};
  });
  DTensor y = call.Result(ops::Softmax(call.context(), call.local(0), dim, log));
  if (!call.Records()) return y;
  call.Record({&y},
              [&op, dim, log, saved = Saved(y)](std::span<const DTensor> grads, Gradients& out) {
                out.Set(0, SoftmaxBackward(grads[0], saved.Get(op.name), dim, log));
              });
  return y;
}

// The rule of a norm over the last dim. Operands and results are 'f': full, like x; 'v': a vector
// over the last dim; 's': a statistic, one number per row.
OpRule NormRule(const char* op, const DTensor& x, std::string_view inputs,
                std::string_view outputs) {
  CheckRankAtLeast(op, x, 1);
  const int last = x.num_dims() - 1;
  Rule rule = internal::FactorsOf(x.shape(), {last});
  const Rule::FactorOfDim full = rule.inputs[0];
  const Rule::FactorOfDim rows(full.begin(), full.end() - 1);
  const Dims row_shape(std::span<const int64_t>(x.shape().begin(), last));
  rule.inputs.clear();
  const auto dims = [&](char kind) {
    return kind == 'f' ? full : kind == 's' ? rows : Rule::FactorOfDim{last};
  };
  OpRule result;
  for (char kind : inputs) rule.inputs.push_back(dims(kind));
  for (char kind : outputs) {
    rule.outputs.push_back(dims(kind));
    result.output_shapes.push_back(kind == 'f'   ? x.shape()
                                   : kind == 's' ? row_shape
                                                 : Dims{x.dim(-1)});
  }
  result.rule = std::move(rule);
  return result;
}

void CheckVector(const char* op, const char* name, const DTensor& x, const DTensor& vector) {
  if (vector.num_dims() != 1 || x.num_dims() < 1 || vector.dim(0) != x.dim(-1)) {
    ThrowInvalid(op, ": expected a ", name, " with the extent of the last dim of ", x.ToString(),
                 ", got ", vector.ToString());
  }
  internal::CheckSameDType(op, x, vector);
}

void RmsNormBackward(const DTensor& grad, const DTensor& x, const DTensor& w,
                     const DTensor& inv_rms, Gradients& out) {
  OpCall call(kRmsNormBackward, {&grad, &x, &w, &inv_rms});
  call.Decide([&] {
    OpRule rule = NormRule(kRmsNormBackward.name, x, "ffvs", "fv");
    rule.rule.linear = {1u};
    return rule;
  });
  Tensor dx;
  if (out.Needs(0))
    dx = Tensor::Empty(call.context(), call.local(1).shape(), call.LocalDType(x.dtype()));
  const auto run = [&](Tensor& dw, bool accumulate) {
    ops::RmsNormBackward(call.context(), call.local(0), call.local(1), call.local(2), call.local(3),
                         dx, accumulate, dw);
  };
  if (out.Needs(1)) {
    out.Write(1, call.mesh(), call.output_layout(1), w.dtype(), run);
  } else {
    Tensor none;
    run(none, false);
  }
  if (dx) out.Set(0, call.Result(std::move(dx), 0));
}

void LayerNormBackward(const DTensor& grad, const DTensor& x, const DTensor& w, const DTensor& mean,
                       const DTensor& inv_std, bool has_bias, Gradients& out) {
  OpCall call(kLayerNormBackward, {&grad, &x, &w, &mean, &inv_std});
  call.Decide([&] {
    OpRule rule = NormRule(kLayerNormBackward.name, x, "ffvss", "fvv");
    rule.rule.linear = {1u};
    return rule;
  });
  Tensor dx;
  if (out.Needs(0))
    dx = Tensor::Empty(call.context(), call.local(1).shape(), call.LocalDType(x.dtype()));
  const auto run = [&](Tensor& first_dx, bool accumulate, Tensor& dw, Tensor& db) {
    ops::LayerNormBackward(call.context(), call.local(0), call.local(1), call.local(2),
                           call.local(3), call.local(4), first_dx, accumulate, dw, db);
  };
  Tensor none;
  const bool wants_bias = has_bias && out.Needs(2);
  if (dx) run(dx, false, none, none);
  // Weight and bias may have different sinks, one of which adds and the other does not.
  if (out.Needs(1)) {
    out.Write(1, call.mesh(), call.output_layout(1), w.dtype(),
              [&](Tensor& dw, bool accumulate) { run(none, accumulate, dw, none); });
  }
  if (wants_bias) {
    out.Write(2, call.mesh(), call.output_layout(2), w.dtype(),
              [&](Tensor& db, bool accumulate) { run(none, accumulate, none, db); });
  }
  if (dx) out.Set(0, call.Result(std::move(dx), 0));
}

}  // namespace

DTensor Softmax(const DTensor& x, int dim) { return SoftmaxOver(kSoftmax, x, dim, /*log=*/false); }
DTensor LogSoftmax(const DTensor& x, int dim) {
  return SoftmaxOver(kLogSoftmax, x, dim, /*log=*/true);
}

DTensor RmsNorm(const DTensor& x, const DTensor& weight, double eps) {
  OpCall call(kRmsNorm, {&x, &weight});
  call.Decide([&] {
    CheckVector(kRmsNorm.name, "weight", x, weight);
    return NormRule(kRmsNorm.name, x, "fv", "fs");
  });
  ops::NormResult result = ops::RmsNorm(call.context(), call.local(0), call.local(1), eps);
  DTensor y = call.Result(std::move(result.y), 0);
  if (!call.Records()) return y;
  DTensor inv_rms = call.Result(std::move(result.inv_std), 1);
  call.Record(
      {&y}, [sx = Saved(call.input(0)), sw = Saved(call.input(1)), sr = Saved(std::move(inv_rms))](
                std::span<const DTensor> grads, Gradients& out) {
        RmsNormBackward(grads[0], sx.Get(kRmsNorm.name), sw.Get(kRmsNorm.name),
                        sr.Get(kRmsNorm.name), out);
      });
  return y;
}

DTensor LayerNorm(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps) {
  const DTensor* operands[] = {&x, &weight, &bias};
  OpCall call(kLayerNorm, std::span<const DTensor* const>(operands, bias ? 3 : 2));
  call.Decide([&] {
    CheckVector(kLayerNorm.name, "weight", x, weight);
    if (bias) CheckVector(kLayerNorm.name, "bias", x, bias);
    return NormRule(kLayerNorm.name, x, bias ? "fvv" : "fv", "fss");
  });
  ops::NormResult result = ops::LayerNorm(call.context(), call.local(0), call.local(1),
                                          bias ? call.local(2) : Tensor(), eps);
  DTensor y = call.Result(std::move(result.y), 0);
  if (!call.Records()) return y;
  DTensor mean = call.Result(std::move(result.mean), 1);
  DTensor inv_std = call.Result(std::move(result.inv_std), 2);
  call.Record({&y},
              [sx = Saved(call.input(0)), sw = Saved(call.input(1)), sm = Saved(std::move(mean)),
               si = Saved(std::move(inv_std)),
               has_bias = static_cast<bool>(bias)](std::span<const DTensor> grads, Gradients& out) {
                LayerNormBackward(grads[0], sx.Get(kLayerNorm.name), sw.Get(kLayerNorm.name),
                                  sm.Get(kLayerNorm.name), si.Get(kLayerNorm.name), has_bias, out);
              });
  return y;
}

}  // namespace shardmesh
