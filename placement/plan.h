// SPDX-License-Identifier: Apache-2.0
//
// A redistribution plan: the collectives and local moves that turn one layout into another, and
// their predicted cost.
//
//   Plan plan = MakePlan(source, target, {.element_bytes = 4});
//   std::cout << plan.Explain();
//
// A step relates two layouts over a group of axes. Who sends which box to whom follows from the
// boxes alone (`Transfers`), so an executor need not know about nested or uneven splits.
#ifndef SHARDMESH_PLACEMENT_PLAN_H_
#define SHARDMESH_PLACEMENT_PLAN_H_

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/placement/layout.h"

namespace shardmesh {

enum class StepKind : uint8_t {
  /// R -> S, local: each rank keeps its own box. Also used to change placements of axes of size
  /// one.
  kSlice,
  /// R -> P, local: ranks at coordinate 0 on all of the step's axes keep the value; others take the
  /// identity of the reduction.
  kMakePartial,
  /// S -> R over the step's axes.
  kAllGather,
  /// P -> R over the step's axes.
  kAllReduce,
  /// P -> S over the step's axes.
  kReduceScatter,
  /// S(i) -> S(j), or any change between non-partial layouts, over the step's axes.
  kAllToAll,
};

/// "slice", "make_partial", "all_gather", "all_reduce", "reduce_scatter", "all_to_all".
std::string_view Name(StepKind kind);

/// One move. Value type. Axes of size 1 take part in no group; they may change placement in any
/// step, and no data moves for that.
struct Step {
  StepKind kind;
  /// The axes of the group that communicates, or that change in a local move, in mesh order.
  AxisList axes;
  Layout from;
  Layout to;
  /// Bytes that the rank at coordinate 0 of every axis sends in a group of p, without padding.
  /// `whole` is the larger of its boxes before and after, `own` the smaller one, `chunk` is
  /// ceil(elements of whole / p).
  ///
  ///   all-gather      (p - 1) x own
  ///   reduce-scatter  whole - own
  ///   all-reduce      whole - chunk + (p - 1) x chunk
  ///   all-to-all      the part that leaves; an upper bound if several members hold the same box
  ///   local moves     0
  int64_t bytes_sent = 0;
  /// Predicted by the cost model.
  double seconds = 0;
};

/// The cost of communication along one axis: seconds = latency * rounds + bytes / bandwidth, with
/// ceil(log2 p) rounds in a group of p, twice that for an all-reduce. A group of several axes has
/// the link of its slowest axis. Only ratios matter.
struct LinkCost {
  double latency_seconds = 5e-6;
  double bytes_per_second = 10e9;
};

struct PlanOptions {
  int64_t element_bytes = 4;
  std::vector<LinkCost> links = {};  ///< One per axis; empty: the default for all.
  double local_bytes_per_second = 50e9;
};

struct Plan {
  Layout source;
  Layout target;
  std::vector<Step> steps;
  int64_t bytes_sent = 0;  ///< Sum over steps.
  int64_t peak_bytes = 0;  ///< Largest sum of a step's input and output on a rank.
  double seconds = 0;

  /// Several lines: source, target, each step with axes, layouts, bytes and cost, then the totals.
  std::string Explain() const;
};

std::ostream& operator<<(std::ostream& out, const Plan& plan);

/// The cheapest plan, without steps if source == target, in which each axis takes no placements
/// other than that of the source, that of the target, and Replicate. Adjacent steps of the same
/// kind are merged over all their axes, unless links differ and the merged step costs more. Axes
/// that become Partial do so from Replicate, in a last local step.
///
/// Cost:   independent of the number of ranks.
/// Errors: throws Error(kInvalidArgument) naming both layouts if mesh or global shape differ, or if
///         the options do not fit the mesh.
Plan MakePlan(const Layout& source, const Layout& target, const PlanOptions& options = {});

/// One box that goes from one member of a group to another; `source == target` is a local copy.
struct Transfer {
  int source;  ///< Position in the group (row-major over the step's axes).
  int target;
  Box box;  ///< Global indices.
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// The transfers that turn layout `from` into layout `to` in the group of `axes` that contains
/// `coord`; neither layout is Partial on `axes`. They cover every target box exactly once. If
/// several members hold a box, the source is the target itself if it is among them, else the member
/// with the lowest position. Sorted by target, then source; none is empty.
///
/// Errors: throws Error(kInvalidArgument) naming both layouts if their meshes or shapes differ, one
///         is Partial on an axis of the group, or the group does not hold all that targets need.
std::vector<Transfer> Transfers(const Layout& from, const Layout& to, const AxisList& axes,
                                std::span<const int> coord);

/// Coordinates of the members of the group of `axes` that contains `coord`, row-major over `axes`
/// in the order given.
///
/// Errors: throws Error(kInvalidArgument) if `axes` has an axis twice or one that the mesh does not
///         have, or `coord` is not in the mesh.
std::vector<Coord> GroupCoords(const MeshShape& mesh, const AxisList& axes,
                               std::span<const int> coord);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_PLAN_H_
