// SPDX-License-Identifier: Apache-2.0
//
// The cost of a move. It depends only on the extents at coordinate 0, so computing it takes the
// same few operations for 4 ranks and for 16,384.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_
#define SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_

#include <cstdint>
#include <span>

#include "shardmesh/base/dims.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/internal/plan_state.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::internal {

bool IsLocal(StepKind kind);

/// Costs of moves of one tensor on one mesh. Keeps references to the constructor's arguments.
class CostModel {
 public:
  /// Errors: throws Error(kInvalidArgument) if `options` does not fit the mesh.
  CostModel(const MeshShape& mesh, const Dims& shape, const PlanOptions& options);

  int num_axes() const { return mesh_.num_axes(); }
  int AxisSize(int axis) const { return mesh_.size(axis); }

  /// Extents of the box at coordinate 0: the largest of all ranks in every dim.
  Dims LocalShape(const PlanState& state) const;
  int64_t LocalBytes(const PlanState& state) const;

  /// Bytes that the rank at coordinate 0 sends. An upper bound for an all-to-all in which several
  /// members hold the same source box.
  int64_t BytesSent(StepKind kind, std::span<const int> axes, const PlanState& from,
                    const PlanState& to) const;

  /// Latency of the slowest axis times the rounds of a tree, plus bytes over the bandwidth of the
  /// slowest axis; for a local move, the bytes copied over the local bandwidth. In an all-to-all
  /// of g members, 1/g of the data is assumed to stay in place.
  double Seconds(StepKind kind, std::span<const int> axes, const PlanState& from,
                 const PlanState& to) const;

  /// True if all of `axes` have links of the same cost.
  bool SameLinks(std::span<const int> axes) const;

 private:
  int64_t GroupSize(std::span<const int> axes) const;
  /// Bytes of the source box that the members of the group need in total.
  int64_t BytesAsked(std::span<const int> axes, const PlanState& from, const PlanState& to) const;
  LinkCost Link(int axis) const {
    return options_.links.empty() ? LinkCost() : options_.links[axis];
  }

  const MeshShape& mesh_;
  const Dims& shape_;
  const PlanOptions& options_;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_
