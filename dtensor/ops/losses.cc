// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/losses.h"

#include <utility>
#include <vector>

#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/reductions.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh {

using internal::InF32IfSmall;
using internal::Operands;

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

// `error` of the operands, reduced.
template <typename F>
DTensor LossOf(const char* op, LossReduction reduction, Operands operands, const F& error) {
  return InF32IfSmall(op, std::move(operands),
                      [&](const Operands& o) { return Reduced(error(o), reduction); });
}

DTensor Weighted(const DTensor& error, const DTensor& weight) {
  return weight ? Mul(error, weight) : error;
}

}  // namespace

DTensor L1Loss(const DTensor& x, const DTensor& target, LossReduction reduction) {
  return LossOf("l1_loss", reduction, {x, target},
                [&](const Operands& o) { return AbsoluteError(o[0], o[1]); });
}

DTensor SmoothL1Loss(const DTensor& x, const DTensor& target, double beta,
                     LossReduction reduction) {
  return LossOf("smooth_l1_loss", reduction, {x, target},
                [&](const Operands& o) { return SmoothL1Error(o[0], o[1], beta); });
}

DTensor HuberLoss(const DTensor& x, const DTensor& target, double delta, LossReduction reduction) {
  return LossOf("huber_loss", reduction, {x, target},
                [&](const Operands& o) { return HuberError(o[0], o[1], delta); });
}

DTensor BinaryCrossEntropy(const DTensor& x, const DTensor& target, const DTensor& weight,
                           LossReduction reduction) {
  return LossOf("binary_cross_entropy", reduction, {x, target, weight}, [&](const Operands& o) {
    return Weighted(BinaryCrossEntropyError(o[0], o[1]), o[2]);
  });
}

DTensor BinaryCrossEntropyWithLogits(const DTensor& x, const DTensor& target, const DTensor& weight,
                                     const DTensor& positive_weight, LossReduction reduction) {
  const auto error = [](const Operands& o) {
    const DTensor positive = o[3] ? o[3] : internal::ScalarLike(o[0], 1);
    return Weighted(BinaryCrossEntropyWithLogitsError(o[0], o[1], positive), o[2]);
  };
  return LossOf("binary_cross_entropy_with_logits", reduction, {x, target, weight, positive_weight},
                error);
}

DTensor SoftMarginLoss(const DTensor& x, const DTensor& target, LossReduction reduction) {
  return LossOf("soft_margin_loss", reduction, {x, target},
                [&](const Operands& o) { return SoftMarginError(o[0], o[1]); });
}

DTensor HingeEmbeddingLoss(const DTensor& x, const DTensor& target, double margin,
                           LossReduction reduction) {
  return LossOf("hinge_embedding_loss", reduction, {x, target},
                [&](const Operands& o) { return HingeEmbeddingError(o[0], o[1], margin); });
}

DTensor KlDivLoss(const DTensor& x, const DTensor& target, bool log_target,
                  LossReduction reduction) {
  return LossOf("kl_div_loss", reduction, {x, target},
                [&](const Operands& o) { return KlDivError(o[0], o[1], log_target); });
}

DTensor PoissonNllLoss(const DTensor& x, const DTensor& target, bool log_input, bool full,
                       double eps, LossReduction reduction) {
  return LossOf("poisson_nll_loss", reduction, {x, target}, [&](const Operands& o) {
    return PoissonNllError(o[0], o[1], log_input, full, eps);
  });
}

DTensor GaussianNllLoss(const DTensor& x, const DTensor& target, const DTensor& variance, bool full,
                        double eps, LossReduction reduction) {
  internal::CheckUsable("gaussian_nll_loss", x);
  internal::CheckUsable("gaussian_nll_loss", variance);
  Dims rows = x.shape(), by_row = x.shape();
  if (!rows.empty()) {
    rows[rows.size() - 1] = 1;
    by_row.erase(by_row.size() - 1);
  }
  const bool is_by_row = !rows.empty() && variance.shape() == by_row;
  const DTensor spread = is_by_row ? Reshape(variance, rows) : variance;
  return LossOf("gaussian_nll_loss", reduction, {x, target, spread},
                [&](const Operands& o) { return GaussianNllError(o[0], o[1], o[2], full, eps); });
}

DTensor MarginRankingLoss(const DTensor& a, const DTensor& b, const DTensor& target, double margin,
                          LossReduction reduction) {
  return LossOf("margin_ranking_loss", reduction, {a, b, target},
                [&](const Operands& o) { return MarginRankingError(o[0], o[1], o[2], margin); });
}

DTensor CosineEmbeddingLoss(const DTensor& a, const DTensor& b, const DTensor& target,
                            double margin, LossReduction reduction) {
  const auto error = [&](const Operands& o) {
    const DTensor cosine = CosineSimilarity(o[0], o[1], /*dim=*/-1);
    const DTensor alike = Add(Neg(cosine), 1.0), apart = Maximum(Sub(cosine, margin), 0.0);
    const DTensor zero = internal::ScalarLike(cosine, 0);
    return Add(Where(Compare(CompareOp::kEqual, o[2], 1.0), alike, zero),
               Where(Compare(CompareOp::kEqual, o[2], -1.0), apart, zero));
  };
  return LossOf("cosine_embedding_loss", reduction, {a, b, target}, error);
}

DTensor TripletMarginLoss(const DTensor& anchor, const DTensor& positive, const DTensor& negative,
                          double margin, double order, double eps, bool swap,
                          LossReduction reduction) {
  const auto error = [&](const Operands& o) {
    const DTensor near = PairwiseDistance(o[0], o[1], order, eps);
    DTensor far = PairwiseDistance(o[0], o[2], order, eps);
    if (swap) far = Minimum(far, PairwiseDistance(o[1], o[2], order, eps));
    return Maximum(Add(Sub(near, far), margin), 0.0);
  };
  return LossOf("triplet_margin_loss", reduction, {anchor, positive, negative}, error);
}

DTensor CosineSimilarity(const DTensor& a, const DTensor& b, int dim, double eps) {
  return InF32IfSmall("cosine_similarity", {a, b}, [&](const Operands& o) {
    const auto direction = [&](const DTensor& x) { return Normalize(x, 2, dim, eps); };
    return Sum(Mul(direction(o[0]), direction(o[1])), {dim});
  });
}

DTensor PairwiseDistance(const DTensor& a, const DTensor& b, double order, double eps,
                         bool keepdim) {
  return InF32IfSmall("pairwise_distance", {a, b}, [&](const Operands& o) {
    return VectorNorm(Add(Sub(o[0], o[1]), eps), order, {-1}, keepdim);
  });
}

DTensor Normalize(const DTensor& x, double order, int dim, double eps) {
  return InF32IfSmall("normalize", {x}, [&](const Operands& o) {
    return Div(o[0], Maximum(VectorNorm(o[0], order, {dim}, /*keepdim=*/true), eps));
  });
}

}  // namespace shardmesh
