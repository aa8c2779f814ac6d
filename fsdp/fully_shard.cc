// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/fully_shard.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/internal/coordinator.h"
#include "shardmesh/fsdp/internal/unit.h"

namespace shardmesh::fsdp {
namespace {

using internal::Coordinator;
using internal::ForwardCall;
using internal::Sharding;
using internal::Unit;
using internal::UnitOf;

// Units of `module` and its children, parents first.
std::vector<std::shared_ptr<Unit>> UnitsBelow(nn::Module& module) {
  std::vector<std::shared_ptr<Unit>> units;
  for (const nn::Module::NamedModule& named : module.NamedModules()) {
    std::shared_ptr<Unit> unit = UnitOf(*named.module);
    if (unit == nullptr || std::find(units.begin(), units.end(), unit) != units.end()) continue;
    units.push_back(std::move(unit));
  }
  return units;
}

std::string NameOf(const nn::Module& module) {
  const std::string name = module.FullName();
  return name.empty() ? "the module" : name;
}

// At least one; that of `root` alone unless `recursive`.
std::vector<std::shared_ptr<Unit>> SomeUnits(nn::Module& root, bool recursive,
                                             const char* function) {
  std::vector<std::shared_ptr<Unit>> units;
  if (recursive) {
    units = UnitsBelow(root);
  } else if (std::shared_ptr<Unit> unit = UnitOf(root)) {
    units.push_back(std::move(unit));
  }
  if (units.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, function, ": ", NameOf(root),
          recursive ? " has no FullyShard unit at or below it" : " is not a FullyShard unit");
  }
  return units;
}

std::vector<std::shared_ptr<Unit>> SomeUnitsBelow(nn::Module& root, const char* function) {
  return SomeUnits(root, /*recursive=*/true, function);
}

std::string AxisNames(const DeviceMesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.shape().axes()) names.push_back(axis.name);
  return absl::StrJoin(names, ", ");
}

void CheckAxes(const DeviceMesh& mesh, const std::vector<std::string>& axes, const char* option) {
  std::set<std::string> seen;
  for (const std::string& axis : axes) {
    if (!mesh.shape().Has(axis)) {
      ThrowInvalid("FullyShard: mesh ", mesh.ToString(), " has no axis '", axis, "', which ",
                   option, " names; it has ", AxisNames(mesh));
    }
    if (!seen.insert(axis).second)
      ThrowInvalid("FullyShard: ", option, " names axis '", axis, "' twice");
  }
}

// The names of the axes to shard along, all of which `mesh` has.
std::vector<std::string> ShardAxes(const DeviceMesh& mesh, const FullyShardOptions& options) {
  if (options.strategy == Strategy::kReplicate) {
    if (options.shard_axes && !options.shard_axes->empty()) {
      ThrowInvalid("FullyShard: Strategy::kReplicate shards nothing, and shard_axes is [",
                   absl::StrJoin(*options.shard_axes, ", "), "]");
    }
    return {};
  }
  if (!options.shard_axes) {
    if (mesh.shape().Has("dp")) return {"dp"};
    if (mesh.shape().num_axes() == 1) return {mesh.shape().axis(0).name};
    ThrowInvalid("FullyShard: mesh ", mesh.ToString(), " has no axis 'dp'; say which of ",
                 AxisNames(mesh), " are the shard_axes");
  }
  CheckAxes(mesh, *options.shard_axes, "shard_axes");
  return *options.shard_axes;
}

// Of `axes`, which all shard, those along which slices are kept between forward and backward.
void CheckSliceAxes(const DeviceMesh& mesh, const FullyShardOptions& options,
                    const std::vector<std::string>& axes) {
  if (!options.reshard_after_forward_axes) return;
  const std::vector<std::string>& slice_axes = *options.reshard_after_forward_axes;
  CheckAxes(mesh, slice_axes, "reshard_after_forward_axes");
  if (slice_axes.empty()) {
    ThrowInvalid(
        "FullyShard: reshard_after_forward_axes is empty; to keep all that is gathered, "
        "use reshard_after_forward = false");
  }
  for (const std::string& axis : slice_axes) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    ThrowInvalid("FullyShard: reshard_after_forward_axes names axis '", axis,
                 "', which is not one of the shard_axes [", absl::StrJoin(axes, ", "), "]");
  }
  if (options.strategy != Strategy::kFullShard || options.reshard_after_forward) {
    ThrowInvalid("FullyShard: reshard_after_forward_axes is [", absl::StrJoin(slice_axes, ", "),
                 "], which needs Strategy::kFullShard and no reshard_after_forward");
  }
}

void CheckPrecision(const MixedPrecision& precision) {
  const auto check_dtype = [](const char* name, std::optional<DType> dtype) {
    if (!dtype || IsFloating(*dtype)) return;
    ThrowInvalid("FullyShard: ", name, " is ", std::string(Name(*dtype)),
                 ", expected a floating-point dtype");
  };
  check_dtype("param_dtype", precision.param_dtype);
  check_dtype("reduce_dtype", precision.reduce_dtype);
  check_dtype("output_dtype", precision.output_dtype);
}

// Whether `mesh` is the slice of `whole` along its axes.
bool IsSliceOf(const DeviceMesh& mesh, const DeviceMesh& whole) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    if (!whole.shape().Has(axis.name)) return false;
    names.push_back(axis.name);
  }
  return names.size() < whole.shape().axes().size() && whole.Slice(names) == mesh;
}

// The mesh of the parameters that have one: `mesh`, or one that it is a slice of.
DeviceMesh CommonMesh(const std::vector<nn::Parameter>& parameters, const DeviceMesh& mesh) {
  DeviceMesh common;
  for (const nn::Parameter& parameter : parameters) {
    if (!parameter.IsPlaced()) continue;
    const bool fits = common ? parameter.mesh() == common
                             : parameter.mesh() == mesh || IsSliceOf(mesh, parameter.mesh());
    if (!fits) {
      ThrowInvalid("FullyShard: parameter ", parameter.ToString(), " is not on mesh ",
                   (common ? common : mesh).ToString());
    }
    common = parameter.mesh();
  }
  return common ? common : mesh;
}

// What a module's locals() hold: the parameters that its call of FullyShard has ignored.
struct Ignored {
  std::vector<nn::Parameter> parameters;
};

struct Chosen {
  std::vector<nn::Parameter> of_unit, ignored;
};

// The parameters of `modules`, each once, that are in no unit yet and that no call has ignored.
Chosen ChooseParameters(const std::vector<nn::Module*>& modules,
                        const std::function<bool(const nn::Parameter&)>& ignores) {
  std::set<const void*> taken, seen;
  for (nn::Module* module : modules) {
    if (std::count(modules.begin(), modules.end(), module) > 1)
      ThrowInvalid("FullyShard: ", NameOf(*module), " is given twice");
    if (const std::shared_ptr<Unit> own = UnitOf(*module))
      ThrowInvalid("FullyShard: ", NameOf(*module), " is a unit already");
    for (const std::shared_ptr<Unit>& unit : UnitsBelow(*module)) {
      for (const auto& parameter : unit->parameters()) taken.insert(parameter->parameter().id());
    }
    for (const nn::Module::NamedModule& named : module->NamedModules()) {
      for (const nn::Parameter& parameter : named.module->locals().Get<Ignored>().parameters)
        seen.insert(parameter.id());
    }
  }
  Chosen chosen;
  for (nn::Module* module : modules) {
    // The predicate may look at names; without one, naming the whole tree in each of many calls
    // would take the most time.
    for (const nn::Parameter& parameter :
         ignores == nullptr ? module->ParametersAsNamed() : module->Parameters()) {
      if (!seen.insert(parameter.id()).second) continue;
      const bool is_taken = taken.count(parameter.id()) > 0;
      if (ignores == nullptr || !ignores(parameter)) {
        if (!is_taken) chosen.of_unit.push_back(parameter);
        continue;
      }
      if (is_taken) {
        ThrowInvalid("FullyShard: parameter ", parameter.ToString(),
                     " is ignored, and an earlier call has made it part of a unit; ignore it "
                     "in that call");
      }
      chosen.ignored.push_back(parameter);
    }
  }
  return chosen;
}

// The axes along which slices are kept; none where a slice would be the whole.
std::vector<int> SliceAxes(const DeviceMesh& mesh, const std::vector<std::string>& axes) {
  std::vector<int> indices;
  int64_t ranks = 1;
  for (const std::string& axis : axes) {
    indices.push_back(mesh.shape().Index(axis));
    ranks *= mesh.Size(axis);
  }
  return ranks > 1 ? indices : std::vector<int>();
}

// `options`, where slices that would be the shards themselves are asked for as such.
FullyShardOptions WithUsefulSlices(const DeviceMesh& mesh, const std::vector<std::string>& axes,
                                   FullyShardOptions options) {
  if (!options.reshard_after_forward_axes) return options;
  const std::vector<std::string>& kept = *options.reshard_after_forward_axes;
  const bool narrows = std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return mesh.Size(axis) > 1 && std::find(kept.begin(), kept.end(), axis) == kept.end();
  });
  if (narrows) return options;
  options.reshard_after_forward_axes.reset();
  options.reshard_after_forward = true;
  return options;
}

void AddHooks(nn::Module& module, const std::shared_ptr<Unit>& unit) {
  module.AddForwardScope([unit, &module]() -> std::shared_ptr<void> {
    return std::make_shared<ForwardCall>(unit, module);
  });
  const MixedPrecision& precision = unit->options().mixed_precision;
  if (precision.param_dtype && precision.cast_forward_inputs) {
    module.PrependForwardPreHook([dtype = *precision.param_dtype](nn::Module&, nn::Inputs& inputs) {
      for (DTensor& input : inputs) {
        if (input && IsFloating(input.dtype())) input = Cast(input, dtype);
      }
    });
  }
  if (precision.output_dtype) {
    module.AddForwardHook(
        [dtype = *precision.output_dtype](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
          for (DTensor& output : outputs) {
            if (output && IsFloating(output.dtype())) output = Cast(output, dtype);
          }
        });
  }
}

}  // namespace

void FullyShard(nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  FullyShard(std::vector<nn::Module*>{&module}, mesh, options);
}

void FullyShard(const std::vector<nn::Module*>& modules, const DeviceMesh& mesh,
                const FullyShardOptions& options) {
  mesh.CheckUsable("FullyShard");
  if (modules.empty()) ThrowInvalid("FullyShard: the list of modules is empty");
  const std::vector<std::string> axes = ShardAxes(mesh, options);
  CheckSliceAxes(mesh, options, axes);
  CheckPrecision(options.mixed_precision);
  const Chosen chosen = ChooseParameters(modules, options.ignored);
  const std::vector<nn::Parameter>& parameters = chosen.of_unit;
  const std::shared_ptr<Coordinator> coordinator = Coordinator::Of(mesh);
  const FullyShardOptions unit_options = WithUsefulSlices(mesh, axes, options);
  Sharding sharding = {.mesh = CommonMesh(parameters, mesh),
                       .axes = {},
                       .slice_axes = {},
                       .dim = options.shard_dim,
                       .precision = options.mixed_precision,
                       .releases_on_one_rank = coordinator->releases_on_one_rank};
  for (const std::string& axis : axes) sharding.axes.push_back(sharding.mesh.shape().Index(axis));
  if (unit_options.reshard_after_forward_axes) {
    sharding.slice_axes = SliceAxes(sharding.mesh, *unit_options.reshard_after_forward_axes);
  }
  const bool is_named = std::none_of(parameters.begin(), parameters.end(),
                                     [](const auto& p) { return p.name().empty(); });
  if (!is_named) modules[0]->Parameters();  // For messages.
  for (const nn::Parameter& parameter : parameters)
    internal::UnitParameter::Check(parameter, sharding);

  // All checks passed; changes begin here.
  for (nn::Parameter parameter : chosen.ignored) {
    if (parameter.IsPlaced()) continue;
    parameter.Place(sharding.mesh, Layout::Replicated(sharding.mesh.shape(), parameter.shape()));
  }
  auto unit = std::make_shared<Unit>(std::move(sharding), unit_options, coordinator);
  for (const nn::Parameter& parameter : parameters) unit->AddParameter(parameter);
  coordinator->Add(unit);
  for (nn::Module* module : modules) {
    module->locals().Get<internal::UnitSlot>().unit = unit;
    module->locals().Get<Ignored>().parameters = chosen.ignored;
    AddHooks(*module, unit);
  }
}

std::function<bool(const nn::Parameter&)> OneOf(std::vector<nn::Parameter> parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i])
      ThrowInvalid("OneOf: parameter ", i, " of ", parameters.size(), " is undefined");
  }
  return [parameters = std::move(parameters)](const nn::Parameter& parameter) {
    return std::find(parameters.begin(), parameters.end(), parameter) != parameters.end();
  };
}

// ---- switches -----------------------------------------------------------------------------------

void SetRequiresGradientSync(nn::Module& root, bool sync, bool recursive) {
  for (const auto& unit : SomeUnits(root, recursive, "SetRequiresGradientSync")) unit->sync = sync;
}

void SetRequiresAllReduce(nn::Module& root, bool all_reduce, bool recursive) {
  for (const auto& unit : SomeUnits(root, recursive, "SetRequiresAllReduce"))
    unit->all_reduce = all_reduce;
}

void SetReshardAfterForward(nn::Module& root, std::optional<bool> reshard, bool recursive) {
  for (const auto& unit : SomeUnits(root, recursive, "SetReshardAfterForward"))
    unit->reshard_after_forward = reshard;
}

void SetReshardAfterBackward(nn::Module& root, std::optional<bool> reshard, bool recursive) {
  for (const auto& unit : SomeUnits(root, recursive, "SetReshardAfterBackward"))
    unit->reshard_after_backward = reshard;
}

internal::SwitchedOff::SwitchedOff(nn::Module& root, bool Unit::*which, const char* name)
    : which_(which) {
  for (const std::shared_ptr<Unit>& unit : SomeUnitsBelow(root, name))
    before_.push_back({unit, std::exchange((*unit).*which, false)});
}

internal::SwitchedOff::~SwitchedOff() {
  for (const Before& before : before_) (*before.unit).*which_ = before.value;
}

NoSync::NoSync(nn::Module& root) : SwitchedOff(root, &Unit::sync, "NoSync") {}
NoAllReduce::NoAllReduce(nn::Module& root) : SwitchedOff(root, &Unit::all_reduce, "NoAllReduce") {}

// ---- prefetch lists -----------------------------------------------------------------------------

namespace {

const std::shared_ptr<Unit>& UnitItself(nn::Module& module, const char* function) {
  const std::shared_ptr<Unit>& unit = UnitOf(module);
  if (unit == nullptr) ThrowInvalid(function, ": ", NameOf(module), " is not a FullyShard unit");
  return unit;
}

std::vector<std::weak_ptr<Unit>> ListOf(const std::vector<nn::Module*>& modules,
                                        const char* function) {
  std::vector<std::weak_ptr<Unit>> units;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (modules[i] == nullptr)
      ThrowInvalid(function, ": module ", i, " of ", modules.size(), " is null");
    units.push_back(UnitItself(*modules[i], function));
  }
  return units;
}

}  // namespace

void SetForwardPrefetch(nn::Module& module, const std::vector<nn::Module*>& modules) {
  UnitItself(module, "SetForwardPrefetch")->forward_prefetch =
      ListOf(modules, "SetForwardPrefetch");
}

void SetBackwardPrefetch(nn::Module& module, const std::vector<nn::Module*>& modules) {
  UnitItself(module, "SetBackwardPrefetch")->backward_prefetch =
      ListOf(modules, "SetBackwardPrefetch");
}

void ResetPrefetch(nn::Module& module) {
  Unit& unit = *UnitItself(module, "ResetPrefetch");
  unit.forward_prefetch.reset();
  unit.backward_prefetch.reset();
}

// ---- gradients, memory and statistics -----------------------------------------------------------

void DiscardUnreducedGradients(nn::Module& root) {
  for (const std::shared_ptr<Unit>& unit : SomeUnitsBelow(root, "DiscardUnreducedGradients")) {
    unit->DiscardGradients();
    if (unit->model() != nullptr) unit->model()->has_lost_gradients = false;
  }
}

void Unshard(nn::Module& root) {
  for (const std::shared_ptr<Unit>& unit : SomeUnitsBelow(root, "Unshard")) unit->Unshard();
}

void Reshard(nn::Module& root) {
  for (const std::shared_ptr<Unit>& unit : SomeUnitsBelow(root, "Reshard")) unit->ReshardIfIdle();
}

std::vector<UnitStats> GetUnitStats(nn::Module& root) {
  std::vector<UnitStats> all;
  std::set<const Unit*> seen;
  SomeUnitsBelow(root, "GetUnitStats");
  for (const nn::Module::NamedModule& named : root.NamedModules()) {
    const std::shared_ptr<Unit>& unit = UnitOf(*named.module);
    if (unit == nullptr || !seen.insert(unit.get()).second) continue;
    all.push_back(unit->stats);
    all.back().module = named.module->FullName();
    all.back().gathered_bytes = unit->gathered_bytes();
  }
  return all;
}

void ResetUnitStats(nn::Module& root) {
  for (const std::shared_ptr<Unit>& unit : SomeUnitsBelow(root, "ResetUnitStats")) {
    unit->stats = UnitStats();
    unit->stats.peak_gathered_bytes = unit->gathered_bytes();
  }
}

StagingStats GetStagingStats(const DeviceMesh& mesh) { return Coordinator::Of(mesh)->staging; }

void SetReleasesOnOneRank(const DeviceMesh& mesh, bool value) {
  Coordinator::Of(mesh)->releases_on_one_rank = value;
}

}  // namespace shardmesh::fsdp
