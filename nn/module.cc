// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/module.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"

namespace shardmesh::nn {
namespace {

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Replicas made from different seeds would stay different.
void CompareSeeds(const std::vector<Parameter>& parameters, uint64_t seed) {
  std::vector<DeviceMesh> meshes;
  for (const Parameter& parameter : parameters) {
    if (std::find(meshes.begin(), meshes.end(), parameter.mesh()) == meshes.end())
      meshes.push_back(parameter.mesh());
  }
  for (const DeviceMesh& mesh : meshes) {
    Communicator& world = mesh.WorldGroup();
    if (world.size() == 1) continue;
    ExecutionContext& context = mesh.context();
    AllGatherItem item;
    item.source = Tensor::FromValues<int64_t>(context, {}, {static_cast<int64_t>(seed)});
    for (int i = 0; i < world.size(); ++i)
      item.targets.push_back(Tensor::Empty(context, {}, DType::kI64));
    const std::vector<Tensor> seeds = item.targets;
    world.AllGather({std::move(item)}, "initialize_seed").Wait();
    for (int i = 0; i < world.size(); ++i) {
      const auto other = static_cast<uint64_t>(seeds[i].IntegerItem());
      const auto first = static_cast<uint64_t>(seeds[0].IntegerItem());
      if (other == first) continue;
      ThrowInvalid("Initialize: rank ", world.world_ranks()[0], " passes seed ", first,
                   " and rank ", world.world_ranks()[i], " seed ", other,
                   "; replicas of a parameter must start alike");
    }
  }
}

}  // namespace

Module::~Module() {
  if (parent_ != nullptr) {
    std::erase_if(parent_->children_, [this](const auto& child) { return child.second == this; });
  }
  for (auto& [name, child] : children_) {
    if (child->parent_ == this) child->parent_ = nullptr;
  }
}

void Module::Inputs::ThrowMissing(size_t i) const {
  const std::string name = module_ == nullptr ? "" : module_->FullName();
  ThrowInvalid(name.empty() ? "the module" : "module " + name, " was called with ", size(),
               size() == 1 ? " input" : " inputs", ", and reads input ", i, " (counted from 0)");
}

std::vector<std::shared_ptr<void>> Module::OpenForwardScopes() const {
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& make : scopes_) scopes.push_back(make());
  return scopes;
}

DTensor Module::Call(Inputs inputs) {
  const std::vector<std::shared_ptr<void>> scopes = OpenForwardScopes();
  inputs.module_ = this;
  for (const PreHook& hook : pre_hooks_) hook(*this, inputs);
  DTensor output = Forward(inputs);
  for (const PostHook& hook : post_hooks_) hook(*this, inputs, output);
  return output;
}

std::vector<Module::NamedParameter> Module::NamedParameters() const {
  Outermost().NameParameters();
  std::vector<NamedParameter> all, first;
  CollectParameters("", all);
  std::unordered_set<const void*> seen;
  for (NamedParameter& entry : all) {
    if (seen.insert(entry.parameter.id()).second) first.push_back(std::move(entry));
  }
  return first;
}

std::vector<Parameter> Module::Parameters() const {
  std::vector<Parameter> parameters;
  for (NamedParameter& entry : NamedParameters()) parameters.push_back(std::move(entry.parameter));
  return parameters;
}

std::vector<Module::NamedModule> Module::NamedModules() {
  std::vector<NamedModule> modules;
  std::unordered_set<const Module*> seen;
  auto visit = [&](auto& self, const std::string& name, Module& module) -> void {
    if (!seen.insert(&module).second) return;
    modules.push_back({name, &module});
    for (const auto& [child_name, child] : module.children_) {
      self(self, Join(name, child_name), *child);
    }
  };
  visit(visit, "", *this);
  return modules;
}

Parameter* Module::FindOwnParameter(std::string_view name) {
  for (NamedParameter& entry : parameters_) {
    if (entry.name == name) return &entry.parameter;
  }
  return nullptr;
}

void Module::PlaceReplicated(const DeviceMesh& mesh) {
  for (Parameter& parameter : Parameters()) {
    if (parameter.IsPlaced()) continue;
    parameter.Place(mesh, Layout::Replicated(mesh.shape(), parameter.shape()));
  }
}

void Module::Initialize(uint64_t seed) {
  std::vector<Parameter> parameters = Parameters();
  for (const Parameter& parameter : parameters) {
    if (parameter.IsPlaced() || parameter.IsMaterialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Initialize: parameter ", parameter.ToString(),
          " has no mesh yet: call Parallelize, FullyShard or PlaceReplicated first");
  }
  CompareSeeds(parameters, seed);
  for (Parameter& parameter : parameters) {
    if (!parameter.IsMaterialized()) parameter.Materialize(seed);
  }
  for (const NamedModule& entry : NamedModules()) entry.module->Reseed(seed);
}

void Module::Train(bool training) {
  for (const NamedModule& entry : NamedModules()) entry.module->training_ = training;
}

Parameter Module::RegisterParameter(std::string name, const Dims& shape, DType dtype, Init init) {
  Parameter parameter(shape, dtype, init);
  RegisterParameter(std::move(name), parameter);
  return parameter;
}

void Module::RegisterParameter(std::string name, const Parameter& parameter) {
  CheckNewName(name);
  if (!parameter) ThrowInvalid("RegisterParameter: '", name, "' is an undefined parameter");
  parameters_.push_back({std::move(name), parameter});
}

void Module::RegisterChild(std::string name, Module& child) {
  CheckNewName(name);
  for (const Module* module = this; module != nullptr; module = module->parent_) {
    if (module == &child) ThrowInvalid("RegisterChild: '", name, "' would be below itself");
  }
  if (child.parent_ == nullptr) child.parent_ = this;
  children_.emplace_back(std::move(name), &child);
}

void Module::RegisterBuffer(std::string name, Tensor value) {
  CheckNewName(name);
  buffers_.emplace_back(std::move(name), std::move(value));
}

const Tensor& Module::Buffer(std::string_view name) const {
  for (const auto& [own, value] : buffers_) {
    if (own == name) return value;
  }
  ThrowInvalid("the module has no buffer '", View(name), "'");
}

const Module& Module::Outermost() const {
  const Module* module = this;
  while (module->parent_ != nullptr) module = module->parent_;
  return *module;
}

void Module::NameParameters() const {
  std::vector<NamedParameter> all;
  CollectParameters("", all);
  std::unordered_set<const void*> seen;
  for (NamedParameter& entry : all) {
    if (seen.insert(entry.parameter.id()).second) entry.parameter.set_name(std::move(entry.name));
  }
}

std::string Module::FullName() const {
  if (parent_ == nullptr) return "";
  for (const auto& [name, child] : parent_->children_) {
    if (child == this) return Join(parent_->FullName(), name);
  }
  return "";
}

void Module::CheckNewName(std::string_view name) const {
  if (name.empty() || name.find('.') != std::string_view::npos) {
    ThrowInvalid("'", View(name), "' cannot be a name within a module: it is empty or has a '.'");
  }
  auto is_same = [&](const auto& own) { return own.first == name; };
  const bool taken = std::any_of(parameters_.begin(), parameters_.end(),
                                 [&](const NamedParameter& entry) { return entry.name == name; }) ||
                     std::any_of(buffers_.begin(), buffers_.end(), is_same) ||
                     std::any_of(children_.begin(), children_.end(), is_same);
  if (taken) ThrowInvalid("the module has two things named '", View(name), "'");
}

void Module::CollectParameters(const std::string& prefix, std::vector<NamedParameter>& out) const {
  for (const NamedParameter& entry : parameters_) {
    out.push_back({Join(prefix, entry.name), entry.parameter});
  }
  for (const auto& [name, child] : children_) child->CollectParameters(Join(prefix, name), out);
}

}  // namespace shardmesh::nn
