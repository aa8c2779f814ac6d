// SPDX-License-Identifier: Apache-2.0
//
// The placements of a layout without its mesh and shape: a node of the planner's search. It takes
// one byte per axis, so a search over thousands of states neither allocates nor interns layouts.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_PLAN_STATE_H_
#define SHARDMESH_PLACEMENT_INTERNAL_PLAN_STATE_H_

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "shardmesh/base/dims.h"
#include "shardmesh/base/reduce_op.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh::internal {

/// A set of mesh axes, as bits.
using AxisSet = uint32_t;

inline constexpr bool Has(AxisSet set, int axis) { return ((set >> axis) & 1u) != 0; }

/// Immutable value type. A sharding axis has a dim and a depth, the number of splits of that dim
/// outside it. Axes of size one are always Replicate here, as no box depends on them.
class PlanState {
 public:
  /// Replicate everywhere.
  PlanState() = default;
  explicit PlanState(const Layout& layout);

  /// The layout of this state, with Replicate on axes of size one.
  Layout ToLayout(const MeshShape& mesh, const Dims& shape) const;
  Placement placement(int axis) const;

  bool IsReplicate(int axis) const { return codes_[axis] == kReplicate; }
  bool IsPartial(int axis) const { return codes_[axis] != kReplicate && codes_[axis] < kShard; }
  bool IsShard(int axis) const { return codes_[axis] >= kShard; }
  bool IsShard(int axis, int dim) const { return IsShard(axis) && ShardDim(axis) == dim; }
  int ShardDim(int axis) const { return (codes_[axis] - kShard) / kDepths; }
  int Depth(int axis) const { return (codes_[axis] - kShard) % kDepths; }
  ReduceOp PartialOp(int axis) const { return static_cast<ReduceOp>(codes_[axis] - kPartial); }
  /// For in-place changes, which must leave depths 0, 1, .. in each dim.
  void SetReplicate(int axis) { codes_[axis] = kReplicate; }
  void SetPartial(int axis, ReduceOp op) {
    codes_[axis] = static_cast<uint8_t>(kPartial + static_cast<int>(op));
  }
  void SetShard(int axis, int dim, int depth) {
    codes_[axis] = static_cast<uint8_t>(kShard + dim * kDepths + depth);
  }

  /// All of the state in one word.
  uint64_t Word() const { return std::bit_cast<uint64_t>(codes_); }

  friend bool operator==(const PlanState& a, const PlanState& b) { return a.Word() == b.Word(); }

 private:
  static constexpr int kReplicate = 0;
  static constexpr int kPartial = 1;  // 1..4, one per op.
  static constexpr int kShard = 8;    // 8 + dim * kDepths + depth.
  static constexpr int kDepths = 8;
  static_assert(MeshShape::kMaxAxes <= kDepths && kShard + Dims::kMaxRank * kDepths <= 256);

  std::array<uint8_t, 8> codes_{};
  static_assert(MeshShape::kMaxAxes <= 8);
};

/// A state taken apart: its axes by placement, and the axes that split each dim.
struct PlanParts {
  AxisSet replicated = 0;
  AxisSet partial = 0;
  AxisSet sharded = 0;
  std::array<uint8_t, Dims::kMaxRank> num_splits{};
  std::array<std::array<uint8_t, MeshShape::kMaxAxes>, Dims::kMaxRank> splits;  // Outermost first.

  PlanParts() = default;
  /// Of those of `axes`.
  PlanParts(const PlanState& state, AxisSet axes);
};

/// The axes along which data moves when `from` becomes `to`, in mesh order: those whose placement
/// changes, and those that split a dim inside a split that changes, because their pieces are then
/// parts of other chunks. The group of these axes holds all data that its members need.
AxisList ChangedAxes(const PlanState& from, const PlanState& to);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_PLAN_STATE_H_
