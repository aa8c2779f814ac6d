// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_state.h"

#include <algorithm>

namespace shardmesh::internal {
namespace {

constexpr int kMaxAxes = MeshShape::kMaxAxes;

/// Depth of the outermost split of `dim` that differs; a depth that no axis has if none does.
int FirstDifference(const PlanState& a, const PlanState& b, int dim) {
  int first = kMaxAxes;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const bool in_a = a.IsShard(axis, dim), in_b = b.IsShard(axis, dim);
    if (in_a && in_b && a.Depth(axis) == b.Depth(axis)) continue;
    if (in_a) first = std::min(first, a.Depth(axis));
    if (in_b) first = std::min(first, b.Depth(axis));
  }
  return first;
}

}  // namespace

PlanState::PlanState(const Layout& layout) {
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const Placement& placement = layout.placement(axis);
    if (placement.IsPartial() && layout.mesh().size(axis) > 1) {
      codes_[axis] = static_cast<uint8_t>(kPartial + static_cast<int>(placement.op()));
    }
  }
  for (int dim = 0; dim < layout.global_shape().size(); ++dim) {
    int depth = 0;
    for (const int axis : layout.SplitAxes(dim)) {
      if (layout.mesh().size(axis) > 1)
        codes_[axis] = static_cast<uint8_t>(kShard + dim * kDepths + depth++);
    }
  }
}

Placement PlanState::placement(int axis) const {
  if (IsShard(axis)) return Shard(ShardDim(axis));
  return IsPartial(axis) ? Partial(PartialOp(axis)) : Replicate();
}

Layout PlanState::ToLayout(const MeshShape& mesh, const Dims& shape) const {
  Placements placements;
  AxisList order;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    placements.push_back(placement(axis));
    if (IsShard(axis)) order.push_back(axis);
  }
  std::stable_sort(order.begin(), order.end(),
                   [this](int a, int b) { return Depth(a) < Depth(b); });
  return Layout::Make(mesh, placements, shape, order);
}

AxisList ChangedAxes(const PlanState& from, const PlanState& to) {
  bool changed[kMaxAxes] = {};
  for (int axis = 0; axis < kMaxAxes; ++axis)
    changed[axis] = from.placement(axis) != to.placement(axis);
  for (int dim = 0; dim < Dims::kMaxRank; ++dim) {
    const int first = FirstDifference(from, to, dim);
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      for (const PlanState* state : {&from, &to}) {
        if (state->IsShard(axis, dim) && state->Depth(axis) >= first) changed[axis] = true;
      }
    }
  }
  AxisList axes;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (changed[axis]) axes.push_back(axis);
  }
  return axes;
}

}  // namespace shardmesh::internal
