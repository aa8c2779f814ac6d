// SPDX-License-Identifier: Apache-2.0
//
// The base of all layers: named parameters, buffers and children, forward hooks, train/eval,
// deferred initialisation.
//
//   class Mlp : public nn::Module {
//    public:
//     Mlp() { RegisterChild("up", up_); RegisterChild("down", down_); }
//    protected:
//     Outputs Forward(const Inputs& x) override { return down_(Silu(up_(x[0]))); }
//     nn::Linear up_{64, 256}, down_{256, 64};
//   };
#ifndef SHARDMESH_NN_MODULE_H_
#define SHARDMESH_NN_MODULE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardmesh/base/type_map.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/nn/inputs.h"
#include "shardmesh/nn/parameter.h"

namespace shardmesh {
class StateDict;
}

namespace shardmesh::nn {

/// Belongs to one rank. Not copyable or movable: parents and hooks hold its address.
class Module {
 public:
  using Inputs = nn::Inputs;
  using Outputs = nn::Outputs;
  /// May replace the inputs.
  using PreHook = std::function<void(Module& module, Inputs& inputs)>;
  /// May replace the outputs.
  using PostHook = std::function<void(Module& module, const Inputs& inputs, Outputs& outputs)>;
  /// Called in place of a call; `call` does what the call would do, hooks and scopes included.
  using CallWrapper = std::function<Outputs(Module& module, Inputs inputs,
                                            const std::function<Outputs(Inputs)>& call)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Pre-hooks in order of registration, Forward, post-hooks in order of registration. Collective.
  /// Errors: throws Error(kInvalidArgument) naming the module if an argument of `inputs` was not
  /// read.
  Outputs Call(Inputs inputs);
  /// The result of a module that has exactly one; throws Error(kInvalidArgument) naming the module
  /// otherwise.
  template <typename... More>
  DTensor operator()(const DTensor& x, const More&... more) {
    return Only(Call({x, more...}));
  }

  // Hooks that are registered while the pre-hooks (or post-hooks) of a call run are not of that
  // call.
  HookHandle AddForwardPreHook(PreHook hook);
  /// Runs before the pre-hooks registered so far. (Post-hooks need no counterpart: those registered
  /// later run later.)
  HookHandle PrependForwardPreHook(PreHook hook);
  /// What `make` returns lives through each call, hooks included, also through one that throws: for
  /// scopes such as PartialPrecisionScope.
  void AddForwardScope(std::function<std::shared_ptr<void>()> make) {
    scopes_.push_back(std::move(make));
  }
  HookHandle AddForwardHook(PostHook hook);
  /// Used in place of Forward, for layers above that compute the same value in another way; hooks
  /// and scopes stay. Null: Forward again.
  void SetForward(std::function<Outputs(const Inputs&)> forward) { forward_ = std::move(forward); }
  /// One a module, for activation checkpointing (nn/checkpoint.h). Null removes it.
  void SetCallWrapper(CallWrapper wrapper) { wrapper_ = std::move(wrapper); }
  /// What the scopes hold, while the result lives. For methods other than Forward that use
  /// parameters of this module: under FullyShard they are gathered then.
  ///
  ///   DTensor Encode(const DTensor& x) { const auto scope = OpenForwardScopes(); ... }
  std::vector<std::shared_ptr<void>> OpenForwardScopes() const;

  struct NamedParameter {
    std::string name;
    Parameter parameter;
  };
  struct NamedBuffer {
    std::string name;
    Buffer buffer;
    bool is_persistent;
  };
  struct NamedModule {
    std::string name;  ///< "" for this module itself.
    Module* module;
  };
  /// The parameters of this module and its descendants, depth first in order of registration; a
  /// tied parameter once, under its first name. The names are relative to this module. Also sets
  /// Parameter::name() to the name relative to the outermost module.
  std::vector<NamedParameter> NamedParameters() const;
  std::vector<Parameter> Parameters() const;
  /// The same, with the names that they have: naming takes time for all that the outermost module
  /// has.
  std::vector<Parameter> ParametersAsNamed() const;
  /// The buffers, in the same way.
  std::vector<NamedBuffer> NamedBuffers() const;
  /// This module and its descendants, parents first; a shared module once.
  std::vector<NamedModule> NamedModules();
  /// Own parameters only (not those of children), by local name.
  const std::vector<NamedParameter>& own_parameters() const { return parameters_; }
  const std::vector<NamedBuffer>& own_buffers() const { return buffers_; }
  /// Null if there is no parameter of this name.
  Parameter* FindOwnParameter(std::string_view name);
  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  /// The descendant of this name, "layers.3.mlp"; null if there is none.
  Module* Find(std::string_view name);
  /// Puts `replacement` in the place of the child `name`: calls of the child go to it, and
  /// parameters, names and printing show it. While the replacement runs, calls of the old child
  /// reach the child itself, so that it may wrap it (and register it as its own child):
  ///
  ///   block.ReplaceChild("up", std::make_unique<LowRankAdapter>(block.up, /*rank=*/8));
  ///
  /// Whoever uses the parameters of the old child directly does not notice. Before FullyShard.
  /// Errors: throws Error(kInvalidArgument) if there is no such child or it was replaced before.
  void ReplaceChild(std::string_view name, std::unique_ptr<Module> replacement);
  /// The name relative to the outermost module; "" for that module itself.
  std::string FullName() const;

  /// Places every parameter and buffer that has no mesh yet as replicated.
  void PlaceReplicated(const DeviceMesh& mesh);
  /// Places every buffer that has no mesh yet as replicated on the mesh of the parameters.
  /// Errors: throws Error(kFailedPrecondition) naming the buffer if no parameter has a mesh.
  void PlaceBuffers();
  /// Materialises every parameter and buffer of this module and its descendants that has no values.
  /// The values depend on `seed` and on names relative to the outermost module. Also restarts
  /// random layers (Dropout). Begins with PlaceBuffers.
  /// Collective over the parameters' meshes: ranks compare their seeds.
  /// Errors: throws Error(kFailedPrecondition) naming the first parameter that is not placed, and
  /// Error(kInvalidArgument) on every rank, naming both, if two ranks pass different seeds; nothing
  /// is materialised then.
  void Initialize(uint64_t seed);

  /// Applies to this module and its descendants.
  void Train(bool training = true);
  void Eval() { Train(false); }
  bool training() const { return training_; }

  /// The tree below, a line a module, with own parameters and buffers:
  ///
  ///   Mlp
  ///     up: Linear(64 -> 256)
  ///       weight f32[256,64] [S(0), R] @ [dp=2, tp=4]
  std::string ToString() const;

  /// The first module that has registered this one, or null.
  Module* parent() { return parent_; }
  /// Objects of the layers above, one a type; they live as long as the module.
  TypeMap& locals() { return locals_; }

 protected:
  virtual Outputs Forward(const Inputs& inputs) = 0;
  /// What ToString shows of this module alone; by default the name of its class.
  virtual std::string Describe() const;
  /// Called by Initialize; for layers that draw random numbers.
  virtual void Reseed(uint64_t /*seed*/) {}
  /// Adds what this module alone must keep beside parameters and buffers, such as counters, under
  /// local names (nn/state.h).
  virtual void AddOwnState(StateDict& /*state*/) {}
  /// Names must be non-empty, unique within a module and without '.'.
  /// Errors: throws Error(kInvalidArgument) naming the name otherwise.
  Parameter RegisterParameter(std::string name, const Dims& shape, DType dtype, Init init);
  /// Registers a parameter that another module has too (tied).
  void RegisterParameter(std::string name, const Parameter& parameter);
  /// `child` must be a member of this module or outlive it.
  void RegisterChild(std::string name, Module& child);
  /// Registers a tensor that is not trained. A persistent one is part of the module's state.
  Buffer RegisterBuffer(std::string name, const Dims& shape, DType dtype,
                        Init init = Init::Constant(0), bool is_persistent = true);

 private:
  friend StateDict State(Module& module);

  const Module& Outermost() const;
  void NameParameters() const;
  void CheckNewName(std::string_view name) const;
  void CollectParameters(const std::string& prefix, std::vector<NamedParameter>& out) const;
  void CollectBuffers(const std::string& prefix, std::vector<NamedBuffer>& out) const;
  void Print(const std::string& indent, const std::string& name, std::string& out) const;
  DTensor Only(Outputs outputs) const;
  Outputs CallHere(Inputs inputs);

  std::vector<NamedParameter> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::unordered_set<std::string> own_names_;  // Of all three.
  std::vector<std::pair<std::string, Module*>> children_;
  Module* parent_ = nullptr;  // The first module that registered this one.
  std::vector<std::function<std::shared_ptr<void>()>> scopes_;
  // Shared with the calls that run them.
  template <typename Hook>
  using HookList = std::vector<std::shared_ptr<const RemovableHook<Hook>>>;
  template <typename Hook, typename... Arguments>
  void RunHooks(HookList<Hook>& hooks, Arguments&... arguments);
  HookList<PreHook> pre_hooks_;
  HookList<PostHook> post_hooks_;
  std::function<Outputs(const Inputs&)> forward_;
  CallWrapper wrapper_;
  std::unique_ptr<Module> replacement_;
  bool replacement_runs_ = false;
  bool training_ = true;
  TypeMap locals_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_MODULE_H_
