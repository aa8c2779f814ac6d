// SPDX-License-Identifier: Apache-2.0
//
// Losses of one target class a row.
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/losses.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh {
namespace {

void Check(const char* op, const DTensor& x, const DTensor& target, const DTensor& weight) {
  internal::CheckUsable(op, x);
  internal::CheckUsable(op, target);
  Dims rows = x.shape();
  if (!rows.empty()) rows.erase(rows.size() - 1);
  if (x.num_dims() == 0 || !(rows == target.shape()) || target.dtype() != DType::kI64) {
    ThrowInvalid(op, ": expected x [.., classes] and a target [..] of i64, got ", x.ToString(),
                 " and ", target.ToString());
  }
  if (!weight) return;
  internal::CheckUsable(op, weight);
  if (!(weight.shape() == Dims{x.dim(-1)}) || weight.dtype() != x.dtype()) {
    ThrowInvalid(op, ": expected a weight [", x.dim(-1), "] of x's dtype, got ", weight.ToString(),
                 " for ", x.ToString());
  }
}

DTensor WithColumn(const DTensor& x) {
  Dims shape = x.shape();
  shape.push_back(1);
  return Reshape(x, shape);
}

// Whether each row counts, and its class: 0 where it does not.
struct Targets {
  DTensor counts, classes;
  Targets(const DTensor& target, int64_t ignore_index)
      : counts(Compare(CompareOp::kNotEqual, target, static_cast<double>(ignore_index))),
        classes(Where(counts, target, internal::ScalarLike(target, 0))) {}
};

// The weight of each row's class; 0 for rows that do not count.
DTensor WeightOfRows(const DTensor& x, const Targets& targets, const DTensor& weight) {
  const DTensor zero = internal::ScalarLike(x, 0);
  if (!weight) return Where(targets.counts, internal::ScalarLike(x, 1), zero);
  const DTensor of_class = Take(weight, targets.classes);
  return Where(targets.counts, of_class, zero);
}

DTensor ReducedRows(const DTensor& rows, const DTensor& weights, LossReduction reduction) {
  if (reduction == LossReduction::kNone) return rows;
  const DTensor sum = Sum(rows);
  return reduction == LossReduction::kSum ? sum : Div(sum, Sum(weights));
}

// The element of each row at its class.
DTensor AtClass(const DTensor& x, const DTensor& classes) {
  return Reshape(Gather(x, -1, WithColumn(classes)), classes.shape());
}

}  // namespace

DTensor NllLoss(const DTensor& x, const DTensor& target, const DTensor& weight,
                int64_t ignore_index, LossReduction reduction) {
  Check("nll_loss", x, target, weight);
  if (IsSmall(x.dtype())) {
    const DTensor wide = weight ? Cast(weight, DType::kF32) : weight;
    return Cast(NllLoss(Cast(x, DType::kF32), target, wide, ignore_index, reduction), x.dtype());
  }
  const Targets targets(target, ignore_index);
  const DTensor weights = WeightOfRows(x, targets, weight);
  const DTensor picked = Where(targets.counts, AtClass(x, targets.classes),
                               internal::ScalarLike(x, 0));  // As 0 times an infinity is nan.
  return ReducedRows(Neg(Mul(picked, weights)), weights, reduction);
}

DTensor CrossEntropy(const DTensor& logits, const DTensor& target, const DTensor& weight,
                     double label_smoothing, int64_t ignore_index, LossReduction reduction) {
  const char* const op = "cross_entropy";
  Check(op, logits, target, weight);
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    ThrowInvalid(op, ": expected a label smoothing in [0, 1], got ", label_smoothing, " for ",
                 logits.ToString());
  if (IsSmall(logits.dtype())) {
    const DTensor wide = weight ? Cast(weight, DType::kF32) : weight;
    return CrossEntropy(Cast(logits, DType::kF32), target, wide, label_smoothing, ignore_index,
                        reduction);
  }
  const Targets targets(target, ignore_index);
  const DTensor weights = WeightOfRows(logits, targets, weight);
  DTensor rows = Mul(CrossEntropy(logits, target, ignore_index, LossReduction::kNone), weights);
  if (label_smoothing > 0) {
    // The sum over classes c of weight[c] (log sum exp x - x[c]).
    const DTensor below = Sub(LogSumExp(logits, {-1}, /*keepdim=*/true), logits);
    const DTensor all = Sum(weight ? Mul(below, weight) : below, {-1});
    const DTensor counted = Where(targets.counts, all, internal::ScalarLike(all, 0));
    rows = Add(Mul(rows, 1 - label_smoothing),
               Mul(counted, label_smoothing / static_cast<double>(logits.dim(-1))));
  }
  return ReducedRows(rows, weights, reduction);
}

DTensor MultiMarginLoss(const DTensor& x, const DTensor& target, double order, double margin,
                        const DTensor& weight, LossReduction reduction) {
  const char* const op = "multi_margin_loss";
  Check(op, x, target, weight);
  if (order != 1 && order != 2)
    ThrowInvalid(op, ": expected an order of 1 or 2, got ", order, " for ", x.ToString());
  if (IsSmall(x.dtype())) {
    const DTensor wide = weight ? Cast(weight, DType::kF32) : weight;
    return Cast(MultiMarginLoss(Cast(x, DType::kF32), target, order, margin, wide, reduction),
                x.dtype());
  }
  const int last = x.num_dims() - 1;
  const int64_t classes = x.dim(last);
  const DTensor column = WithColumn(target);
  const DTensor excess = Maximum(Add(Sub(x, Gather(x, -1, column)), margin), 0.0);
  const DTensor terms = order == 1 ? excess : Square(excess);
  const DTensor positions = internal::PositionsOn(x, classes, last, last + 1);
  const DTensor others =
      Where(Compare(CompareOp::kEqual, column, positions), internal::ScalarLike(x, 0), terms);
  DTensor rows = Div(Sum(others, {-1}), static_cast<double>(classes));
  if (weight) rows = Mul(rows, Take(weight, target));
  if (reduction == LossReduction::kNone) return rows;
  return reduction == LossReduction::kSum ? Sum(rows) : Mean(rows);
}

}  // namespace shardmesh
