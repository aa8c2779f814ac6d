// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

std::optional<LossReduction> ReductionOf(const Args& args) {
  const std::string name = args.Text(-1, "reduction", "mean");
  if (name == "mean") return LossReduction::kMean;
  if (name == "sum") return LossReduction::kSum;
  return std::nullopt;
}

Results CrossEntropies(const Args& args) {
  if (!ReductionOf(args) || args.Has(2, "weight") || args.Tensor(0).num_dims() != 2) return {};
  return {CrossEntropy(args.Tensor(0), args.Tensor(1), args.Int(-1, "ignore_index", -100),
                       *ReductionOf(args))};
}

Results MseLosses(const Args& args) {
  if (!ReductionOf(args)) return {};
  return {MseLoss(args.Tensor(0), args.Tensor(1), *ReductionOf(args))};
}

}  // namespace

void AddLossOps(OpTable& table) {
  table.Add("nn.functional.cross_entropy", CrossEntropies);
  table.Add("nn.functional.mse_loss", MseLosses);
}

}  // namespace shardmesh::testing
