// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "nlohmann/json.hpp"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

// x, dims, correction, keepdim.
struct Moments {
  explicit Moments(const Args& args) : x(args.Tensor(0)), keepdim(args.Flag(-1, "keepdim", false)) {
    const nlohmann::json* second = args.Find(1, "");
    if (second != nullptr && second->is_boolean()) {
      correction = args.Flag(1, "") ? 1 : 0;
      return;
    }
    dims = args.DimList(1, "dim");
    correction = args.Number(-1, "correction", args.Flag(-1, "unbiased", true) ? 1 : 0);
  }
  DTensor x;
  std::vector<int> dims;
  double correction = 1;
  bool keepdim = false;
};

Results Pair(std::pair<DTensor, DTensor> pair) { return {pair.first, pair.second}; }

double Order(const Args& args) {
  const nlohmann::json* order = args.Find(1, "p");
  if (order == nullptr || *order == "fro") return 2;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (*order == "inf") return kInfinity;
  if (*order == "-inf") return -kInfinity;
  return order->get<double>();
}

Results Norms(const Args& args) {
  const nlohmann::json* order = args.Find(1, "p");
  if (order != nullptr && *order == "nuc") return {};
  return {VectorNorm(args.Tensor(0), Order(args), args.DimList(2, "dim"),
                     args.Flag(3, "keepdim", false))};
}

Results MinAndMax(const Args& args) {
  const std::vector<int> dims = args.DimList(-1, "dim");
  const bool keepdim = args.Flag(-1, "keepdim", false);
  return {Min(args.Tensor(0), dims, keepdim), Max(args.Tensor(0), dims, keepdim)};
}

}  // namespace

void AddReductionOps(OpTable& table) {
  table.Add("all", Reduction(All));
  table.Add("amax", Reduction(Max));
  table.Add("amin", Reduction(Min));
  table.Add("aminmax", MinAndMax);
  table.Add("any", Reduction(Any));
  table.Add("count_nonzero", Reduction(CountNonZero));
  table.Add("dist", [](const Args& a) {
    return Results{Dist(a.Tensor(0), a.Tensor(1), a.Number(2, "p", 2))};
  });
  table.Add("linalg.vector_norm", [](const Args& a) {
    return Results{VectorNorm(a.Tensor(0), a.Number(1, "ord", 2), a.DimList(2, "dim"),
                              a.Flag(3, "keepdim", false))};
  });
  table.Add("logsumexp", Reduction(LogSumExp));
  table.Add("mean", Reduction(Mean));
  table.Add("nanmean", Reduction(NanMean));
  table.Add("nansum", Reduction(NanSum));
  table.Add("norm", Norms);
  table.Add("prod", Reduction(Prod));
  table.Add("std", [](const Args& args) {
    const Moments m(args);
    return Results{Std(m.x, m.dims, m.correction, m.keepdim)};
  });
  table.Add("std_mean", [](const Args& args) {
    const Moments m(args);
    return Pair(StdMean(m.x, m.dims, m.correction, m.keepdim));
  });
  table.Add("sum", Reduction(Sum));
  table.Add("var", [](const Args& args) {
    const Moments m(args);
    return Results{Var(m.x, m.dims, m.correction, m.keepdim)};
  });
  table.Add("var_mean", [](const Args& args) {
    const Moments m(args);
    return Pair(VarMean(m.x, m.dims, m.correction, m.keepdim));
  });
  table.Add("trace", Unary(Trace));
}

}  // namespace shardmesh::testing
