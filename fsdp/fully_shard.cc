// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/fully_shard.h"

#include <set>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/fsdp/internal/unit.h"

namespace shardmesh::fsdp {
namespace {

using internal::Tree;
using internal::Unit;

// All units of one rank. Modules own them, through their hooks.
struct Registry {
  std::vector<std::weak_ptr<Unit>> units;
  StagingStats staging;

  std::vector<std::shared_ptr<Unit>> Below(nn::Module& module) {
    std::set<const nn::Module*> modules;
    for (const nn::Module::NamedModule& named : module.NamedModules()) modules.insert(named.module);
    std::vector<std::shared_ptr<Unit>> result;
    for (const std::weak_ptr<Unit>& weak : units) {
      const std::shared_ptr<Unit> unit = weak.lock();
      if (unit != nullptr && modules.count(&unit->module()) > 0) result.push_back(unit);
    }
    return result;
  }
};

Registry& RegistryOf(const DeviceMesh& mesh) { return mesh.locals().Get<Registry>(); }

// The first unit whose forward runs becomes the root of the units of its children.
void MakeTree(Registry& registry, Unit& root) {
  std::vector<Unit*> units;
  for (const std::shared_ptr<Unit>& unit : registry.Below(root.module()))
    units.push_back(unit.get());
  auto tree = std::make_shared<Tree>(units);
  for (Unit* unit : units) unit->SetTree(tree, /*is_root=*/unit == &root);
}

int AxisIndexOrAbsent(const DeviceMesh& mesh, const std::string& axis) {
  return mesh.shape().Has(axis) ? mesh.shape().Index(axis) : -1;
}

void CheckOptions(const DeviceMesh& mesh, const FullyShardOptions& options) {
  if (options.shard_axis.empty()) ThrowInvalid("FullyShard: shard_axis is empty");
  if (options.shard_axis == options.replicate_axis) {
    ThrowInvalid("FullyShard: shard_axis and replicate_axis are both '", options.shard_axis,
                 "' of mesh ", mesh.ToString());
  }
  const MixedPrecision& precision = options.mixed_precision;
  const auto check_dtype = [](const char* name, std::optional<DType> dtype) {
    if (!dtype || IsFloating(*dtype)) return;
    ThrowInvalid("FullyShard: ", name, " is ", std::string(Name(*dtype)),
                 ", expected a floating-point dtype");
  };
  check_dtype("param_dtype", precision.param_dtype);
  check_dtype("reduce_dtype", precision.reduce_dtype);
}

}  // namespace

void FullyShard(nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  CheckOptions(mesh, options);
  Registry& registry = RegistryOf(mesh);
  std::set<const void*> taken;
  for (const std::shared_ptr<Unit>& unit : registry.Below(module)) {
    if (&unit->module() == &module) {
      ThrowInvalid("FullyShard: the module is a unit already: unit ", unit->Name());
    }
    for (const auto& parameter : unit->parameters()) taken.insert(parameter->parameter().id());
  }
  const int shard_axis = AxisIndexOrAbsent(mesh, options.shard_axis);
  std::vector<nn::Parameter> parameters;
  for (const nn::Parameter& parameter : module.Parameters()) {
    if (taken.count(parameter.id()) > 0) continue;
    internal::UnitParameter::Check(parameter, mesh, shard_axis, options.mixed_precision);
    parameters.push_back(parameter);
  }

  // All checks passed; changes begin here.
  auto unit = std::make_shared<Unit>(module, mesh, options, registry.staging);
  for (const nn::Parameter& parameter : parameters) unit->AddParameter(parameter, shard_axis);
  registry.units.push_back(unit);
  module.PrependForwardPreHook([unit, &registry](nn::Module&, nn::Module::Inputs& inputs) {
    if (!unit->has_tree()) MakeTree(registry, *unit);
    unit->PreForward(inputs);
  });
  module.AddForwardHook([unit](nn::Module&, const nn::Module::Inputs&, DTensor& output) {
    unit->PostForward(output);
  });
}

void SetRequiresGradientSync(nn::Module& root, bool sync) {
  bool found = false;
  for (const nn::Parameter& parameter : root.Parameters()) {
    if (!parameter.IsPlaced()) continue;
    for (const std::shared_ptr<Unit>& unit : RegistryOf(parameter.mesh()).Below(root)) {
      unit->sync = sync;
      found = true;
    }
    break;
  }
  if (!found) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "SetRequiresGradientSync: ", root.FullName().empty() ? "the module" : root.FullName(),
          " has no FullyShard unit at or below it");
  }
}

StagingStats GetStagingStats(const DeviceMesh& mesh) { return RegistryOf(mesh).staging; }

}  // namespace shardmesh::fsdp
