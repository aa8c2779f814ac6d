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

/// Dijkstra's search over the states in which every axis has its placement in `source`, its
/// placement in `target`, or Replicate, in every split order. It is exact for the moves in the
/// table. `a` is an axis of size greater than one; a new split is the innermost of its dim:
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
/// The search treats axes that become Partial as Replicate; a local move at the end makes them
/// Partial. Equal costs go to fewer moves, then to a fixed order, so the same arguments give the
/// same moves on every rank. The time does not depend on the number of ranks, as only sizes are
/// used.
std::vector<Move> FindMoves(const PlanState& source, const PlanState& target,
                            const CostModel& costs);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
