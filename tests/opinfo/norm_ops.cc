// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/norms.h"
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

// ---- norms --------------------------------------------------------------------------------------

int DimsOf(const Args& args) { return static_cast<int>(args.Ints(1, "normalized_shape").size()); }

Results LayerNorms(const Args& args) {
  const DTensor x = args.Tensor(0), weight = args.Tensor(2, "weight"),
                bias = args.Tensor(3, "bias");
  const double eps = args.Number(4, "eps", 1e-5);
  if (DimsOf(args) == 1 && weight) return {LayerNorm(x, weight, bias, eps)};
  return {LayerNormOver(x, DimsOf(args), weight, bias, eps)};
}

Results RmsNorms(const Args& args) {
  const DTensor x = args.Tensor(0), weight = args.Tensor(2, "weight");
  const double eps = args.Number(3, "eps", EpsilonOf(args));
  if (DimsOf(args) == 1 && weight) return {RmsNorm(x, weight, eps)};
  return {RmsNormOver(x, DimsOf(args), weight, eps)};
}

Results GroupNorms(const Args& args) {
  return {GroupNorm(args.Tensor(0), args.Int(1, "num_groups"), args.Tensor(2, "weight"),
                    args.Tensor(3, "bias"), args.Number(4, "eps", 1e-5))};
}

Results LocalResponseNorms(const Args& args) {
  return {LocalResponseNorm(args.Tensor(0), args.Int(1, "size"), args.Number(2, "alpha", 1e-4),
                            args.Number(3, "beta", 0.75), args.Number(4, "k", 1))};
}

// x, running mean and variance, weight, bias, whether to use those of the batch, momentum, eps.
struct NormArguments {
  NormArguments(const Args& args, const char* flag, bool otherwise)
      : x(args.Tensor(0)),
        weight(args.Tensor(3, "weight")),
        bias(args.Tensor(4, "bias")),
        running{args.Tensor(1, "running_mean"), args.Tensor(2, "running_var"),
                args.Number(6, "momentum", 0.1)},
        uses_batch(args.Flag(5, flag, otherwise)),
        eps(args.Number(7, "eps", 1e-5)) {}
  DTensor x, weight, bias;
  RunningStatistics running;
  bool uses_batch;
  double eps;
};

// PyTorch lets a tensor without elements pass that is not [batch, channels, ..].
Results BatchNorms(const Args& args) {
  const NormArguments a(args, "training", false);
  if (a.x.num_dims() < 2) return {};
  if (a.uses_batch) return {BatchNorm(a.x, a.weight, a.bias, a.eps, a.running)};
  return {BatchNormWith(a.x, a.running.mean, a.running.variance, a.weight, a.bias, a.eps)};
}

Results InstanceNorms(const Args& args) {
  const NormArguments a(args, "use_input_stats", true);
  if (a.uses_batch) return {InstanceNorm(a.x, a.weight, a.bias, a.eps, a.running)};
  return {BatchNormWith(a.x, a.running.mean, a.running.variance, a.weight, a.bias, a.eps)};
}

// ---- attention ----------------------------------------------------------------------------------

// PyTorch aligns the mask with the first key, the library with the last: keys beyond the queries
// are never seen.
Results Attentions(const Args& args) {
  DTensor q = args.Tensor(0), k = args.Tensor(1), v = args.Tensor(2);
  const bool is_batched = q.num_dims() == 4, causal = args.Flag(5, "is_causal", false);
  if (!is_batched) {
    q = Unsqueeze(q, 0);
    k = Unsqueeze(k, 0);
    v = Unsqueeze(v, 0);
  }
  if (causal && q.dim(2) > k.dim(2)) return {};
  if (causal && q.dim(2) < k.dim(2)) {
    k = Slice(k, 2, 0, q.dim(2));
    v = Slice(v, 2, 0, q.dim(2));
  }
  const DTensor y = Attention(q, k, v, causal);
  return {is_batched ? y : Squeeze(y, {0})};
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
  table.Add("cdist", [](const Args& a) {
    return Results{CDist(a.Tensor(0), a.Tensor(1), a.Number(2, "p", 2))};
  });
  table.Add("log_softmax", AlongDimAs(LogSoftmax));
  table.Add("nn.functional.batch_norm", BatchNorms);
  table.Add("nn.functional.group_norm", GroupNorms);
  table.Add("nn.functional.instance_norm", InstanceNorms);
  table.Add("nn.functional.layer_norm", LayerNorms);
  table.Add("nn.functional.local_response_norm", LocalResponseNorms);
  table.Add("nn.functional.rms_norm", RmsNorms);
  table.Add("nn.functional.scaled_dot_product_attention", Attentions);
  table.Add("softmax", AlongDimAs(Softmax));
}

}  // namespace shardmesh::testing
