// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_state.h"

#include <algorithm>
#include <array>

namespace shardmesh::internal {
namespace {

constexpr int kMaxAxes = MeshShape::kMaxAxes;

/// The axis that splits a dim at a depth, plus one; 0 for none.
using Splits = std::array<std::array<uint8_t, kMaxAxes>, Dims::kMaxRank>;

Splits SplitsOf(const PlanState& state) {
  Splits splits{};
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (state.IsShard(axis))
      splits[state.ShardDim(axis)][state.Depth(axis)] = static_cast<uint8_t>(axis + 1);
  }
  return splits;
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

PlanParts::PlanParts(const PlanState& state, AxisSet axes) {
  for (AxisSet rest = axes; rest != 0; rest &= rest - 1) {
    const int axis = std::countr_zero(rest);
    if (state.IsReplicate(axis)) {
      replicated |= 1u << axis;
    } else if (state.IsPartial(axis)) {
      partial |= 1u << axis;
    } else {
      const int dim = state.ShardDim(axis);
      sharded |= 1u << axis;
      ++num_splits[dim];
      splits[dim][state.Depth(axis)] = static_cast<uint8_t>(axis);
    }
  }
}

AxisList ChangedAxes(const PlanState& from, const PlanState& to) {
  const Splits before = SplitsOf(from), after = SplitsOf(to);
  std::array<bool, kMaxAxes> changed{};
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (!from.IsShard(axis) && !to.IsShard(axis))
      changed[axis] = from.placement(axis) != to.placement(axis);
    // A split changes if it does itself, or one outside it.
    for (const PlanState* state : {&from, &to}) {
      if (!state->IsShard(axis)) continue;
      const int dim = state->ShardDim(axis);
      for (int depth = 0; depth <= state->Depth(axis); ++depth)
        changed[axis] = changed[axis] || before[dim][depth] != after[dim][depth];
    }
  }
  AxisList axes;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (changed[axis]) axes.push_back(axis);
  }
  return axes;
}

}  // namespace shardmesh::internal
