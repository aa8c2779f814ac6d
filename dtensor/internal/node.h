// SPDX-License-Identifier: Apache-2.0
//
// The autograd graph: one Node a recorded op, edges to the nodes (or leaves) of its operands.
#ifndef SHARDMESH_DTENSOR_INTERNAL_NODE_H_
#define SHARDMESH_DTENSOR_INTERNAL_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

class Node;

namespace internal {

/// Where gradients of a leaf go. Owned by the leaf; nodes share it.
struct Leaf {
  std::weak_ptr<DTensorImpl> tensor;
  GradSink* sink = nullptr;
  std::function<void()> on_complete;
  std::vector<std::function<DTensor(const DTensor&)>> hooks;
};

/// To the node that made an operand, or to a leaf, or to nothing (no gradient wanted).
struct Edge {
  std::shared_ptr<Node> node;
  std::shared_ptr<Leaf> leaf;
  int output = 0;  // Which result of `node` the operand was.

  explicit operator bool() const { return node != nullptr || leaf != nullptr; }
};

}  // namespace internal

/// What a backward formula delivers: one gradient for each operand that wants one.
class Gradients {
 public:
  Gradients(Runtime& runtime, std::span<const internal::Edge> edges)
      : runtime_(runtime), edges_(edges) {
    values_.resize(edges.size());
    delivered_.resize(edges.size(), false);
  }

  bool Needs(int operand) const { return static_cast<bool>(edges_[operand]); }
  /// The gradient of the global operand, in any layout.
  void Set(int operand, DTensor gradient) { values_[operand] = std::move(gradient); }
  /// A gradient in `layout` that `kernel` writes (or adds, if `accumulate`) into a local tensor:
  /// straight into the buffer of a leaf that has a sink, else into a fresh tensor of `dtype`.
  void Write(int operand, const DeviceMesh& mesh, const Layout& layout, DType dtype,
             absl::FunctionRef<void(Tensor& target, bool accumulate)> kernel);

  const DTensor& value(int operand) const { return values_[operand]; }
  bool delivered(int operand) const { return delivered_[operand]; }

 private:
  Runtime& runtime_;
  std::span<const internal::Edge> edges_;
  absl::InlinedVector<DTensor, 3> values_;
  absl::InlinedVector<bool, 3> delivered_;
};

/// One recorded op. Belongs to a rank. Long chains are destroyed iteratively.
class Node {
 public:
  using Edges = absl::InlinedVector<internal::Edge, 3>;

  Node(uint64_t sequence, const char* name, int num_outputs)
      : sequence_(sequence), name_(name), num_outputs_(num_outputs) {}
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  uint64_t sequence() const { return sequence_; }
  const char* name() const { return name_; }
  int num_outputs() const { return num_outputs_; }
  Edges& edges() { return edges_; }

  /// `grads` has one entry a result; no tensor where none arrived. Called at most once.
  virtual void Backward(std::span<const DTensor> grads, Gradients& out) = 0;
  /// Frees what was saved.
  virtual void Release() = 0;
  bool used = false;  ///< Backward has passed; the saved values are gone.

  struct Hook {
    int output;
    std::function<DTensor(const DTensor&)> function;
  };
  std::vector<Hook> hooks;

 private:
  uint64_t sequence_;
  const char* name_;
  int num_outputs_;
  Edges edges_;
};

namespace internal {

/// A node whose backward is a callable `void(std::span<const DTensor> grads, Gradients& out)` with
/// its saved values.
template <typename F>
class FunctionNode final : public Node {
 public:
  FunctionNode(uint64_t sequence, const char* name, int num_outputs, F function)
      : Node(sequence, name, num_outputs), function_(std::in_place, std::move(function)) {}
  void Backward(std::span<const DTensor> grads, Gradients& out) override {
    (*function_)(grads, out);
  }
  void Release() override { function_.reset(); }

 private:
  std::optional<F> function_;
};

/// A value kept for backward, outside the graph. Reading it after an in-place write throws.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const DTensor& x);
  /// Throws Error(kFailedPrecondition) naming the tensor if its storage was written since.
  DTensor Get(const char* op) const;

 private:
  DTensor value_;
  int64_t version_ = 0;
};

}  // namespace internal
}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_INTERNAL_NODE_H_
