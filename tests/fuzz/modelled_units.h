// SPDX-License-Identifier: Apache-2.0
//
// FullyShard of branches, and what a model of what is gathered has to know of the units.
#ifndef SHARDMESH_TESTS_FUZZ_MODELLED_UNITS_H_
#define SHARDMESH_TESTS_FUZZ_MODELLED_UNITS_H_

#include <set>
#include <vector>

#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/tests/fuzz/branch.h"
#include "shardmesh/tests/fuzz/gather_model.h"

namespace shardmesh::fsdp {

class ModelledUnits {
 public:
  using Unit = std::vector<Branch*>;  ///< The modules of one; the model knows it by the first.

  ModelledUnits(DeviceMesh mesh, GatherModel& model) : mesh_(std::move(mesh)), model_(model) {}

  /// Returns false if FullyShard refuses the unit: one of the modules is a unit already, or has a
  /// parameter of one, as tied.
  bool Make(const Unit& modules, const FullyShardOptions& options);
  /// Once all are made.
  void FindRoots();

  bool empty() const { return units_.empty(); }
  /// Those of which a module is `branch` or, if `recursive`, within it.
  std::vector<Unit> Below(const Branch& branch, bool recursive) const;

 private:
  void ClaimParameters(Branch& branch, const FullyShardOptions& options, GatherModel::Unit& unit);

  DeviceMesh mesh_;
  GatherModel& model_;
  std::vector<Unit> units_;
  std::set<const void*> claimed_;  // Parameters that a unit has or has ignored.
};

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_TESTS_FUZZ_MODELLED_UNITS_H_
