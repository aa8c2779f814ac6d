// SPDX-License-Identifier: Apache-2.0
//
// The autograd graph: one Node a recorded op, edges to the nodes (or leaves) of its operands.
#ifndef SHARDMESH_DTENSOR_INTERNAL_NODE_H_
#define SHARDMESH_DTENSOR_INTERNAL_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/gradients.h"

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

}  // namespace internal
}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_INTERNAL_NODE_H_
