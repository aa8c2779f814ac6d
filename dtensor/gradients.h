// SPDX-License-Identifier: Apache-2.0
//
// What the backward of an op reads and delivers.
//
//   call.Record({&y}, [a = Saved(call.input(0)), b = Saved(call.input(1))](
//                         std::span<const DTensor> grads, Gradients& out) {
//     if (out.Needs(0)) out.Set(0, Mul(grads[0], b.Get("mul")));
//     if (out.Needs(1)) out.Set(1, Mul(grads[0], a.Get("mul")));
//   });
#ifndef SHARDMESH_DTENSOR_GRADIENTS_H_
#define SHARDMESH_DTENSOR_GRADIENTS_H_

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

class PackedTensor;
namespace internal {
struct Edge;
}

/// One gradient for each operand that wants one. Lives while a backward formula runs.
class Gradients {
 public:
  /// Made by the engine, for the operands of `node`, which must outlive it.
  Gradients(Node& node, const Runtime& runtime);

  // `operand` counts from 0 in the order of the op's operands.
  // Errors: throw Error(kInvalidArgument) naming the op if it has no such operand.
  bool Needs(int operand) const;
  /// The gradient of the global operand, of its shape and dtype, in any layout. (That it fits is
  /// checked when the backward formula has returned.)
  void Set(int operand, DTensor gradient) {
    EdgeOf(operand);
    values_[operand] = std::move(gradient);
  }
  /// A gradient in `layout` that `kernel` writes (or adds, if `accumulate`) into a local tensor:
  /// straight into the buffer of a leaf that has a sink, in its dtype, else into a fresh tensor of
  /// `dtype`, or f32 for summands of a small one.
  void Write(int operand, const DeviceMesh& mesh, const Layout& layout, DType dtype,
             absl::FunctionRef<void(Tensor& target, bool accumulate)> kernel);

  /// No tensor where none was set.
  const DTensor& value(int operand) const { return values_[operand]; }
  DTensor Take(int operand) { return std::move(values_[operand]); }
  /// Whether Write has put it into the leaf's buffer.
  bool delivered(int operand) const { return delivered_[operand]; }

 private:
  const internal::Edge& EdgeOf(int operand) const;

  Node& node_;
  const Runtime& runtime_;
  absl::InlinedVector<DTensor, 3> values_;
  absl::InlinedVector<bool, 3> delivered_;
};

/// A value kept for backward, outside the graph, or what SavedTensorHooks have made of it. Reading
/// it after an in-place write throws.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const DTensor& x);
  /// Adopts a detached, uniquely owned handle; copies any other.
  explicit Saved(DTensor&& x);
  /// Throws Error(kFailedPrecondition) naming the tensor if its storage was written since.
  DTensor Get(const char* op) const;

 private:
  bool Pack(const DTensor& x);

  DTensor value_;
  int64_t version_ = 0;
  std::shared_ptr<PackedTensor> packed_;
};

/// The same for a plain tensor, whose values the backward of an op reads.
class SavedTensor {
 public:
  explicit SavedTensor(const Tensor& x);
  /// Throws Error(kFailedPrecondition) naming the tensor if its storage was written since.
  const Tensor& Get(const char* op) const;

 private:
  Tensor value_;
  int64_t version_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_GRADIENTS_H_
