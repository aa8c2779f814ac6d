// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

OpFunction AlongDimAs(DTensor (*op)(const DTensor&, int)) {
  return [op](const Args& args) {
    const DTensor x = args.Tensor(0);
    return Results{op(Cast(x, args.Type(2, "dtype", x.dtype())), args.Dim(1, "dim"))};
  };
}

// Of the gradient-free default: the least number that changes 1.
double EpsilonOf(const Args& args) { return args.real() == DType::kF64 ? 0x1p-52 : 0x1p-23; }

Results LayerNorms(const Args& args) {
  if (args.Ints(1, "normalized_shape").size() != 1) return {};
  return {LayerNorm(args.Tensor(0), args.Tensor(2, "weight"), args.Tensor(3, "bias"),
                    args.Number(4, "eps", 1e-5))};
}

Results RmsNorms(const Args& args) {
  if (args.Ints(1, "normalized_shape").size() != 1) return {};
  return {
      RmsNorm(args.Tensor(0), args.Tensor(2, "weight"), args.Number(3, "eps", EpsilonOf(args)))};
}

Results Attentions(const Args& args) {
  if (args.Tensor(0).num_dims() != 4) return {};
  return {
      Attention(args.Tensor(0), args.Tensor(1), args.Tensor(2), args.Flag(5, "is_causal", false))};
}

}  // namespace

void AddNormOps(OpTable& table) {
  table.Add("nn.functional.cosine_similarity", [](const Args& a) {
    return Results{
        CosineSimilarity(a.Tensor(0), a.Tensor(1), a.Dim(2, "dim", 1), a.Number(3, "eps", 1e-8))};
  });
  table.Add("nn.functional.normalize", [](const Args& a) {
    return Results{
        Normalize(a.Tensor(0), a.Number(1, "p", 2), a.Dim(2, "dim", 1), a.Number(3, "eps", 1e-12))};
  });
  table.Add("nn.functional.pairwise_distance", [](const Args& a) {
    return Results{PairwiseDistance(a.Tensor(0), a.Tensor(1), a.Number(2, "p", 2),
                                    a.Number(3, "eps", 1e-6), a.Flag(4, "keepdim", false))};
  });
  table.Add("nn.functional.softmin",
            [](const Args& a) { return Results{Softmax(Neg(a.Tensor(0)), a.Dim(1, "dim"))}; });
  table.Add("log_softmax", AlongDimAs(LogSoftmax));
  table.Add("nn.functional.layer_norm", LayerNorms);
  table.Add("nn.functional.rms_norm", RmsNorms);
  table.Add("nn.functional.scaled_dot_product_attention", Attentions);
  table.Add("softmax", AlongDimAs(Softmax));
}

}  // namespace shardmesh::testing
