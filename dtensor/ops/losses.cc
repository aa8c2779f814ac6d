// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/losses.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/reductions.h"

namespace shardmesh {
namespace {

DTensor Reduced(const DTensor& error, LossReduction reduction) {
  switch (reduction) {
    case LossReduction::kMean:
      return Mean(error);
    case LossReduction::kSum:
      return Sum(error);
    case LossReduction::kNone:
      break;
  }
  return error;
}

DTensor Weighted(const DTensor& error, const DTensor& weight) {
  return weight ? Mul(error, weight) : error;
}

}  // namespace

DTensor L1Loss(const DTensor& x, const DTensor& target, LossReduction reduction) {
  return Reduced(AbsoluteError(x, target), reduction);
}

DTensor SmoothL1Loss(const DTensor& x, const DTensor& target, double beta,
                     LossReduction reduction) {
  return Reduced(SmoothL1Error(x, target, beta), reduction);
}

DTensor HuberLoss(const DTensor& x, const DTensor& target, double delta, LossReduction reduction) {
  return Reduced(HuberError(x, target, delta), reduction);
}

DTensor BinaryCrossEntropy(const DTensor& x, const DTensor& target, const DTensor& weight,
                           LossReduction reduction) {
  return Reduced(Weighted(BinaryCrossEntropyError(x, target), weight), reduction);
}

DTensor BinaryCrossEntropyWithLogits(const DTensor& x, const DTensor& target, const DTensor& weight,
                                     const DTensor& positive_weight, LossReduction reduction) {
  internal::CheckUsable("binary_cross_entropy_with_logits", x);
  const DTensor one = positive_weight ? positive_weight : internal::ScalarLike(x, 1);
  return Reduced(Weighted(BinaryCrossEntropyWithLogitsError(x, target, one), weight), reduction);
}

DTensor SoftMarginLoss(const DTensor& x, const DTensor& target, LossReduction reduction) {
  return Reduced(SoftMarginError(x, target), reduction);
}

DTensor HingeEmbeddingLoss(const DTensor& x, const DTensor& target, double margin,
                           LossReduction reduction) {
  return Reduced(HingeEmbeddingError(x, target, margin), reduction);
}

DTensor KlDivLoss(const DTensor& x, const DTensor& target, bool log_target,
                  LossReduction reduction) {
  return Reduced(KlDivError(x, target, log_target), reduction);
}

DTensor PoissonNllLoss(const DTensor& x, const DTensor& target, bool log_input, bool full,
                       double eps, LossReduction reduction) {
  return Reduced(PoissonNllError(x, target, log_input, full, eps), reduction);
}

DTensor GaussianNllLoss(const DTensor& x, const DTensor& target, const DTensor& variance, bool full,
                        double eps, LossReduction reduction) {
  Dims rows = x.shape(), by_row = x.shape();
  if (!rows.empty()) {
    rows[rows.size() - 1] = 1;
    by_row.erase(by_row.size() - 1);
  }
  const bool is_by_row = !rows.empty() && variance.shape() == by_row;
  const DTensor spread = is_by_row ? Reshape(variance, rows) : variance;
  return Reduced(GaussianNllError(x, target, spread, full, eps), reduction);
}

DTensor MarginRankingLoss(const DTensor& a, const DTensor& b, const DTensor& target, double margin,
                          LossReduction reduction) {
  return Reduced(MarginRankingError(a, b, target, margin), reduction);
}

DTensor CosineEmbeddingLoss(const DTensor& a, const DTensor& b, const DTensor& target,
                            double margin, LossReduction reduction) {
  const DTensor cosine = CosineSimilarity(a, b, /*dim=*/-1);
  const DTensor alike = Add(Neg(cosine), 1.0), apart = Maximum(Sub(cosine, margin), 0.0);
  const DTensor zero = Mul(cosine.Detach(), 0.0);
  const DTensor loss = Add(Where(Compare(CompareOp::kEqual, target, 1.0), alike, zero),
                           Where(Compare(CompareOp::kEqual, target, -1.0), apart, zero));
  return Reduced(loss, reduction);
}

DTensor TripletMarginLoss(const DTensor& anchor, const DTensor& positive, const DTensor& negative,
                          double margin, double order, double eps, bool swap,
                          LossReduction reduction) {
  const DTensor near = PairwiseDistance(anchor, positive, order, eps);
  DTensor far = PairwiseDistance(anchor, negative, order, eps);
  if (swap) far = Minimum(far, PairwiseDistance(positive, negative, order, eps));
  return Reduced(Maximum(Add(Sub(near, far), margin), 0.0), reduction);
}

DTensor CosineSimilarity(const DTensor& a, const DTensor& b, int dim, double eps) {
  const auto length = [&](const DTensor& x) {
    return Maximum(VectorNorm(x, 2, {dim}, /*keepdim=*/true), eps);
  };
  return Sum(Mul(Div(a, length(a)), Div(b, length(b))), {dim});
}

DTensor PairwiseDistance(const DTensor& a, const DTensor& b, double order, double eps,
                         bool keepdim) {
  return VectorNorm(Add(Sub(a, b), eps), order, {-1}, keepdim);
}

DTensor Normalize(const DTensor& x, double order, int dim, double eps) {
  return Div(x, Maximum(VectorNorm(x, order, {dim}, /*keepdim=*/true), eps));
}

}  // namespace shardmesh
