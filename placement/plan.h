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
#include <optional>
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
  /// Predicted from LinkCost and bytes; those of the rank that sends or receives most:
  ///
  ///   reduce-scatter  (p - 1) x own, which the rank at coordinate 0 receives
  ///   all-to-all      (p - 1) / p of what the group asks of a rank
  ///   slice           the bytes of the result, over the local bandwidth
  ///   make partial    the bytes of the source, over the local bandwidth
  double seconds = 0;
};

struct PlanOptions {
  int64_t element_bytes = 4;
  std::vector<LinkCost> links = {};  ///< One per axis; empty: those of the mesh.
  double local_bytes_per_second = 50e9;
  /// No step has a larger sum of input and output on a rank.
  std::optional<int64_t> max_peak_bytes = {};
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

/// The cheapest of all plans, without steps if source == target. On the way an axis may be
/// Replicate, shard any dim in any split order, or be Partial with an op of the source or the
/// target. A step may change any number of axes; whether two are cheaper than one over both is a
/// matter of price (two gathers of uneven boxes may send less than one). What a step does to an
/// axis, with a new split innermost except in an all-to-all:
///
///   | step           | each of its axes                                         |
///   |----------------|----------------------------------------------------------|
///   | slice          | R -> S                                                   |
///   | make partial   | R -> P                                                   |
///   | all-gather     | S -> R; no other axis splits the dim inside it           |
///   | all-reduce     | P -> R                                                   |
///   | reduce-scatter | P -> S                                                   |
///   | all-to-all     | any change among R and S, or a split outside it changes  |
///
/// A plan is charged 10 ns per step and 1 ns per axis of a step beyond `seconds`, so that equal
/// costs go to fewer steps, then to smaller groups, then to the first in the order of
/// internal/plan_search.h. The result is a pure function of the arguments. A search that has looked
/// at a fixed, large number of layouts, which takes more than four axes, ends with the cheapest
/// plan so far.
///
/// Cost:   independent of the number of ranks.
/// Errors: throws Error(kInvalidArgument) naming both layouts if mesh or global shape differ, if
///         the options do not fit the mesh, or if no plan stays below the cap on peak bytes.
Plan MakePlan(const Layout& source, const Layout& target, const PlanOptions& options = {});

/// A lower bound of MakePlan(source, t).seconds for all t that have the placements `target`, in any
/// split order. Takes well under a microsecond and makes no layout.
double MinSeconds(const Layout& source, std::span<const Placement> target,
                  const PlanOptions& options = {});

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

/// What one rank has to do with the transfers of its group.
struct RankTransfers {
  int position = 0;  ///< Of the rank in the group.
  int group_size = 1;
  std::vector<Transfer> sends;     ///< source == position, by target; with the local copy.
  std::vector<Transfer> receives;  ///< target == position, by source; with the local copy.
};

/// Of the transfers that Transfers lists, those from and to the rank at `coord`.
///
/// Cost:   what the rank sends and receives; independent of the size of the group.
/// Errors: as Transfers, except that only the rank's own box is checked.
RankTransfers TransfersOfRank(const Layout& from, const Layout& to, const AxisList& axes,
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
