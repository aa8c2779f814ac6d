// SPDX-License-Identifier: Apache-2.0
//
// Cases of dtensor/ops/: reductions, losses, order and indexing.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;

GlobalValue Mixed(const Dims& shape, Random& random) { return RandomGlobal(shape, random); }
GlobalValue Tied(const Dims& shape, Random& random) {
  GlobalValue value = RandomIntegers(shape, random, -2, 3);
  value.dtype = DType::kF64;
  return value;
}
// Every order of an extent, so that no index comes twice along a line.
GlobalValue Permutations(const Dims& shape, int dim, Random& random) {
  GlobalValue value{shape, DType::kI64, {}};
  int64_t inner = 1;
  for (int d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t shift = random.Below(shape[dim]);
  for (int64_t i = 0; i < shape.NumElements(); ++i)
    value.values.push_back(static_cast<double>((i / inner * 2 + shift + i % inner) % shape[dim]));
  return value;
}

}  // namespace

std::vector<OpCase> MoreReductionCases() {
  std::vector<OpCase> cases;
  Random random(21);
  struct Named {
    const char* name;
    std::function<DTensor(const DTensor&, const std::vector<int>&, bool)> op;
  };
  const Named reductions[] = {
      {"prod", [](const DTensor& x, auto& dims, bool keep) { return Prod(x, dims, keep); }},
      {"var", [](const DTensor& x, auto& dims, bool keep) { return Var(x, dims, 1, keep); }},
      {"std", [](const DTensor& x, auto& dims, bool keep) { return Std(x, dims, 0, keep); }},
      {"nansum", [](const DTensor& x, auto& dims, bool keep) { return NanSum(x, dims, keep); }},
      {"logsumexp",
       [](const DTensor& x, auto& dims, bool keep) { return LogSumExp(x, dims, keep); }},
      {"norm",
       [](const DTensor& x, auto& dims, bool keep) { return VectorNorm(x, 2, dims, keep); }},
      {"norm(3)",
       [](const DTensor& x, auto& dims, bool keep) { return VectorNorm(x, 3, dims, keep); }},
      {"any", [](const DTensor& x, auto& dims, bool keep) { return Any(Floor(x), dims, keep); }},
      {"all", [](const DTensor& x, auto& dims, bool keep) { return All(Floor(x), dims, keep); }},
      {"count_nonzero",
       [](const DTensor& x, auto& dims, bool) { return CountNonZero(Floor(x), dims); }},
  };
  for (const Named& named : reductions) {
    for (const auto& [dims, keepdim] :
         std::vector<std::pair<std::vector<int>, bool>>{{{}, false}, {{0}, true}, {{-1}, false}}) {
      cases.push_back({absl::StrCat(named.name, "(", dims.size(), keepdim ? " keepdim)" : ")"),
                       {Mixed({5, 3}, random)},
                       [op = named.op, dims = dims, keepdim = keepdim](Operands o) {
                         return op(o[0], dims, keepdim);
                       }});
    }
  }
  cases.push_back(
      {"prod with zeros", {Tied({5, 3}, random)}, [](Operands o) { return Prod(o[0], {0}); }});
  return cases;
}

std::vector<OpCase> MoreLossCases() {
  std::vector<OpCase> cases;
  Random random(22);
  const auto add = [&](const char* name, int operands, std::function<DTensor(Operands)> op) {
    OpCase op_case = {name, {}, std::move(op)};
    for (int i = 0; i < operands; ++i) op_case.operands.push_back(Mixed({5, 3}, random));
    cases.push_back(std::move(op_case));
  };
  add("l1_loss", 2, [](Operands o) { return L1Loss(o[0], o[1]); });
  add("huber_loss", 2, [](Operands o) { return HuberLoss(o[0], o[1], 0.7, LossReduction::kSum); });
  add("bce_with_logits", 3,
      [](Operands o) { return BinaryCrossEntropyWithLogits(o[0], o[1], o[2]); });
  add("cosine_similarity", 2, [](Operands o) { return CosineSimilarity(o[0], o[1]); });
  add("triplet_margin_loss", 3,
      [](Operands o) { return TripletMarginLoss(o[0], o[1], o[2], 1, 2, 1e-6, true); });
  add("normalize", 1, [](Operands o) { return Normalize(o[0], 2, 0); });
  return cases;
}

std::vector<OpCase> OrderCases() {
  std::vector<OpCase> cases;
  Random random(23);
  const auto add = [&](const char* name, std::function<DTensor(const DTensor&, int)> op,
                       GlobalValue (*values)(const Dims&, Random&)) {
    for (const auto& [shape, dim] :
         std::vector<std::pair<Dims, int>>{{{5, 3}, 0}, {{5, 3}, -1}, {{2, 3, 5}, 1}}) {
      cases.push_back({absl::StrCat(name, "(", dim, ")"),
                       {values(shape, random)},
                       [op, dim = dim](Operands o) { return op(o[0], dim); }});
    }
  };
  add("cumsum", CumSum, Mixed);
  add("cumprod", CumProd, Mixed);
  add("cumprod", CumProd, Tied);
  add("logcumsumexp", LogCumSumExp, Mixed);
  add(
      "cummax", [](const DTensor& x, int dim) { return CumMax(x, dim).first; }, Mixed);
  add(
      "cummin", [](const DTensor& x, int dim) { return CumMin(x, dim).second; }, Tied);
  add(
      "sort", [](const DTensor& x, int dim) { return Sort(x, dim, true).first; }, Mixed);
  add(
      "argsort", [](const DTensor& x, int dim) { return ArgSort(x, dim); }, Tied);
  add(
      "topk", [](const DTensor& x, int dim) { return TopK(x, 2, dim).first; }, Mixed);
  add(
      "argmax", [](const DTensor& x, int dim) { return ArgMax(x, dim); }, Tied);
  add(
      "min", [](const DTensor& x, int dim) { return MinAlong(x, dim).first; }, Tied);
  cases.push_back({"argmin", {Tied({5, 3}, random)}, [](Operands o) { return ArgMin(o[0]); }});
  cases.push_back({"median", {Mixed({5, 3}, random)}, [](Operands o) { return Median(o[0]); }});
  return cases;
}

// Each row ascends, with equal ones.
GlobalValue Ascending(const Dims& shape) {
  GlobalValue x{shape, DType::kF64, std::vector<double>(static_cast<size_t>(shape.NumElements()))};
  const int64_t n = shape[shape.size() - 1];
  for (size_t i = 0; i < x.values.size(); ++i) {
    const int64_t pair = static_cast<int64_t>(i) % n / 2;
    x.values[i] = static_cast<double>(pair) - 0.75;
  }
  return x;
}

std::vector<OpCase> IndexingCases() {
  std::vector<OpCase> cases;
  Random random(24);
  const auto ids = [&](const Dims& shape, int64_t extent) {
    return RandomIntegers(shape, random, 0, extent);
  };
  for (const bool right : {false, true}) {
    cases.push_back({absl::StrCat("searchsorted(", right, ")"),
                     {Ascending({5, 4}), Mixed({5, 3}, random)},
                     [right](Operands o) { return SearchSorted(o[0], o[1], right); }});
    cases.push_back({absl::StrCat("bucketize(", right, ")"),
                     {Mixed({5, 3}, random), Ascending({4})},
                     [right](Operands o) { return Bucketize(o[0], o[1], right); }});
  }
  for (const int dim : {0, 1}) {
    const Dims x = {5, 3};
    cases.push_back({absl::StrCat("gather(", dim, ")"),
                     {Mixed(x, random), ids({5, 3}, x[dim])},
                     [dim](Operands o) { return Gather(o[0], dim, o[1]); }});
    cases.push_back({absl::StrCat("gather(", dim, ") of less"),
                     {Mixed(x, random), ids({2, 3}, x[dim])},
                     [dim](Operands o) { return Gather(o[0], dim, o[1]); }});
    cases.push_back({absl::StrCat("scatter(", dim, ")"),
                     {Mixed(x, random), Permutations({5, 3}, dim, random), Mixed(x, random)},
                     [dim](Operands o) { return Scatter(o[0], dim, o[1], o[2]); }});
    cases.push_back({absl::StrCat("scatter_add(", dim, ")"),
                     {Mixed(x, random), ids({2, 3}, x[dim]), Mixed({2, 3}, random)},
                     [dim](Operands o) { return ScatterAdd(o[0], dim, o[1], o[2]); }});
    for (const ScatterReduction reduction :
         {ScatterReduction::kProduct, ScatterReduction::kMean, ScatterReduction::kMax}) {
      cases.push_back({absl::StrCat("scatter_reduce(", dim, ")"),
                       {Mixed(x, random), ids(x, x[dim]), Mixed(x, random)},
                       [dim, reduction](Operands o) {
                         return ScatterReduce(o[0], dim, o[1], o[2], reduction,
                                              /*include_self=*/dim == 0);
                       }});
    }
    cases.push_back({absl::StrCat("index_select(", dim, ")"),
                     {Mixed(x, random), ids({7}, x[dim])},
                     [dim](Operands o) { return IndexSelect(o[0], dim, o[1]); }});
  }
  cases.push_back({"take",
                   {Mixed({5, 3}, random), RandomIntegers({2, 3}, random, -15, 15)},
                   [](Operands o) { return Take(o[0], o[1]); }});
  cases.push_back({"masked_fill",
                   {Mixed({5, 3}, random), RandomBools({3}, random)},
                   [](Operands o) { return MaskedFill(o[0], o[1], -2.5); }});
  cases.push_back({"one_hot", {ids({5}, 3)}, [](Operands o) { return OneHot(o[0], 3); }});
  return cases;
}

}  // namespace shardmesh::testing
