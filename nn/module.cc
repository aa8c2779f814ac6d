// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/module.h"

#include <algorithm>
#include <unordered_set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/nn/type_name.h"

namespace shardmesh::nn {
namespace {

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

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
    std::erase_if(parent_->children_, [this](const auto& child) {
      if (child.second != this) return false;
      parent_->own_names_.erase(child.first);
      return true;
    });
  }
  for (auto& [name, child] : children_) {
    if (child->parent_ == this) child->parent_ = nullptr;
  }
}

std::vector<std::shared_ptr<void>> Module::OpenForwardScopes() const {
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& make : scopes_) scopes.push_back(make());
  return scopes;
}

// ---- calls --------------------------------------------------------------------------------------

HookHandle Module::AddForwardPreHook(PreHook hook) {
  pre_hooks_.push_back(std::make_shared<RemovableHook<PreHook>>(std::move(hook)));
  return pre_hooks_.back()->handle();
}

HookHandle Module::PrependForwardPreHook(PreHook hook) {
  pre_hooks_.insert(pre_hooks_.begin(), std::make_shared<RemovableHook<PreHook>>(std::move(hook)));
  return pre_hooks_.front()->handle();
}

HookHandle Module::AddForwardHook(PostHook hook) {
  post_hooks_.push_back(std::make_shared<RemovableHook<PostHook>>(std::move(hook)));
  return post_hooks_.back()->handle();
}

// A hook may register others, and remove any.
template <typename Hook, typename... Arguments>
void Module::RunHooks(HookList<Hook>& hooks, Arguments&... arguments) {
  std::erase_if(hooks, [](const auto& hook) { return hook->is_removed(); });
  const HookList<Hook> registered = hooks;
  for (const auto& hook : registered) {
    if (!hook->is_removed()) hook->function()(*this, arguments...);
  }
}

Outputs Module::Call(Inputs inputs) {
  if (replacement_ != nullptr && !replacement_runs_) {
    replacement_runs_ = true;
    const absl::Cleanup end = [this] { replacement_runs_ = false; };
    return replacement_->Call(std::move(inputs));
  }
  inputs.module_ = this;
  if (wrapper_ == nullptr) return CallHere(std::move(inputs));
  return wrapper_(*this, std::move(inputs),
                  [this](Inputs given) { return CallHere(std::move(given)); });
}

Outputs Module::CallHere(Inputs inputs) {
  const std::vector<std::shared_ptr<void>> scopes = OpenForwardScopes();
  inputs.module_ = this;
  RunHooks(pre_hooks_, inputs);
  Outputs outputs = forward_ == nullptr ? Forward(inputs) : forward_(inputs);
  RunHooks(post_hooks_, inputs, outputs);
  inputs.CheckAllRead();
  return outputs;
}

DTensor Module::Only(Outputs outputs) const {
  if (outputs.size() != 1) {
    ThrowInvalid(FullName().empty() ? "the module" : "module " + FullName(), " has returned ",
                 outputs.size(), " results, and is used as if it had one; use Call");
  }
  return std::move(outputs[0]);
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

std::vector<Parameter> Module::ParametersAsNamed() const {
  std::vector<Parameter> parameters;
  std::unordered_set<const void*> seen;
  auto visit = [&](auto& self, const Module& module) -> void {
    for (const NamedParameter& entry : module.parameters_) {
      if (seen.insert(entry.parameter.id()).second) parameters.push_back(entry.parameter);
    }
    for (const auto& [name, child] : module.children_) self(self, *child);
  };
  visit(visit, *this);
  return parameters;
}

std::vector<Module::NamedBuffer> Module::NamedBuffers() const {
  std::vector<NamedBuffer> all, first;
  Outermost().CollectBuffers("", all);
  for (NamedBuffer& entry : all) entry.buffer.set_name(entry.name);
  all.clear();
  CollectBuffers("", all);
  std::unordered_set<const void*> seen;
  for (NamedBuffer& entry : all) {
    if (seen.insert(entry.buffer.id()).second) first.push_back(std::move(entry));
  }
  return first;
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

Module* Module::Find(std::string_view name) {
  if (name.empty()) return this;
  Module* module = this;
  for (size_t begin = 0, end; module != nullptr && begin <= name.size(); begin = end + 1) {
    end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const auto child = std::find_if(module->children_.begin(), module->children_.end(),
                                    [&](const auto& entry) { return entry.first == part; });
    module = child == module->children_.end() ? nullptr : child->second;
  }
  return module;
}

void Module::ReplaceChild(std::string_view name, std::unique_ptr<Module> replacement) {
  const auto child = std::find_if(children_.begin(), children_.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (child == children_.end())
    ThrowInvalid("ReplaceChild: the module has no child ", Quoted(name), " to replace");
  if (replacement == nullptr)
    ThrowInvalid("ReplaceChild: the replacement of ", Quoted(name), " is null");
  Module* const old = child->second;
  if (old->replacement_ != nullptr || old->parent_ != this)
    ThrowInvalid("ReplaceChild: ", Quoted(name),
                 " was replaced before, or belongs to another module");
  const bool is_inside = std::any_of(replacement->children_.begin(), replacement->children_.end(),
                                     [&](const auto& entry) { return entry.second == old; });
  old->parent_ = is_inside ? replacement.get() : nullptr;
  child->second = replacement.get();
  replacement->parent_ = this;
  old->replacement_ = std::move(replacement);
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
  for (NamedBuffer& entry : NamedBuffers()) {
    if (entry.buffer.IsPlaced()) continue;
    entry.buffer.Place(mesh, Layout::Replicated(mesh.shape(), entry.buffer.shape()));
  }
}

void Module::PlaceBuffers() {
  const std::vector<Parameter> parameters = Outermost().Parameters();
  const auto placed = std::find_if(parameters.begin(), parameters.end(),
                                   [](const Parameter& p) { return p.IsPlaced(); });
  for (NamedBuffer& entry : NamedBuffers()) {
    if (entry.buffer.IsPlaced()) continue;
    if (placed == parameters.end()) {
      Throw(absl::StatusCode::kFailedPrecondition, "buffer ", entry.buffer.ToString(),
            " has no mesh yet, nor has a parameter: call PlaceReplicated first");
    }
    const DeviceMesh& mesh = placed->mesh();
    entry.buffer.Place(mesh, Layout::Replicated(mesh.shape(), entry.buffer.shape()));
  }
}

void Module::Initialize(uint64_t seed) {
  std::vector<Parameter> parameters = Parameters();
  for (const Parameter& parameter : parameters) {
    if (parameter.IsPlaced() || parameter.IsMaterialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Initialize: parameter ", parameter.ToString(),
          " has no mesh yet: call Parallelize, FullyShard or PlaceReplicated first");
  }
  PlaceBuffers();
  CompareSeeds(parameters, seed);
  for (NamedBuffer& entry : NamedBuffers()) {
    if (!entry.buffer.IsMaterialized()) entry.buffer.Materialize(seed);
  }
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
  own_names_.insert(name);
  parameters_.push_back({std::move(name), parameter});
}

void Module::RegisterChild(std::string name, Module& child) {
  CheckNewName(name);
  for (const Module* module = this; module != nullptr; module = module->parent_) {
    if (module == &child) ThrowInvalid("RegisterChild: '", name, "' would be below itself");
  }
  if (child.parent_ == nullptr) child.parent_ = this;
  own_names_.insert(name);
  children_.emplace_back(std::move(name), &child);
}

Buffer Module::RegisterBuffer(std::string name, const Dims& shape, DType dtype, Init init,
                              bool is_persistent) {
  CheckNewName(name);
  Buffer buffer(shape, dtype, init);
  own_names_.insert(name);
  buffers_.push_back({std::move(name), buffer, is_persistent});
  return buffer;
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
    ThrowInvalid(Quoted(name), " cannot be a name within a module: it is empty or has a '.'");
  }
  if (own_names_.count(std::string(name)) > 0)
    ThrowInvalid("the module has two things named ", Quoted(name));
}

void Module::CollectParameters(const std::string& prefix, std::vector<NamedParameter>& out) const {
  for (const NamedParameter& entry : parameters_) {
    out.push_back({Join(prefix, entry.name), entry.parameter});
  }
  for (const auto& [name, child] : children_) child->CollectParameters(Join(prefix, name), out);
}

void Module::CollectBuffers(const std::string& prefix, std::vector<NamedBuffer>& out) const {
  for (const NamedBuffer& entry : buffers_) {
    out.push_back({Join(prefix, entry.name), entry.buffer, entry.is_persistent});
  }
  for (const auto& [name, child] : children_) child->CollectBuffers(Join(prefix, name), out);
}

// ---- printing -----------------------------------------------------------------------------------

std::string Module::Describe() const {
  const std::string name = TypeName(typeid(*this));
  return name.substr(std::min(name.rfind("::") + 2, name.size()));
}

std::string Module::ToString() const {
  NamedParameters();
  NamedBuffers();
  std::string out;
  Print("", "", out);
  return out;
}

void Module::Print(const std::string& indent, const std::string& name, std::string& out) const {
  absl::StrAppend(&out, indent, name, name.empty() ? "" : ": ", Describe(), "\n");
  const auto print_own = [&](const std::string& own, const Parameter& parameter) {
    absl::StrAppend(&out, indent, "  ", own, " ", std::string(Name(parameter.dtype())),
                    parameter.IsPlaced() ? parameter.layout().ToString()
                                         : parameter.shape().ToString() + " on meta",
                    parameter.name() == Join(FullName(), own) ? "" : ", is " + parameter.name(),
                    "\n");
  };
  for (const NamedParameter& entry : parameters_) print_own(entry.name, entry.parameter);
  for (const NamedBuffer& entry : buffers_) print_own(entry.name, entry.buffer);
  for (const auto& [child_name, child] : children_) child->Print(indent + "  ", child_name, out);
}

}  // namespace shardmesh::nn
