// SPDX-License-Identifier: Apache-2.0
//
// The base of all layers: named parameters, buffers and children, forward hooks, train/eval,
// deferred initialisation.
//
//   class Mlp : public nn::Module {
//    public:
//     Mlp() { RegisterChild("up", up_); RegisterChild("down", down_); }
//    protected:
//     DTensor Forward(const Inputs& x) override { return down_(Silu(up_(x[0]))); }
//     nn::Linear up_{64, 256}, down_{256, 64};
//   };
#ifndef SHARDMESH_NN_MODULE_H_
#define SHARDMESH_NN_MODULE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/type_map.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/nn/parameter.h"

namespace shardmesh::nn {

/// Belongs to one rank. Not copyable or movable: parents and hooks hold its address.
class Module {
 public:
  /// What a call passes. Reading an input that was not passed throws Error(kInvalidArgument) naming
  /// the module and how many there are.
  class Inputs : public absl::InlinedVector<DTensor, 2> {
   public:
    using absl::InlinedVector<DTensor, 2>::InlinedVector;
    const DTensor& operator[](size_t i) const {
      if (i >= size()) ThrowMissing(i);
      return absl::InlinedVector<DTensor, 2>::operator[](i);
    }
    DTensor& operator[](size_t i) {
      if (i >= size()) ThrowMissing(i);
      return absl::InlinedVector<DTensor, 2>::operator[](i);
    }

   private:
    friend class Module;
    [[noreturn]] void ThrowMissing(size_t i) const;
    const Module* module_ = nullptr;
  };
  /// May replace the inputs.
  using PreHook = std::function<void(Module& module, Inputs& inputs)>;
  /// May replace the output.
  using PostHook = std::function<void(Module& module, const Inputs& inputs, DTensor& output)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Pre-hooks in order of registration, Forward, post-hooks in order of registration. Collective.
  DTensor operator()(const DTensor& x) { return Call({x}); }
  DTensor Call(Inputs inputs);

  void AddForwardPreHook(PreHook hook) { pre_hooks_.push_back(std::move(hook)); }
  /// Runs before the pre-hooks registered so far. (Post-hooks need no counterpart: those registered
  /// later run later.)
  void PrependForwardPreHook(PreHook hook) {
    pre_hooks_.insert(pre_hooks_.begin(), std::move(hook));
  }
  /// What `make` returns lives through each call, hooks included, also through one that throws: for
  /// scopes such as PartialPrecisionScope.
  void AddForwardScope(std::function<std::shared_ptr<void>()> make) {
    scopes_.push_back(std::move(make));
  }
  void AddForwardHook(PostHook hook) { post_hooks_.push_back(std::move(hook)); }
  /// What the scopes hold, while the result lives. For methods other than Forward that use
  /// parameters of this module: under FullyShard they are gathered then.
  ///
  ///   DTensor Encode(const DTensor& x) { const auto scope = OpenForwardScopes(); ... }
  std::vector<std::shared_ptr<void>> OpenForwardScopes() const;

  struct NamedParameter {
    std::string name;
    Parameter parameter;
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
  /// This module and its descendants, parents first; a shared module once.
  std::vector<NamedModule> NamedModules();
  /// Own parameters only (not those of children), by local name.
  const std::vector<NamedParameter>& own_parameters() const { return parameters_; }
  /// Null if there is no parameter of this name.
  Parameter* FindOwnParameter(std::string_view name);
  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  /// The name relative to the outermost module; "" for that module itself.
  std::string FullName() const;

  /// Places every parameter that has no mesh yet as replicated.
  void PlaceReplicated(const DeviceMesh& mesh);
  /// Materialises every parameter of this module and its descendants that has no values. The values
  /// depend on `seed` and on names relative to the outermost module. Also restarts random layers
  /// (Dropout).
  /// Collective over the parameters' meshes: ranks compare their seeds.
  /// Errors: throws Error(kFailedPrecondition) naming the first parameter that is not placed, and
  /// Error(kInvalidArgument) on every rank, naming both, if two ranks pass different seeds; nothing
  /// is materialised then.
  void Initialize(uint64_t seed);

  /// Applies to this module and its descendants.
  void Train(bool training = true);
  void Eval() { Train(false); }
  bool training() const { return training_; }

  /// The first module that has registered this one, or null.
  Module* parent() { return parent_; }
  /// Objects of the layers above, one a type; they live as long as the module.
  TypeMap& locals() { return locals_; }

 protected:
  virtual DTensor Forward(const Inputs& inputs) = 0;
  /// Called by Initialize; for layers that draw random numbers.
  virtual void Reseed(uint64_t /*seed*/) {}
  /// Names must be non-empty, unique within a module and without '.'.
  /// Errors: throws Error(kInvalidArgument) naming the name otherwise.
  Parameter RegisterParameter(std::string name, const Dims& shape, DType dtype, Init init);
  /// Registers a parameter that another module has too (tied).
  void RegisterParameter(std::string name, const Parameter& parameter);
  /// `child` must be a member of this module or outlive it.
  void RegisterChild(std::string name, Module& child);
  /// Registers a constant: neither trained nor saved.
  void RegisterBuffer(std::string name, Tensor value);
  /// Throws Error(kInvalidArgument) if there is no buffer of this name.
  const Tensor& Buffer(std::string_view name) const;

 private:
  const Module& Outermost() const;
  void NameParameters() const;
  void CheckNewName(std::string_view name) const;
  void CollectParameters(const std::string& prefix, std::vector<NamedParameter>& out) const;

  std::vector<NamedParameter> parameters_;
  std::vector<std::pair<std::string, Tensor>> buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  Module* parent_ = nullptr;  // The first module that registered this one.
  std::vector<std::function<std::shared_ptr<void>()>> scopes_;
  std::vector<PreHook> pre_hooks_;
  std::vector<PostHook> post_hooks_;
  bool training_ = true;
  TypeMap locals_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_MODULE_H_
