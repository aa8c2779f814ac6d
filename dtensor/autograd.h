// SPDX-License-Identifier: Apache-2.0
//
// Reverse-mode differentiation over DTensors. The gradient of a value is a global tensor; its
// layout is a matter of cost until it reaches a leaf or an explicit Redistribute.
//
//   DTensor loss = Mean(Square(model(x)));
//   Backward(loss);                         // w.grad() is in w's layout
//
// Backward visits nodes in the reverse order of their creation, alike on all ranks. A value saved
// for backward that was written in place since is an error.
#ifndef SHARDMESH_DTENSOR_AUTOGRAD_H_
#define SHARDMESH_DTENSOR_AUTOGRAD_H_

#include <functional>
#include <memory>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

/// Differentiates `loss` (one element) with respect to every leaf that requires a gradient; adds to
/// the leaves' grad(). The graph is consumed: its saved values are freed as it goes. Collective
/// over the mesh.
/// Errors: throws Error(kInvalidArgument) if loss has not one element, Error(kFailedPrecondition)
/// if nothing requires a gradient or the graph was used before.
void Backward(const DTensor& loss);

/// As Backward, from a given gradient of `root`'s shape and dtype, in any layout. `root` may be a
/// leaf.
void Backward(const DTensor& root, const DTensor& grad);

/// While alive, ops on this rank record nothing.
class NoGrad {
 public:
  explicit NoGrad(const DeviceMesh& mesh);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Runtime& runtime_;
  bool before_;
};

/// Takes over the accumulation of a leaf's gradient: kernels write straight into its buffer, in its
/// dtype. Installed by layers that reduce gradients themselves.
class GradSink {
 public:
  virtual ~GradSink() = default;

  /// Whether a gradient in `layout` can be written or added to the buffer as it is. Where it
  /// cannot, it is moved to PreferredLayout() first.
  virtual bool Accepts(const Layout& layout) const = 0;
  virtual Layout PreferredLayout() const = 0;
  /// Of the buffer, at least as wide as that of the gradients. Kernels write sums in their own
  /// dtype, and those of bf16 and f16 in f32; other gradients are made apart and added.
  virtual DType dtype() const = 0;
  /// The local buffer to write a gradient in `layout` into; `accumulate` tells whether it already
  /// holds a sum to add to.
  struct Target {
    Tensor buffer;
    bool accumulate;
  };
  virtual Target Open(const Layout& layout) = 0;
  /// `bytes` were copied into the buffer because a kernel could not write there itself.
  virtual void CountStaging(int64_t bytes) = 0;
};

/// Installs `sink` on a leaf; null removes it. The leaf, and every graph that can deliver to it,
/// shares the ownership. Where the leaf has gradient hooks, the sink gets what they return when the
/// gradient is complete.
void SetGradSink(const DTensor& leaf, std::shared_ptr<GradSink> sink);

/// The same value; when its gradient arrives in backward, `before_backward` runs before any node
/// created earlier.
DTensor WithBackwardCallback(const DTensor& x, std::function<void()> before_backward);

/// Runs `callback` on this rank when the Backward now running has ended, with whether it succeeded
/// (a Backward that threw leaves no gradient behind). Outside one it throws
/// Error(kFailedPrecondition).
void AtEndOfBackward(const DeviceMesh& mesh, std::function<void(bool succeeded)> callback);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_AUTOGRAD_H_
