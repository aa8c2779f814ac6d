// SPDX-License-Identifier: Apache-2.0
//
// Losses. A mean is a sum over the global count of what was counted, whatever the ranks hold.
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kCrossEntropy{"cross_entropy"}, kCrossEntropyTerms{"cross_entropy_terms"};
constexpr Op kCrossEntropyBackward{"cross_entropy_backward"}, kCounted{"cross_entropy_counted"};

// Logits "b.. v" and any number of tensors "b..".
OpRule RowsRule(const DTensor& logits, int row_operands, int row_results) {
  Rule rule = internal::FactorsOf(logits.shape());
  const Rule::FactorOfDim rows(rule.inputs[0].begin(), rule.inputs[0].end() - 1);
  const Dims shape(std::span<const int64_t>(logits.shape().begin(), logits.num_dims() - 1));
  for (int i = 0; i < row_operands; ++i) rule.inputs.push_back(rows);
  OpRule result{std::move(rule), {}};
  for (int i = 0; i < row_results; ++i) {
    result.rule.outputs.push_back(rows);
    result.output_shapes.push_back(shape);
  }
  return result;
}

void CheckOperands(const DTensor& logits, const DTensor& targets) {
  internal::CheckRankAtLeast(kCrossEntropy.name, logits, 1);
  const Dims rows(std::span<const int64_t>(logits.shape().begin(), logits.num_dims() - 1));
  if (!(targets.shape() == rows)) {
    ThrowInvalid(kCrossEntropy.name, ": targets ", targets.ToString(), " do not have the shape of ",
                 logits.ToString(), " without its last dim");
  }
  if (!IsFloating(logits.dtype()))
    ThrowInvalid(kCrossEntropy.name, ": logits ", logits.ToString(), " are not floating");
  if (targets.dtype() != DType::kI64 && targets.dtype() != DType::kI32) {
    ThrowInvalid(kCrossEntropy.name, ": expected targets of an integer dtype, got ",
                 targets.ToString());
  }
  if (logits.dim(-1) == 0) ThrowInvalid(kCrossEntropy.name, ": no classes in ", logits.ToString());
}

// Per row, of the local classes: the sum of exp(logit - max), and the target's logit - max. Partial
// where the class dim is sharded.
std::pair<DTensor, DTensor> Terms(const DTensor& logits, const DTensor& targets, const DTensor& max,
                                  int64_t ignore_index) {
  OpCall call(kCrossEntropyTerms, {&logits, &targets, &max});
  call.Decide([&] { return RowsRule(logits, /*row_operands=*/2, /*row_results=*/2); });
  ops::CheckIndices(call.context(), kCrossEntropy.name, call.local(1), 0, logits.dim(-1),
                    ignore_index);
  const int64_t first_class = call.InputBox(0).begin[logits.num_dims() - 1];
  ops::CrossEntropyTermsResult terms = ops::CrossEntropyTerms(
      call.context(), call.local(0), call.local(1), first_class, call.local(2));
  return {call.Result(std::move(terms.sum_exp), 0), call.Result(std::move(terms.picked), 1)};
}

// Whether each target counts.
DTensor Counted(const DTensor& targets, int64_t ignore_index) {
  OpCall call(kCounted, {&targets});
  call.Decide([&] {
    const DTensor* operands[] = {&targets};
    return internal::ElementwiseRule(kCounted.name, operands);
  });
  return call.Result(
      ops::CompareInteger(call.context(), CompareOp::kNotEqual, call.local(0), ignore_index));
}

// What the backward keeps. The largest logit and the sum of exponentials stay apart: their
// log-sum-exp would be rounded at the size of the logits.
struct RowSums {
  DTensor max, sum_exp;
};

DTensor LogitsGradient(const DTensor& logits, const DTensor& targets, const RowSums& sums,
                       const DTensor& scale, int64_t ignore_index) {
  OpCall call(kCrossEntropyBackward, {&logits, &targets, &sums.max, &sums.sum_exp, &scale});
  call.Decide([&] {
    OpRule rule = RowsRule(logits, /*row_operands=*/4, /*row_results=*/0);
    rule.rule.outputs = {rule.rule.inputs[0]};
    rule.output_shapes = {logits.shape()};
    rule.rule.linear = {1u << 4};
    return rule;
  });
  const int64_t first_class = call.InputBox(0).begin[logits.num_dims() - 1];
  return call.Result(ops::CrossEntropyBackward(call.context(), call.local(0), call.local(1),
                                               first_class, call.local(2), call.local(3),
                                               call.local(4), ignore_index));
}

// The value without Partial placements: an all-reduce along the axes that shard the classes, also
// where another move would be cheaper for the next op.
DTensor Reduced(const DTensor& x) {
  return internal::MoveTo(x, x.layout().PartialAsReplicate(), kCrossEntropy.name);
}

DType AccumulatorDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

}  // namespace

DTensor CrossEntropy(const DTensor& logits, const DTensor& targets, int64_t ignore_index,
                     LossReduction reduction) {
  internal::CheckUsable(kCrossEntropy.name, logits);
  internal::CheckUsable(kCrossEntropy.name, targets);
  internal::CheckTogether(kCrossEntropy.name, logits, targets);
  CheckOperands(logits, targets);
  Runtime& runtime = Runtime::Of(logits.mesh());
  DTensor loss, count;
  RowSums sums;
  {
    NoGrad no_grad(logits.mesh());
    const DType dtype = AccumulatorDType(logits.dtype());
    sums.max = Cast(Reduced(Max(logits, {-1})), dtype);
    const auto [sum_exp, picked] = Terms(logits, targets, sums.max, ignore_index);
    sums.sum_exp = Reduced(sum_exp);
    const DTensor counted = Counted(targets, ignore_index);
    const DTensor rows = Sub(Log(sums.sum_exp), Reduced(picked));
    const DTensor zero = internal::ScalarOn(logits, dtype, 0);
    loss = Where(counted, rows, zero);
    if (reduction != LossReduction::kNone) loss = Sum(loss);
    if (reduction == LossReduction::kMean) {
      count = Cast(Reduced(Sum(Cast(counted, DType::kI64))), dtype);
      loss = Div(loss, count);
    }
  }
  if (!logits.RequiresGrad() || !runtime.grad_enabled) return loss;
  const DTensor* operands[] = {&logits};
  internal::RecordNode(
      runtime.NextSequence(), kCrossEntropy.name, operands, {&loss},
      [sl = Saved(logits), st = Saved(targets), sm = Saved(sums.max), se = Saved(sums.sum_exp),
       sc = count ? Saved(count) : Saved(), has_count = static_cast<bool>(count),
       rows = sums.max.shape(), ignore_index](std::span<const DTensor> grads, Gradients& out) {
        const char* const op = kCrossEntropy.name;
        const DTensor scale = has_count ? Div(grads[0], sc.Get(op)) : grads[0];
        out.Set(0, LogitsGradient(sl.Get(op), st.Get(op), {sm.Get(op), se.Get(op)},
                                  Expand(scale, rows), ignore_index));
      });
  return loss;
}

DTensor MseLoss(const DTensor& x, const DTensor& target, LossReduction reduction) {
  internal::CheckUsable("mse_loss", x);
  internal::CheckUsable("mse_loss", target);
  if (!(x.shape() == target.shape())) {
    ThrowInvalid("mse_loss: ", x.ToString(), " and target ", target.ToString(), " differ in shape");
  }
  const bool is_small = x.dtype() == DType::kBF16 || x.dtype() == DType::kF16;
  if (is_small && target.dtype() == x.dtype()) {  // The squares of an f16 overflow from 256 on.
    return Cast(MseLoss(Cast(x, DType::kF32), Cast(target, DType::kF32), reduction), x.dtype());
  }
  const DTensor squares = Square(Sub(x, target));
  if (reduction == LossReduction::kNone) return squares;
  return reduction == LossReduction::kMean ? Mean(squares) : Sum(squares);
}

}  // namespace shardmesh
