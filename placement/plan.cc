// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/plan.h"

#include <algorithm>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/placement/internal/cost_model.h"
#include "shardmesh/placement/internal/plan_search.h"
#include "shardmesh/placement/internal/plan_state.h"

namespace shardmesh {
namespace {

using internal::CostModel;
using internal::PlanState;

/// The axes of size one that differ in placement or in their own position in the split order.
AxisList RelabelledAxes(const Layout& source, const Layout& target) {
  AxisList axes;
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    const bool differs =
        source.placement(axis) != target.placement(axis) || source.placement(axis).IsShard();
    if (source.mesh().size(axis) == 1 && differs) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

std::string_view Name(StepKind kind) {
  switch (kind) {
    case StepKind::kSlice:
      return "slice";
    case StepKind::kMakePartial:
      return "make_partial";
    case StepKind::kAllGather:
      return "all_gather";
    case StepKind::kAllReduce:
      return "all_reduce";
    case StepKind::kReduceScatter:
      return "reduce_scatter";
    case StepKind::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

Plan MakePlan(const Layout& source, const Layout& target, const PlanOptions& options) {
  if (!source || !target)
    ThrowInvalid("no plan from ", source.ToString(), " to ", target.ToString());
  if (source.mesh() != target.mesh() || source.global_shape() != target.global_shape()) {
    ThrowInvalid("no plan from ", source.ToString(), " to ", target.ToString(),
                 ": mesh and global shape must be equal");
  }
  const MeshShape& mesh = source.mesh();
  const Dims& shape = source.global_shape();
  const CostModel& costs = CostModel::Of(mesh, shape, options);
  Plan plan;
  plan.source = source;
  plan.target = target;
  if (source == target) return plan;

  const std::vector<PlanState> states =
      internal::FindStates(PlanState(source), PlanState(target), costs);
  if (states.empty()) {
    ThrowInvalid("no plan from ", source.ToString(), " to ", target.ToString(), " has a peak of ",
                 *options.max_peak_bytes, " bytes per rank or less");
  }
  for (size_t i = 1; i < states.size(); ++i) {
    const PlanState &before = states[i - 1], &after = states[i];
    const AxisList axes = internal::ChangedAxes(before, after);
    const internal::AxisSet set = internal::SetOf(axes);
    const StepKind kind = internal::StepKindOf(set, before, after);
    plan.steps.push_back({.kind = kind,
                          .axes = axes,
                          .from = i == 1 ? source : plan.steps.back().to,
                          .to = i + 1 == states.size() ? target : after.ToLayout(mesh, shape),
                          .bytes_sent = costs.BytesSent(kind, set, before, after),
                          .seconds = costs.Seconds(kind, set, before, after)});
    plan.bytes_sent += plan.steps.back().bytes_sent;
    plan.seconds += plan.steps.back().seconds;
    plan.peak_bytes =
        std::max(plan.peak_bytes, costs.Bytes(costs.Elements(before) + costs.Elements(after)));
  }
  if (states.size() == 1) {
    plan.steps.push_back({.kind = StepKind::kSlice,
                          .axes = RelabelledAxes(source, target),
                          .from = source,
                          .to = target});
    plan.peak_bytes = costs.Bytes(2 * costs.Elements(states[0]));
  }
  return plan;
}

double MinSeconds(const Layout& source, std::span<const Placement> target,
                  const PlanOptions& options) {
  internal::Work work;
  internal::AxisSet target_sharded = 0, target_partial = 0;
  const CostModel& costs = CostModel::Of(source.mesh(), source.global_shape(), options);
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    const internal::AxisSet bit = costs.real_axes() & (1u << axis);
    const Placement &before = source.placement(axis), &after = target[axis];
    if (after.IsShard()) target_sharded |= bit;
    if (after.IsPartial()) target_partial |= bit;
    if (before.IsPartial()) work.all_partial |= bit;
    if (before.IsShard()) work.all_sharded |= bit;
    if (before.IsPartial() && before != after)
      (after.IsShard() ? work.scattered : work.reduced) |= bit;
  }
  for (int dim = 0; dim < source.global_shape().size(); ++dim) {
    // Splits inside one that leaves the dim move with it.
    internal::AxisSet moving = 0;
    for (const int axis : source.SplitAxes(dim)) {
      const internal::AxisSet bit = costs.real_axes() & (1u << axis);
      if (moving != 0 || !target[axis].IsShard(dim)) moving |= bit;
    }
    work.sharded |= moving;
  }
  return costs.MinSeconds(work, target_sharded, target_partial);
}

}  // namespace shardmesh
