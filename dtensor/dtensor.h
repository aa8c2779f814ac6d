// SPDX-License-Identifier: Apache-2.0
//
// A distributed tensor: one global tensor of which this rank holds a box.
//
//   DTensor w = Distribute(mesh, full, {Replicate(), Shard(0)});
//   DTensor y = MatMul(x, w);                        // collectives are derived
//   Tensor whole = FullTensor(y);                    // the same on every rank
//
// A DTensor is a shared handle of (local tensor, interned layout, mesh, autograd node). Copies
// refer to the same tensor. It belongs to its rank: using it together with one of another rank is
// an error.
#ifndef SHARDMESH_DTENSOR_DTENSOR_H_
#define SHARDMESH_DTENSOR_DTENSOR_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/dtensor/hook_handle.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/placement/layout.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

class GradSink;
class Node;
class Runtime;
namespace internal {
struct DTensorImpl;
}

/// Belongs to one rank and its thread.
class DTensor {
 public:
  /// No tensor: bool and assignment; anything else throws Error(kFailedPrecondition).
  DTensor() = default;
  /// Internal: `local` must be this rank's box of `layout`, contiguous. Users call Distribute,
  /// FromLocal or a factory.
  DTensor(DeviceMesh mesh, Layout layout, Tensor local);
  /// Internal: for ops, which know the rank's runtime already.
  explicit DTensor(std::shared_ptr<internal::DTensorImpl> impl) : impl_(std::move(impl)) {}

  explicit operator bool() const { return impl_ != nullptr; }

  const Dims& shape() const { return layout().global_shape(); }  ///< Global.
  int num_dims() const { return shape().size(); }                ///< Number of dims.
  /// Extent of a global dim; -1 is the last. Throws Error(kInvalidArgument) if there is no such.
  int64_t dim(int index) const {
    if (index < 0 || index >= num_dims()) index = NormalizeDim(index, num_dims(), "dim");
    return shape()[index];
  }
  int64_t NumElements() const { return shape().NumElements(); }
  DType dtype() const;
  const Layout& layout() const;
  const DeviceMesh& mesh() const;
  /// This rank's box, aliased. For Partial placements this is a summand, not a value, and may be
  /// f32 where dtype() is bf16 or f16 (partial_precision.h). Whoever writes it (mutable_data, a
  /// collective) does so on every rank: ops and backward decide by its version what to move again.
  const Tensor& local() const;
  /// Whether local() is contiguous, last dim innermost, on every rank, as far as the ops that made
  /// it tell: the same on all ranks, which local strides are not.
  bool IsRowMajor() const;
  /// The box of global indices that local() holds.
  Box LocalBox() const;

  /// Only for leaves. Throws Error(kFailedPrecondition) on the result of an op.
  DTensor& SetRequiresGrad(bool requires_grad = true);
  bool RequiresGrad() const;
  bool IsLeaf() const;
  /// The accumulated gradient, in this tensor's layout; no tensor if there is none.
  const DTensor& grad() const;
  /// Replaces the gradient; no tensor clears it. A tensor that has other handles, or shares its
  /// memory, is copied: what later Backwards add to the gradient shows in no other tensor.
  /// Errors: throws Error(kInvalidArgument) if `grad` is not of this tensor's dtype, layout
  /// (Partial read as Replicate; as by ReadAs), rank and mesh.
  void SetGrad(DTensor grad);
  void ZeroGrad() { SetGrad(DTensor()); }
  /// The same values outside the graph; shares storage.
  DTensor Detach() const;

  /// Internal, for parameters: only for leaves. The same leaf with other values: handles, hooks and
  /// whether it requires a gradient stay, and so does its gradient if the layout does. To graphs
  /// that have saved the values before, this is a write in place.
  void ReplaceValues(const Layout& layout, Tensor local);

  /// Called in backward with the complete gradient of this tensor (summed over all uses); what it
  /// returns goes on (return the argument to leave it). `grad` is the hook's own: writing it in
  /// place changes no other gradient. Must do the same on all ranks. A hook that holds its own
  /// tensor keeps it alive for ever.
  /// Errors: throws Error(kInvalidArgument) if `hook` is empty.
  HookHandle RegisterGradHook(std::function<DTensor(const DTensor& grad)> hook);
  /// Only for leaves. Called with the leaf at the end of each Backward that has added to its
  /// grad(): everything is in place, and the hook may use or clear it (an optimizer step, for
  /// example). Must do the same on all ranks.
  /// Errors: throws Error(kInvalidArgument) if `hook` is empty or this is the result of an op. What
  /// it throws, Backward passes on; the gradients stay.
  HookHandle RegisterPostAccumulateGradHook(std::function<void(const DTensor& leaf)> hook);

  /// "f32[512,64] [S(0), R] @ [dp=2, tp=4]".
  std::string ToString() const;

  const std::shared_ptr<internal::DTensorImpl>& impl() const { return impl_; }

 private:
  internal::DTensorImpl& Checked(const char* use) const;

  std::shared_ptr<internal::DTensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// ---- making -------------------------------------------------------------------------------------

/// Each rank takes its box of `full`, which all ranks must pass with the same values (that they
/// agree in shape and dtype is checked at the first move). A Partial placement keeps the values on
/// coordinate 0. Local.
/// Errors: throws Error(kInvalidArgument) as Layout::Make does.
DTensor Distribute(const DeviceMesh& mesh, const Tensor& full,
                   const std::vector<Placement>& placements);

/// This rank's box filled by `fill`, which is given the box and an uninitialised contiguous tensor
/// of its extents. Local.
/// Errors: throws Error(kInvalidArgument) as Layout::Make does, and for a Partial placement.
DTensor FromBoxes(const DeviceMesh& mesh, const Dims& global_shape, DType dtype,
                  const std::vector<Placement>& placements,
                  const std::function<void(const Box& box, Tensor& local)>& fill);

/// Enters the global view: `local` is this rank's box of the tensor of `global_shape`. The gradient
/// that comes back in backward is the global one, in this layout (Partial read as Replicate).
/// Collective over the mesh (ranks compare what they pass).
/// Errors: throws Error(kInvalidArgument) on every rank, naming the rank, its shape and the
/// expected one, if a local shape is not its box, or ranks disagree on shape, dtype or placements.
DTensor FromLocal(const DeviceMesh& mesh, const Tensor& local, const Dims& global_shape,
                  const std::vector<Placement>& placements);

/// What the gradient of a local value is, along each axis on which the tensor is replicated: the
/// same on every rank, or a summand (each rank does different work with the value).
enum class LocalGradient { kReplicated, kPartialSum };

/// Leaves the global view: a plain tensor that shares storage, plus the way back in backward.
struct LocalValue {
  Tensor value;
  /// Feeds the gradient of `value` back; call once, before or instead of a Backward through other
  /// paths. Collective over the mesh. Errors: throws Error(kInvalidArgument) if `grad` is not of
  /// the value's shape and dtype.
  std::function<void(const Tensor& grad)> Backward;
};
/// `replicated_gradient[i]` says what the gradient is along the i-th axis (all axes of the mesh;
/// ignored where sharded). Local.
/// Errors: throws Error(kFailedPrecondition) if `x` is Partial along an axis: redistribute first;
/// Error(kInvalidArgument) if there is not one kind for each axis.
LocalValue ToLocal(const DTensor& x, const std::vector<LocalGradient>& replicated_gradient);

/// Every element `value`, or 0. Local. Errors: as FromBoxes; for an integer dtype or bool, values
/// that it does not have.
DTensor Full(const DeviceMesh& mesh, const Dims& shape, DType dtype, double value,
             const std::vector<Placement>& placements);
DTensor Zeros(const DeviceMesh& mesh, const Dims& shape, DType dtype,
              const std::vector<Placement>& placements);

// ---- moving -------------------------------------------------------------------------------------

/// The same global tensor in another layout: another view of `x` where no axis of more than one
/// rank changes, else a copy; in-place ops on it are refused in both cases. Its gradient is
/// delivered in the layout of `x`, Partial read as Replicate. Collective over the mesh.
/// Errors: throws Error(kInvalidArgument) as Layout::Make does, if `layout` is of another shape or
/// mesh, or if it makes a bool Partial.
DTensor Redistribute(const DTensor& x, const std::vector<Placement>& placements);
DTensor Redistribute(const DTensor& x, const Layout& layout);

/// The same tensor, outside the graph and sharing its memory, in a layout that differs along axes
/// of one rank at most; no tensor if another axis would have to change. Such axes decide nothing:
/// what an op has made there need not be what a leaf has. Local.
DTensor ReadAs(const DTensor& x, const Layout& layout);

/// The whole tensor, the same on every rank. Outside the graph. Collective over the mesh.
Tensor FullTensor(const DTensor& x);

/// The value of a tensor with one element, on every rank. Collective over the mesh.
/// Errors: throws Error(kInvalidArgument) if there is not exactly one element, and
/// Error(kOutOfRange) for an i64 that no double holds: use IntegerItem.
double Item(const DTensor& x);
/// As Item, of an integer dtype or bool, exact.
/// Errors: throws Error(kInvalidArgument) for other dtypes.
int64_t IntegerItem(const DTensor& x);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_DTENSOR_H_
