// SPDX-License-Identifier: Apache-2.0
//
// The cheapest sequence of steps from one state to another.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
#define SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_

#include <vector>

#include "shardmesh/placement/internal/cost_model.h"
#include "shardmesh/placement/internal/plan_state.h"

namespace shardmesh::internal {

/// The states of the cheapest plan, from `source` to `target`; each pair of neighbours is a step
/// (`StepKindOf`). Empty if no plan stays below the cap on peak bytes.
///
/// A* over all states that the table in plan.h reaches. The lower bound is the exact cost of what
/// remains in the space of coarse states (coarse_search.h), so that most searches go straight to
/// the target. Exact, unless the search ends early after kMaxExpanded states. Among equal costs the
/// state that was found first wins; steps are tried in the reverse of the order in which the coarse
/// search met them. A pure function of its arguments; the memory of a search is kept for the
/// thread's next one. The time does not depend on the number of ranks, as only sizes are used.
std::vector<PlanState> FindStates(const PlanState& source, const PlanState& target,
                                  const CostModel& costs);

inline constexpr int kMaxExpanded = 50000;

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
