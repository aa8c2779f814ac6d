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

// PyTorch has the classes in dim 1 where there is one.
DTensor WithClassesLast(const DTensor& x) { return x.num_dims() < 3 ? x : MoveDim(x, {1}, {-1}); }

// A vector of classes, and a number, which counts as one class, are a row without dims.
DTensor RowsOf(const DTensor& x) {
  return x.num_dims() == 0 ? Reshape(x, {1}) : WithClassesLast(x);
}

Results CrossEntropies(const Args& args) {
  const DTensor x = WithClassesLast(args.Tensor(0));
  const int64_t ignored = args.Int(-1, "ignore_index", -100);
  const double smoothing = args.Number(-1, "label_smoothing", 0);
  if (!args.Has(2, "weight") && smoothing == 0)
    return {CrossEntropy(x, args.Tensor(1), ignored, ReductionOf(args))};
  return {CrossEntropy(x, args.Tensor(1), args.Tensor(2, "weight"), smoothing, ignored,
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
  table.Add("nn.functional.multi_margin_loss", [](const Args& a) {
    DTensor x = RowsOf(a.Tensor(0));
    if (x.num_dims() == a.Tensor(1).num_dims()) x = Unsqueeze(x, 0);  // One row.
    return Results{MultiMarginLoss(x, a.Tensor(1), a.Number(2, "p", 1), a.Number(3, "margin", 1),
                                   a.Tensor(4, "weight"), ReductionOf(a))};
  });
  table.Add("nn.functional.nll_loss", [](const Args& a) {
    return Results{NllLoss(RowsOf(a.Tensor(0)), a.Tensor(1), a.Tensor(2, "weight"),
                           a.Int(-1, "ignore_index", -100), ReductionOf(a))};
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
