// SPDX-License-Identifier: Apache-2.0
//
// The cost of the cheapest plan by brute force: all layouts are listed, every pair of them is a
// step or none by the definition of steps, and Dijkstra's algorithm runs on the whole graph. It
// shares no code with the planner except layouts and boxes.
//
//   const PlanOracle oracle(mesh, {5, 3}, {ReduceOp::kSum}, options);
//   oracle.Costs(source)[target];   // indices into oracle.layouts()
#ifndef SHARDMESH_PLACEMENT_TESTING_PLAN_ORACLE_H_
#define SHARDMESH_PLACEMENT_TESTING_PLAN_ORACLE_H_

#include <cstdint>
#include <vector>

#include "shardmesh/placement/plan.h"

namespace shardmesh::testing {

class PlanOracle {
 public:
  /// What a plan is charged for each step, and for each axis of a step, besides its seconds.
  static constexpr double kSecondsPerStep = 1e-8;
  static constexpr double kSecondsPerAxis = 1e-9;
  static double Charge(const Plan& plan) {
    double charge = 0;
    for (const Step& step : plan.steps)
      charge += kSecondsPerStep + kSecondsPerAxis * static_cast<double>(step.axes.size());
    return charge;
  }

  /// Layouts that are Partial use one of `ops`. No axis of `mesh` has size one.
  PlanOracle(const MeshShape& mesh, const Dims& shape, const std::vector<ReduceOp>& ops,
             const PlanOptions& options);

  const std::vector<Layout>& layouts() const { return layouts_; }
  /// For each layout the least sum, over the steps of a plan to it, of seconds and charge;
  /// infinite if the cap on peak bytes allows no plan.
  std::vector<double> Costs(int source) const;
  /// What one step from one layout to another costs; infinite if there is no such step.
  double StepCost(int from, int to) const { return edges_[from * layouts_.size() + to]; }

 private:
  double EdgeCost(const Layout& from, const Layout& to) const;

  MeshShape mesh_;
  PlanOptions options_;
  std::vector<Layout> layouts_;
  std::vector<double> edges_;
};

}  // namespace shardmesh::testing

#endif  // SHARDMESH_PLACEMENT_TESTING_PLAN_ORACLE_H_
