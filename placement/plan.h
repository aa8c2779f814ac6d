// SPDX-License-Identifier: Apache-2.0
//
// How one layout becomes another: a sequence of collectives and local moves, with its price.
//
//   Plan plan = MakePlan(source, target, {.element_bytes = 4});
//   std::cout << plan.Explain();
//
// A step is a relation between two layouts over a group of axes. Who sends which box to whom
// follows from the boxes alone (`Transfers`), so an executor needs no knowledge of nesting or
// unevenness.
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
  /// R -> S, local: keep the own box. Also what relabels axes of size one.
  kSlice,
  /// R -> P, local: keep where the coordinate is 0 on all of the step's axes, elsewhere the
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

/// One move. Value type. Axes of size one take part in no group; that such an axis changes its
/// placement may show between `from` and `to` of any step, and concerns no box and no value.
struct Step {
  StepKind kind;
  /// In mesh order; the group that communicates. For a local move, the axes that change.
  AxisList axes;
  Layout from;
  Layout to;
  /// Sent by the rank at coordinate 0 of every axis, over a group of p. Boxes, not padding: `whole`
  /// is its box before, `own` its own part of it, `chunk` ceil(elements of whole / p).
  ///
  ///   all-gather      (p - 1) x own
  ///   reduce-scatter  whole - own
  ///   all-reduce      whole - chunk + (p - 1) x chunk
  ///   all-to-all      what leaves; an upper bound if several members hold the same box
  ///   local moves     0
  int64_t bytes_sent = 0;
  /// Under the cost model.
  double seconds = 0;
};

/// What moving bytes costs along one axis: seconds = latency * rounds + bytes / bandwidth, with
/// ceil(log2 p) rounds over a group of p, twice that for an all-reduce; a group of several axes is
/// as slow as its slowest. Only ratios matter.
struct LinkCost {
  double latency_seconds = 5e-6;
  double bytes_per_second = 10e9;
};

struct PlanOptions {
  int64_t element_bytes = 4;
  std::vector<LinkCost> links = {};  ///< One an axis; empty: the default for all.
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

/// The cheapest plan found; without steps if source == target. Each axis goes through its placement
/// in the source, its placement in the target, and Replicate, and through no other. Neighbouring
/// steps of one kind are one step over all their axes, unless their links differ and that one step
/// costs more. Axes that become Partial do so from Replicate, in one last local step.
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

/// All transfers by which the group of `axes` that contains `coord` turns layout `from` into layout
/// `to`; neither has a Partial among `axes`. Every target box is covered exactly once. Where
/// several members hold a box, the target itself is taken if it holds it, else the one with the
/// lowest position. Sorted by target, then source; none is empty.
///
/// Errors: throws Error(kInvalidArgument) naming both layouts if their meshes or shapes differ, one
///         is Partial on an axis of the group, or the group does not hold what the targets need.
std::vector<Transfer> Transfers(const Layout& from, const Layout& to, const AxisList& axes,
                                std::span<const int> coord);

/// Coordinates of the members of the group of `axes` that contains `coord`, row-major over `axes`
/// in the order given.
///
/// Errors: throws Error(kInvalidArgument) if `axes` names an axis twice or one that the mesh has
///         not, or `coord` is not in the mesh.
std::vector<Coord> GroupCoords(const MeshShape& mesh, const AxisList& axes,
                               std::span<const int> coord);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_PLAN_H_
