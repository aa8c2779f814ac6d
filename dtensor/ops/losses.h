// SPDX-License-Identifier: Apache-2.0
//
// Losses and distances that are made of elementwise rows and reductions. x and target broadcast; a
// mean divides by the global count. Operands of bf16 and f16 are computed with in f32, and the
// result is rounded once. CrossEntropy and MseLoss are in dtensor/ops.h.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes and dtypes; alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_LOSSES_H_
#define SHARDMESH_DTENSOR_OPS_LOSSES_H_

#include <cstdint>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

enum class LossReduction {
  kMean,
  kSum,
  kNone,  ///< By element; of rows where a loss is one of a row.
};

DTensor L1Loss(const DTensor& x, const DTensor& target,
               LossReduction reduction = LossReduction::kMean);
/// -weight[target] x[target], of log-probabilities x; `weight` [classes], if given. A mean divides
/// by the sum of these weights. Rows whose target is `ignore_index` do not count.
/// Shape: x [.., classes], target [..] (i64).
DTensor NllLoss(const DTensor& x, const DTensor& target, const DTensor& weight = {},
                int64_t ignore_index = -100, LossReduction reduction = LossReduction::kMean);
/// CrossEntropy of dtensor/ops.h with weights of classes, as NllLoss has them, and targets that are
/// mixed with `label_smoothing` of a uniform distribution. Classes may be sharded.
DTensor CrossEntropy(const DTensor& logits, const DTensor& targets, const DTensor& weight,
                     double label_smoothing, int64_t ignore_index = -100,
                     LossReduction reduction = LossReduction::kMean);
/// weight[target] sum over classes j != target of max(0, margin - x[target] + x[j])^order, over the
/// number of classes; order 1 or 2. Shape: as NllLoss.
DTensor MultiMarginLoss(const DTensor& x, const DTensor& target, double order = 1,
                        double margin = 1, const DTensor& weight = {},
                        LossReduction reduction = LossReduction::kMean);
/// (x - target)^2 / (2 beta) up to beta, |x - target| - beta / 2 beyond.
DTensor SmoothL1Loss(const DTensor& x, const DTensor& target, double beta = 1,
                     LossReduction reduction = LossReduction::kMean);
/// delta times SmoothL1Loss with beta = delta.
DTensor HuberLoss(const DTensor& x, const DTensor& target, double delta = 1,
                  LossReduction reduction = LossReduction::kMean);
/// Of probabilities x; logarithms are no less than -100. `weight`, if given, broadcasts to x.
DTensor BinaryCrossEntropy(const DTensor& x, const DTensor& target, const DTensor& weight = {},
                           LossReduction reduction = LossReduction::kMean);
/// Of logits x; `positive_weight`, if given, is that of targets 1.
DTensor BinaryCrossEntropyWithLogits(const DTensor& x, const DTensor& target,
                                     const DTensor& weight = {},
                                     const DTensor& positive_weight = {},
                                     LossReduction reduction = LossReduction::kMean);
/// log(1 + e^(-target x)), of targets 1 and -1.
DTensor SoftMarginLoss(const DTensor& x, const DTensor& target,
                       LossReduction reduction = LossReduction::kMean);
/// x where the target is 1, max(0, margin - x) where it is -1.
DTensor HingeEmbeddingLoss(const DTensor& x, const DTensor& target, double margin = 1,
                           LossReduction reduction = LossReduction::kMean);
/// target (log(target) - x), of log-probabilities x; of targets that are logarithms if
/// `log_target`.
DTensor KlDivLoss(const DTensor& x, const DTensor& target, bool log_target = false,
                  LossReduction reduction = LossReduction::kMean);
DTensor PoissonNllLoss(const DTensor& x, const DTensor& target, bool log_input = true,
                       bool full = false, double eps = 1e-8,
                       LossReduction reduction = LossReduction::kMean);
/// Of means x, values `target` and variances no less than eps, of x's shape, or that without the
/// last dim.
DTensor GaussianNllLoss(const DTensor& x, const DTensor& target, const DTensor& variance,
                        bool full = false, double eps = 1e-6,
                        LossReduction reduction = LossReduction::kMean);
/// max(0, -target (a - b) + margin).
DTensor MarginRankingLoss(const DTensor& a, const DTensor& b, const DTensor& target,
                          double margin = 0, LossReduction reduction = LossReduction::kMean);
/// 1 - cos(a, b) where the target is 1, max(0, cos(a, b) - margin) where it is -1.
/// Shape: a and b [.., d], target [..].
DTensor CosineEmbeddingLoss(const DTensor& a, const DTensor& b, const DTensor& target,
                            double margin = 0, LossReduction reduction = LossReduction::kMean);
/// max(0, |anchor - positive| - |anchor - negative| + margin); `swap`: the negative is compared
/// with the nearer of the two. Shape: [.., d].
DTensor TripletMarginLoss(const DTensor& anchor, const DTensor& positive, const DTensor& negative,
                          double margin = 1, double order = 2, double eps = 1e-6, bool swap = false,
                          LossReduction reduction = LossReduction::kMean);

/// a b / (max(|a|, eps) max(|b|, eps)) along `dim`.
DTensor CosineSimilarity(const DTensor& a, const DTensor& b, int dim = 1, double eps = 1e-8);
/// |a - b + eps| along the last dim.
DTensor PairwiseDistance(const DTensor& a, const DTensor& b, double order = 2, double eps = 1e-6,
                         bool keepdim = false);
/// x / max(|x|, eps) along `dim`.
DTensor Normalize(const DTensor& x, double order = 2, int dim = 1, double eps = 1e-12);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_LOSSES_H_
