// SPDX-License-Identifier: Apache-2.0
//
// The autograd graph: one Node a recorded op, edges to the nodes (or leaves) of its operands.
#ifndef SHARDMESH_DTENSOR_INTERNAL_NODE_H_
#define SHARDMESH_DTENSOR_INTERNAL_NODE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/gradients.h"
#include "shardmesh/dtensor/partial_precision.h"

namespace shardmesh {

class Node;

namespace internal {

/// Where gradients of a leaf go. Shared by the leaf and the nodes that read it: it outlives the
/// last handle of the tensor for as long as a graph can deliver to it.
struct Leaf {
  Leaf(std::weak_ptr<DTensorImpl> tensor, Layout layout, DType dtype)
      : tensor(std::move(tensor)), layout(std::move(layout)), dtype(dtype) {}

  std::weak_ptr<DTensorImpl> tensor;
  Layout layout;
  DType dtype;
  std::shared_ptr<GradSink> sink;
  using GradHook = RemovableHook<std::function<DTensor(const DTensor&)>>;
  std::vector<GradHook> hooks;
  std::vector<RemovableHook<std::function<void(const DTensor&)>>> post_accumulate_hooks;

  /// Whether there is a hook of the gradient that was not removed.
  bool HasHooks() {
    std::erase_if(hooks, [](const GradHook& hook) { return hook.is_removed(); });
    return !hooks.empty();
  }
};

/// To the node that made an operand, or to a leaf, or to nothing (no gradient wanted).
struct Edge {
  std::shared_ptr<Node> node;
  std::shared_ptr<Leaf> leaf;
  int output = 0;  // Which result of `node` the operand was.

  explicit operator bool() const { return node != nullptr || leaf != nullptr; }
};

}  // namespace internal

/// One recorded op. Belongs to a rank. Graphs of any shape and depth are destroyed iteratively.
class Node {
 public:
  using Edges = absl::InlinedVector<internal::Edge, 3>;
  /// What a gradient of a result must fit.
  struct Output {
    Layout layout;
    DType dtype;
  };
  using Outputs = absl::InlinedVector<Output, 1>;

  Node(uint64_t sequence, const char* name) : sequence_(sequence), name_(name) {}
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  uint64_t sequence() const { return sequence_; }
  const char* name() const { return name_; }
  int num_outputs() const { return static_cast<int>(outputs_.size()); }
  const Outputs& outputs() const { return outputs_; }
  Edges& edges() { return edges_; }
  /// Makes this the node of `results`, with an edge to what made each of `operands`.
  void Connect(const std::shared_ptr<Node>& self, std::span<const DTensor* const> operands,
               std::initializer_list<DTensor*> results);

  /// `grads` has one entry a result; no tensor where none arrived. Called at most once.
  virtual void Backward(std::span<const DTensor> grads, Gradients& out) = 0;
  /// Frees what was saved.
  virtual void Release() = 0;
  bool used = false;                       ///< Backward has passed; the saved values are gone.
  std::shared_ptr<BackwardRegion> region;  ///< The innermost in which the op was recorded, or null.
  /// That of the scope in which the op was recorded; holds for its backward.
  PartialPrecision partial_precision = PartialPrecision::kAccumulator;

  struct Hook {
    int output;
    internal::Leaf::GradHook hook;
  };
  std::vector<Hook> hooks;

 private:
  uint64_t sequence_;
  const char* name_;
  Outputs outputs_;
  Edges edges_;
};

namespace internal {

/// A node whose backward is a callable `void(std::span<const DTensor> grads, Gradients& out)` with
/// its saved values.
template <typename F>
class FunctionNode final : public Node {
 public:
  FunctionNode(uint64_t sequence, const char* name, F function)
      : Node(sequence, name), function_(std::in_place, std::move(function)) {}
  void Backward(std::span<const DTensor> grads, Gradients& out) override {
    (*function_)(grads, out);
  }
  void Release() override { function_.reset(); }

 private:
  std::optional<F> function_;
};

/// Records the op `name`: makes `results` differentiable by `backward`, a callable as above.
template <typename F>
void RecordNode(uint64_t sequence, const char* name, std::span<const DTensor* const> operands,
                std::initializer_list<DTensor*> results, F backward) {
  const std::shared_ptr<Node> node =
      std::make_shared<FunctionNode<F>>(sequence, name, std::move(backward));
  node->Connect(node, operands, results);
}

/// Gives up a reference to a graph. What that destroys is destroyed one node after the other, never
/// nested, so a graph may be as deep as memory allows.
void Drop(std::shared_ptr<Node> node);

}  // namespace internal
}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_INTERNAL_NODE_H_
