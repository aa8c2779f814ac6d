// SPDX-License-Identifier: Apache-2.0
//
// The cheapest sequence of moves from one state to another.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
#define SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_

#include <vector>

#include "shardmesh/placement/internal/cost_model.h"
#include "shardmesh/placement/internal/plan_state.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::internal {

struct Move {
  StepKind kind;
  AxisList axes;  ///< In mesh order.
  PlanState from;
  PlanState to;
};

/// Dijkstra's search over the states in which every axis has its placement of `source`, its
/// placement of `target`, or Replicate, in every split order. It is exact for these moves; `a` is
/// an axis larger than one, which every new split makes the innermost of its dim:
///
///   | move           | kind           | over                                                     |
///   |----------------|----------------|----------------------------------------------------------|
///   | S(d) -> R      | all-gather     | a, which must be the innermost split of d                |
///   | S(d) -> S(e)   | all-to-all     | a and the splits of d inside it; e == d reorders         |
///   | P -> R         | all-reduce     | a                                                        |
///   | P -> S(d)      | reduce-scatter | a                                                        |
///   | R -> S(d)      | slice          | a, local                                                 |
///   | to the target  | all-to-all     | all axes that differ, if none is Partial; an all-gather  |
///   |                |                | if all of them become R                                  |
///
/// Axes that become Partial are searched for as Replicate; one local move at the end makes them
/// Partial. Equal costs go to fewer moves, then to a fixed order: the same arguments give the same
/// moves on every rank. The search knows sizes alone, no ranks: its time does not depend on how
/// many there are.
std::vector<Move> FindMoves(const PlanState& source, const PlanState& target,
                            const CostModel& costs);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
