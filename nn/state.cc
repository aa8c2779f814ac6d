// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/state.h"

#include <utility>

#include "shardmesh/base/error.h"

namespace shardmesh::nn {
namespace {

using Names = std::unordered_map<const void*, std::vector<std::string>>;

void CollectNames(const Module& module, const std::string& prefix, Names& names) {
  for (const Module::NamedParameter& own : module.own_parameters())
    names[own.parameter.id()].push_back(prefix + own.name);
  for (const Module::NamedBuffer& own : module.own_buffers())
    names[own.buffer.id()].push_back(prefix + own.name);
  for (const auto& [name, child] : module.children())
    CollectNames(*child, prefix + name + ".", names);
}

StateEntry EntryOf(const Parameter& parameter, const std::vector<std::string>& names) {
  if (!parameter.IsPlaced()) {
    Throw(absl::StatusCode::kFailedPrecondition, "State: parameter ", parameter.ToString(),
          " has no mesh yet: call Parallelize, FullyShard or PlaceReplicated first");
  }
  StateEntry entry;
  entry.name = names[0];
  entry.aliases.assign(names.begin() + 1, names.end());
  entry.get = [parameter]() -> StateValue {
    if (parameter.IsMaterialized()) return parameter.data();
    UnsetTensor unset;
    unset.mesh = parameter.mesh();
    unset.layout = parameter.layout();
    unset.dtype = parameter.dtype();
    return unset;
  };
  entry.set = [parameter = parameter](StateValue value) mutable {
    parameter.SetData(std::get<DTensor>(std::move(value)));
  };
  return entry;
}

}  // namespace

Names AllNames(const Module& module) {
  Names names;
  CollectNames(module, "", names);
  return names;
}

StateDict State(Module& module) {
  for (const Parameter& parameter : module.Parameters()) EntryOf(parameter, {""});
  module.PlaceBuffers();
  StateDict state;
  const Names names = AllNames(module);
  for (const Module::NamedParameter& named : module.NamedParameters())
    state.Add(EntryOf(named.parameter, names.at(named.parameter.id())));
  for (const Module::NamedBuffer& named : module.NamedBuffers()) {
    if (named.is_persistent) state.Add(EntryOf(named.buffer, names.at(named.buffer.id())));
  }
  for (const Module::NamedModule& named : module.NamedModules()) {
    StateDict own;
    named.module->AddOwnState(own);
    state.Merge(named.name, own);
  }
  return state;
}

}  // namespace shardmesh::nn
