// SPDX-License-Identifier: Apache-2.0
//
// The cheapest sequence of steps from one state to another.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
#define SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_

#include <optional>
#include <vector>

#include "shardmesh/placement/internal/cost_model.h"
#include "shardmesh/placement/internal/plan_state.h"

namespace shardmesh::internal {

/// The states of the cheapest plan, from `source` to `target`; each pair of neighbours is a step
/// (`StepKindOf`). Empty if no plan stays below the cap on peak bytes.
///
/// A* over all states that the table in plan.h reaches, with CostModel::MinSeconds as the lower
/// bound of what remains. Exact, unless the search ends early after kMaxExpanded states. Among
/// equal costs the state that was found first wins; states are found in the order of slice, make
/// partial, all-gather, all-reduce, reduce-scatter, all-to-all, for each in the order of the sets
/// of axes read as binary numbers. The time does not depend on the number of ranks, as only sizes
/// are used.
std::vector<PlanState> FindStates(const PlanState& source, const PlanState& target,
                                  const CostModel& costs);

inline constexpr int kMaxExpanded = 50000;

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_PLAN_SEARCH_H_
