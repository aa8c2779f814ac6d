// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

LossReduction ReductionOf(const Args& args) {
  const std::string name = args.Text(-1, "reduction", "mean");
  return name == "mean"  ? LossReduction::kMean
         : name == "sum" ? LossReduction::kSum
                         : LossReduction::kNone;
}

Results CrossEntropies(const Args& args) {
  if (args.Has(2, "weight") || args.Tensor(0).num_dims() != 2) return {};
  return {CrossEntropy(args.Tensor(0), args.Tensor(1), args.Int(-1, "ignore_index", -100),
                       ReductionOf(args))};
}

Results KlDivs(const Args& a) {
  const bool log_target = a.Flag(-1, "log_target", false);
  if (a.Text(-1, "reduction", "mean") != "batchmean")
    return {KlDivLoss(a.Tensor(0), a.Tensor(1), log_target, ReductionOf(a))};
  const DTensor sum = KlDivLoss(a.Tensor(0), a.Tensor(1), log_target, LossReduction::kSum);
  return {Div(sum, static_cast<double>(a.Tensor(0).dim(0)))};
}

}  // namespace

void AddLossOps(OpTable& table) {
  table.Add("nn.functional.binary_cross_entropy", [](const Args& a) {
    return Results{
        BinaryCrossEntropy(a.Tensor(0), a.Tensor(1), a.Tensor(-1, "weight"), ReductionOf(a))};
  });
  table.Add("nn.functional.binary_cross_entropy_with_logits", [](const Args& a) {
    return Results{BinaryCrossEntropyWithLogits(a.Tensor(0), a.Tensor(1), a.Tensor(-1, "weight"),
                                                a.Tensor(-1, "pos_weight"), ReductionOf(a))};
  });
  table.Add("nn.functional.cosine_embedding_loss", [](const Args& a) {
    return Results{CosineEmbeddingLoss(a.Tensor(0), a.Tensor(1), a.Tensor(2),
                                       a.Number(-1, "margin", 0), ReductionOf(a))};
  });
  table.Add("nn.functional.cross_entropy", CrossEntropies);
  table.Add("nn.functional.gaussian_nll_loss", [](const Args& a) {
    return Results{GaussianNllLoss(a.Tensor(0), a.Tensor(1), a.Tensor(2), a.Flag(-1, "full", false),
                                   a.Number(-1, "eps", 1e-6), ReductionOf(a))};
  });
  table.Add("nn.functional.hinge_embedding_loss", [](const Args& a) {
    return Results{
        HingeEmbeddingLoss(a.Tensor(0), a.Tensor(1), a.Number(-1, "margin", 1), ReductionOf(a))};
  });
  table.Add("nn.functional.huber_loss", [](const Args& a) {
    return Results{HuberLoss(a.Tensor(0), a.Tensor(1), a.Number(-1, "delta", 1), ReductionOf(a))};
  });
  table.Add("nn.functional.kl_div", KlDivs);
  table.Add("nn.functional.l1_loss", [](const Args& a) {
    return Results{L1Loss(a.Tensor(0), a.Tensor(1), ReductionOf(a))};
  });
  table.Add("nn.functional.margin_ranking_loss", [](const Args& a) {
    return Results{MarginRankingLoss(a.Tensor(0), a.Tensor(1), a.Tensor(2),
                                     a.Number(-1, "margin", 0), ReductionOf(a))};
  });
  table.Add("nn.functional.mse_loss", [](const Args& a) {
    return Results{MseLoss(a.Tensor(0), a.Tensor(1), ReductionOf(a))};
  });
  table.Add("nn.functional.poisson_nll_loss", [](const Args& a) {
    return Results{PoissonNllLoss(a.Tensor(0), a.Tensor(1), a.Flag(-1, "log_input", true),
                                  a.Flag(-1, "full", false), a.Number(-1, "eps", 1e-8),
                                  ReductionOf(a))};
  });
  table.Add("nn.functional.smooth_l1_loss", [](const Args& a) {
    return Results{SmoothL1Loss(a.Tensor(0), a.Tensor(1), a.Number(-1, "beta", 1), ReductionOf(a))};
  });
  table.Add("nn.functional.soft_margin_loss", [](const Args& a) {
    return Results{SoftMarginLoss(a.Tensor(0), a.Tensor(1), ReductionOf(a))};
  });
  table.Add("nn.functional.triplet_margin_loss", [](const Args& a) {
    return Results{TripletMarginLoss(
        a.Tensor(0), a.Tensor(1), a.Tensor(2), a.Number(-1, "margin", 1), a.Number(-1, "p", 2),
        a.Number(-1, "eps", 1e-6), a.Flag(-1, "swap", false), ReductionOf(a))};
  });
}

}  // namespace shardmesh::testing
