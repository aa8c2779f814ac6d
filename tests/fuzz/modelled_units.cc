// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/modelled_units.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh::fsdp {
namespace {

bool IsWithin(nn::Module& inner, const nn::Module& outer) {
  for (nn::Module* above = inner.parent(); above != nullptr; above = above->parent()) {
    if (above == &outer) return true;
  }
  return false;
}

// Whether a module of one is within one of the other.
bool IsWithin(const ModelledUnits::Unit& inner, const ModelledUnits::Unit& outer) {
  return std::any_of(inner.begin(), inner.end(), [&](Branch* mine) {
    return std::any_of(outer.begin(), outer.end(),
                       [&](const Branch* theirs) { return IsWithin(*mine, *theirs); });
  });
}

}  // namespace

bool ModelledUnits::Make(const Unit& modules, const FullyShardOptions& options) {
  const absl::Status status = Catch([&] {
    FullyShard(std::vector<nn::Module*>(modules.begin(), modules.end()), mesh_, options);
  });
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  if (!status.ok()) return false;
  units_.push_back(modules);
  GatherModel::Unit& unit = model_.AddUnit({modules.begin(), modules.end()});
  for (Branch* module : modules) ClaimParameters(*module, options, unit);
  unit.strategy = options.strategy;
  unit.reshard_after_forward = options.reshard_after_forward;
  unit.has_slices = options.reshard_after_forward_axes.has_value();
  return true;
}

void ModelledUnits::ClaimParameters(Branch& branch, const FullyShardOptions& options,
                                    GatherModel::Unit& unit) {
  const auto without = [this](Layout layout, const std::vector<std::string>& axes) {
    const MeshShape& shape = mesh_.shape();
    for (const std::string& axis : axes) {
      if (shape.Has(axis)) layout = layout.With(shape.Index(axis), Replicate());
    }
    return layout.LocalShape(mesh_.coord()).NumElements() * 8;
  };
  for (const nn::Parameter& parameter : branch.Parameters()) {
    if (!claimed_.insert(parameter.id()).second) continue;
    if (options.ignored && options.ignored(parameter)) continue;
    GatherModel::Parameter claimed;
    claimed.bytes = without(parameter.layout(), {"dp", "cp"});
    if (const auto& kept = options.reshard_after_forward_axes)
      claimed.slice_bytes = without(parameter.layout(), {kept->front() == "dp" ? "cp" : "dp"});
    unit.parameters.push_back(claimed);
  }
}

void ModelledUnits::FindRoots() {
  for (const Unit& unit : units_) {
    bool is_within = false;
    bool is_around = std::any_of(unit.begin(), unit.end(),
                                 [](Branch* module) { return module->parent() == nullptr; });
    for (const Unit& other : units_) {
      if (&other == &unit) continue;
      is_within |= IsWithin(unit, other);
      is_around |= IsWithin(other, unit);
    }
    model_.unit(unit[0]).is_root = is_around && !is_within;
  }
}

std::vector<ModelledUnits::Unit> ModelledUnits::Below(const Branch& branch, bool recursive) const {
  std::vector<Unit> below;
  for (const Unit& unit : units_) {
    const bool is_below = std::any_of(unit.begin(), unit.end(), [&](Branch* module) {
      return module == &branch || (recursive && IsWithin(*module, branch));
    });
    if (is_below) below.push_back(unit);
  }
  return below;
}

}  // namespace shardmesh::fsdp
