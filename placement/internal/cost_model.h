// SPDX-License-Identifier: Apache-2.0
//
// The cost of a step and a lower bound of the cost of a plan. Both depend only on the extents at
// coordinate 0, so computing them takes the same few operations for 4 ranks and for 16,384.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_
#define SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_

#include <array>
#include <cstdint>
#include <optional>

#include "shardmesh/base/dims.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/internal/plan_state.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::internal {

AxisSet SetOf(const AxisList& axes);

/// What a plan still has to do; axes may be in none of the sets.
struct Work {
  /// They shard, and not as in the target: they must take part in an all-gather or all-to-all.
  AxisSet sharded = 0;
  /// Partial, Replicate or another Partial in the target: reduced and gathered, or all-reduced.
  AxisSet reduced = 0;
  /// Partial, and shard in the target.
  AxisSet scattered = 0;
  /// All that are Partial now, and all that shard.
  AxisSet all_partial = 0;
  AxisSet all_sharded = 0;
};

/// Costs of steps of one tensor on one mesh.
class CostModel {
 public:
  /// One that this thread keeps: the same tensors and meshes come again and again, and a bound
  /// takes a tenth of the time of a cost model. Its axes may have other names. It holds until the
  /// next call.
  ///
  /// Errors: throws Error(kInvalidArgument) if `options` does not fit the mesh.
  static const CostModel& Of(const MeshShape& mesh, const Dims& shape, const PlanOptions& options);

  /// Errors: throws Error(kInvalidArgument) if `options` does not fit the mesh.
  CostModel(const MeshShape& mesh, const Dims& shape, const PlanOptions& options);

  const MeshShape& mesh() const { return mesh_; }
  const Dims& shape() const { return shape_; }
  /// The axes of more than one rank.
  AxisSet real_axes() const { return real_axes_; }
  int GroupSize(AxisSet axes) const { return groups_[axes].size; }
  int NumAxes(AxisSet axes) const { return groups_[axes].num_axes; }

  /// The largest extent of a dim that `splits` split.
  int64_t Extent(int dim, AxisSet splits) const { return extents_[dim][splits]; }
  /// Elements of the box at coordinate 0, the largest of all ranks in every dim.
  int64_t Elements(const PlanState& state) const;
  int64_t Bytes(int64_t elements) const { return elements * options_.element_bytes; }
  /// Whether a step with these elements before and after stays below the cap on peak bytes.
  bool Fits(int64_t before, int64_t after) const {
    return !options_.max_peak_bytes || Bytes(before + after) <= *options_.max_peak_bytes;
  }

  /// Bytes that the rank at coordinate 0 sends. An upper bound for an all-to-all in which several
  /// members hold the same source box.
  int64_t BytesSent(StepKind kind, AxisSet axes, const PlanState& from, const PlanState& to) const;

  /// Latency of the slowest axis times the rounds of a tree, plus bytes over the bandwidth of the
  /// slowest axis; for a local step, the bytes copied over the local bandwidth. In an all-to-all
  /// of g members, 1/g of the data is assumed to stay in place.
  double Seconds(StepKind kind, AxisSet axes, const PlanState& from, const PlanState& to) const;

  // The same of one kind each, from elements at coordinate 0.
  double CopySeconds(int64_t elements) const {
    return static_cast<double>(Bytes(elements)) * local_seconds_per_byte_;
  }
  double AllGatherSeconds(AxisSet axes, int64_t before) const {
    return LinkSeconds(axes, 1, static_cast<double>(Bytes(before)) * (groups_[axes].size - 1));
  }
  double AllReduceSeconds(AxisSet axes, int64_t elements) const {
    return LinkSeconds(axes, 2, static_cast<double>(Bytes(AllReduceElements(axes, elements))));
  }
  /// That of the rank which receives most, a summand of its box from each of the others. What the
  /// rank at coordinate 0 sends would be nothing where it keeps all.
  double ReduceScatterSeconds(AxisSet axes, int64_t after) const {
    return LinkSeconds(axes, 1, static_cast<double>(Bytes(after)) * (groups_[axes].size - 1));
  }
  /// `replicated`: those of `axes` that replicate afterwards, so that many members ask for a box.
  double AllToAllSeconds(AxisSet axes, AxisSet replicated, int64_t before) const {
    const double asked = static_cast<double>(Bytes(before)) * groups_[replicated].size;
    return LinkSeconds(axes, 1, asked * groups_[axes].kept_factor);
  }

  /// A lower bound of the seconds that `work` takes on the way to a target that shards
  /// `target_sharded` and is Partial on `target_partial`.
  double MinSeconds(const Work& work, AxisSet target_sharded, AxisSet target_partial) const;

 private:
  struct Group {
    int num_axes = 0;
    int size = 1;
    double latency_seconds = 0;
    double seconds_per_byte = 0;
    double tree_seconds = 0;  ///< Latency times rounds.
    double part = 1;          ///< 1 / size.
    double kept_factor = 0;   ///< (size - 1) / size.
  };
  /// Axes that are slower by `step` than those which are in the layers before only.
  struct Layer {
    AxisSet axes;
    double step;
  };

  LinkCost Link(int axis) const {
    return options_.links.empty() ? mesh_.axis(axis).link : options_.links[axis];
  }
  double LinkSeconds(AxisSet axes, int trees, double bytes) const {
    const Group& group = groups_[axes];
    return group.tree_seconds * trees + bytes * group.seconds_per_byte;
  }
  int64_t AllReduceElements(AxisSet axes, int64_t elements) const {
    // Reduce-scatter and all-gather of the flattened elements:
    // (whole - chunk) + (group - 1) * chunk.
    const int64_t group = groups_[axes].size;
    return elements + (group - 2) * ((elements + group - 1) / group);
  }
  double BytesOver(AxisSet splits) const { return total_bytes_ * groups_[splits].part; }
  double MinLinkSeconds(const Work& work, AxisSet target_sharded, AxisSet sliced) const;
  void FillGroups();
  void FillLayers();

  const MeshShape mesh_;
  const Dims shape_;
  const PlanOptions options_;
  AxisSet real_axes_ = 0;
  double local_seconds_per_byte_;
  double total_bytes_;
  std::array<std::array<int64_t, 1 << MeshShape::kMaxAxes>, Dims::kMaxRank> extents_;
  std::array<Group, 1 << MeshShape::kMaxAxes> groups_;
  std::array<Layer, MeshShape::kMaxAxes> latency_layers_;
  std::array<Layer, MeshShape::kMaxAxes> bandwidth_layers_;
  int num_latency_layers_ = 0;
  int num_bandwidth_layers_ = 0;
};

bool IsLocal(StepKind kind);

/// The kind of the step from one state to another over `axes`, those along which they differ;
/// nothing if it takes more than one step. StepKindOf is for states that are one step apart.
std::optional<StepKind> FindStepKind(AxisSet axes, const PlanState& from, const PlanState& to);
StepKind StepKindOf(AxisSet axes, const PlanState& from, const PlanState& to);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_COST_MODEL_H_
