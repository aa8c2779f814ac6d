// SPDX-License-Identifier: Apache-2.0
//
// A trainable tensor of a module. Initialisation is deferred: a model is built on the meta device,
// without memory; Parallelize and FullyShard decide the layouts; then each rank creates its own box
// of each parameter. The values depend only on (seed, name, global index), so they are the same
// bits on every mesh.
#ifndef SHARDMESH_NN_PARAMETER_H_
#define SHARDMESH_NN_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::nn {

/// Initial values.
struct Init {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double a = 0;  ///< The constant; the mean; the lower bound.
  double b = 0;  ///< -; the standard deviation; the upper bound.

  static Init Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Init Normal(double mean, double stddev) { return {Kind::kNormal, mean, stddev}; }
  static Init Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
};

/// The random stream (tensor/kernel_table.h) of a name: its XXH64 with `salt` as the seed. Initial
/// values depend on it, so it must not change.
uint64_t RandomStreamOf(std::string_view name, uint64_t salt = 0);

/// A shared handle: copies are the same parameter (a tied weight is one Parameter under two names).
/// Belongs to a rank.
class Parameter {
 public:
  /// An undefined parameter (an absent bias, for example); only bool and assignment are allowed.
  Parameter() = default;
  /// On the meta device: no mesh, no values.
  /// Errors: throws Error(kInvalidArgument) if `dtype` is not floating-point.
  Parameter(const Dims& shape, DType dtype, Init init);

  explicit operator bool() const { return state_ != nullptr; }
  const Dims& shape() const { return state_->shape; }
  DType dtype() const { return state_->dtype; }
  const Init& init() const { return state_->init; }
  /// The full name in the model, "layers.0.mlp.up_proj.weight"; of a tied parameter the first one.
  /// Empty until a module sets it (module.h).
  const std::string& name() const { return state_->name; }
  void set_name(std::string name) { state_->name = std::move(name); }
  /// That of data(), once there are values.
  bool requires_grad() const {
    return state_->data ? state_->data.RequiresGrad() : state_->requires_grad;
  }
  /// Frozen parameters get no gradient from forwards that begin later.
  /// Errors: throws Error(kInvalidArgument) if it is a buffer and `value` true.
  void set_requires_grad(bool value);

  /// Whether it has a mesh and a layout.
  bool IsPlaced() const { return static_cast<bool>(state_->layout); }
  const DeviceMesh& mesh() const { return state_->mesh; }
  const Layout& layout() const { return state_->layout; }
  /// Sets mesh and layout; if values exist they are moved (collective then; a gradient is dropped).
  /// data() stays the same leaf.
  /// Errors: throws Error(kInvalidArgument) naming the parameter if the layout is of another shape
  /// or mesh, or Partial, or if values exist on another mesh; Error(kFailedPrecondition) if
  /// FixPlacement has fixed another placement.
  void Place(const DeviceMesh& mesh, const Layout& layout);
  /// Fixes the placement, because `owner` (named in messages) relies on it.
  void FixPlacement(std::string owner) { state_->placement_owner = std::move(owner); }
  bool IsPlacementFixed() const { return !state_->placement_owner.empty(); }

  /// Whether it has values.
  bool IsMaterialized() const { return static_cast<bool>(state_->data); }
  /// Creates this rank's box from (seed, name(), global index). Local.
  /// Errors: throws Error(kFailedPrecondition) if it is not placed, or has random initial values
  /// but no name.
  void Materialize(uint64_t seed);
  /// Takes values from the caller, sharing their memory; data() stays the same leaf, with its
  /// gradient and hooks. For a graph that has saved the values before, this is a write in place.
  /// Local.
  /// Errors: throws Error(kFailedPrecondition) if not placed, Error(kInvalidArgument) if mesh,
  /// layout or dtype differ, or the local tensor is not contiguous.
  void SetData(DTensor data);

  /// The leaf that the optimizer updates and whose grad() it reads: this rank's shard. Throws
  /// Error(kFailedPrecondition) naming the parameter if it is not materialised.
  const DTensor& data() const;
  /// The tensor that forward uses: data(), or the gathered form that FullyShard puts in its place
  /// while the module's forward runs.
  const DTensor& active() const { return state_->active ? state_->active : data(); }
  void set_active(DTensor active) { state_->active = std::move(active); }

  /// Whether a part of the gradient is not in data().grad() yet: that of micro-batches which
  /// FullyShard has not reduced.
  bool HasUnreducedGradient() const { return state_->has_unreduced_gradient; }
  void set_has_unreduced_gradient(bool value) { state_->has_unreduced_gradient = value; }
  /// Throws Error(kFailedPrecondition) naming `user` and the parameter if it has an unreduced
  /// gradient: what reads the gradient now would leave that part out.
  void CheckGradientIsReduced(std::string_view user) const;

  /// "model.norm.weight f32[64] [R] @ [dp=2]", or "on meta" if it is not placed.
  std::string ToString() const;

  /// All values, the same on every rank. Collective over the mesh. Errors: as data().
  Tensor Full() const;
  /// Takes this rank's box of `full`, which all ranks must pass with the same values; creates the
  /// values if there are none, else writes them in place. Local.
  /// Errors: throws Error(kFailedPrecondition) if it is not placed, Error(kInvalidArgument) naming
  /// both if shape or dtype differ.
  void SetFull(const Tensor& full);

  friend bool operator==(const Parameter& a, const Parameter& b) { return a.state_ == b.state_; }
  const void* id() const { return state_.get(); }

 protected:
  struct State {
    Dims shape;
    DType dtype = DType::kF32;
    Init init;
    std::string name;
    bool requires_grad = true;  // Before there are values.
    bool is_buffer = false;
    bool has_unreduced_gradient = false;
    DeviceMesh mesh;
    Layout layout;
    std::string placement_owner;  // Empty while the placement may change.
    DTensor data;
    DTensor active;
  };
  std::shared_ptr<State> state_;
};

/// A tensor of a module that is not trained: running statistics, tables, counters. Has what a
/// parameter has, but never requires a gradient, and may be of any dtype; forward reads data().
class Buffer : public Parameter {
 public:
  Buffer() = default;
  /// Errors: throws Error(kInvalidArgument) if `init` is random and `dtype` not floating-point.
  Buffer(const Dims& shape, DType dtype, Init init = Init::Constant(0));
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_PARAMETER_H_
