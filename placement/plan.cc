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
using internal::Move;
using internal::PlanState;

double Seconds(const CostModel& costs, const Move& move) {
  return costs.Seconds(move.kind, move.axes, move.from, move.to);
}

/// `first` followed by `second`, of the same kind, as one move over the axes of both. Any kind
/// except all-to-all: with the others, the second move cannot undo what the first changed on an
/// axis.
Move Merged(const Move& first, const Move& second) {
  Move merged{first.kind, first.axes, first.from, second.to};
  merged.axes.insert(merged.axes.end(), second.axes.begin(), second.axes.end());
  std::sort(merged.axes.begin(), merged.axes.end());
  return merged;
}

std::vector<Move> MergeNeighbours(const std::vector<Move>& moves, const CostModel& costs) {
  std::vector<Move> result;
  for (const Move& move : moves) {
    if (!result.empty() && result.back().kind == move.kind && move.kind != StepKind::kAllToAll) {
      const Move merged = Merged(result.back(), move);
      const double apart = Seconds(costs, result.back()) + Seconds(costs, move);
      if (internal::IsLocal(move.kind) || costs.SameLinks(merged.axes) ||
          Seconds(costs, merged) <= apart) {
        result.back() = merged;
        continue;
      }
    }
    result.push_back(move);
  }
  return result;
}

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
  const CostModel costs(mesh, shape, options);
  Plan plan;
  plan.source = source;
  plan.target = target;
  if (source == target) return plan;

  const std::vector<Move> moves =
      MergeNeighbours(internal::FindMoves(PlanState(source), PlanState(target), costs), costs);
  for (const Move& move : moves) {
    const Layout from = plan.steps.empty() ? source : plan.steps.back().to;
    const Layout to =
        plan.steps.size() + 1 == moves.size() ? target : move.to.ToLayout(mesh, shape);
    plan.steps.push_back({.kind = move.kind,
                          .axes = move.axes,
                          .from = from,
                          .to = to,
                          .bytes_sent = costs.BytesSent(move.kind, move.axes, move.from, move.to),
                          .seconds = Seconds(costs, move)});
    plan.bytes_sent += plan.steps.back().bytes_sent;
    plan.seconds += plan.steps.back().seconds;
    plan.peak_bytes =
        std::max(plan.peak_bytes, costs.LocalBytes(move.from) + costs.LocalBytes(move.to));
  }
  if (moves.empty()) {
    plan.steps.push_back({.kind = StepKind::kSlice,
                          .axes = RelabelledAxes(source, target),
                          .from = source,
                          .to = target});
    plan.peak_bytes = 2 * costs.LocalBytes(PlanState(source));
  }
  return plan;
}

}  // namespace shardmesh
