// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/autograd.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::DTensorImpl;
using internal::Edge;
using internal::Leaf;

// ---- nodes --------------------------------------------------------------------------------------

Node::~Node() {
  // A chain of a million ops would overflow the stack if each node destroyed the next.
  std::vector<std::shared_ptr<Node>> doomed;
  const auto take = [&](Edges& edges) {
    for (Edge& edge : edges) {
      if (edge.node != nullptr && edge.node.use_count() == 1)
        doomed.push_back(std::move(edge.node));
    }
  };
  take(edges_);
  while (!doomed.empty()) {
    const std::shared_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    node->Release();
    take(node->edges_);
  }
}

namespace internal {

const std::shared_ptr<Leaf>& LeafOf(const std::shared_ptr<DTensorImpl>& impl) {
  if (impl->leaf == nullptr) {
    impl->leaf = std::make_shared<Leaf>();
    impl->leaf->tensor = impl;
  }
  return impl->leaf;
}

Edge EdgeTo(const DTensor& x) {
  const std::shared_ptr<DTensorImpl>& impl = x.impl();
  if (!impl->requires_grad) return {};
  if (impl->grad_fn != nullptr) return {impl->grad_fn, nullptr, impl->output};
  return {nullptr, LeafOf(impl), 0};
}

}  // namespace internal

// ---- the engine ---------------------------------------------------------------------------------

namespace {

constexpr Op kAccumulate{"accumulate_grad"};

DTensor RunHook(const std::function<DTensor(const DTensor&)>& hook, const DTensor& grad) {
  DTensor result = hook(grad);
  if (!result || !(result.shape() == grad.shape()) || result.dtype() != grad.dtype()) {
    ThrowInvalid("a gradient hook returned ", result.ToString(), " for ", grad.ToString());
  }
  internal::CheckTogether("gradient hook", grad, result);
  return result;
}

// One run of Backward.
class Engine {
 public:
  Engine(Runtime& runtime, const DeviceMesh& mesh) : runtime_(runtime), mesh_(mesh) {}

  void Run(const DTensor& root, const DTensor& grad) {
    if (root.IsLeaf()) {
      const Edge edge = internal::EdgeTo(root);
      leaves_[edge.leaf.get()].awaited = 1;
      Pass(edge, grad, /*delivered=*/false);
    } else {
      Differentiate(root, grad);
    }
    for (auto& [leaf, state] : leaves_) Commit(*leaf, state);
  }

 private:
  struct NodeState {
    absl::InlinedVector<DTensor, 2> grads;
  };
  struct LeafState {
    int awaited = 0;  // Uses that have not delivered yet.
    DTensor grad;
  };

  void Differentiate(const DTensor& root, const DTensor& grad) {
    Collect(root.impl()->grad_fn);
    for (const auto& [node, state] : nodes_) {
      if (node->used) {
        Throw(absl::StatusCode::kFailedPrecondition, "backward through ", node->name(),
              ": the graph was used by an earlier Backward and its saved values are gone; run "
              "forward again");
      }
    }
    std::sort(order_.begin(), order_.end(),
              [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
    nodes_[root.impl()->grad_fn.get()].grads[root.impl()->output] = grad;
    for (std::shared_ptr<Node>& node : order_) {
      Visit(*node);
      node.reset();
    }
  }

  void Collect(const std::shared_ptr<Node>& root) {
    std::vector<std::shared_ptr<Node>> stack = {root};
    nodes_[root.get()].grads.resize(root->num_outputs());
    while (!stack.empty()) {
      const std::shared_ptr<Node> node = std::move(stack.back());
      stack.pop_back();
      order_.push_back(node);
      for (const Edge& edge : node->edges()) {
        if (edge.leaf != nullptr) ++leaves_[edge.leaf.get()].awaited;
        if (edge.node == nullptr) continue;
        const auto [entry, is_new] = nodes_.try_emplace(edge.node.get());
        if (!is_new) continue;
        entry->second.grads.resize(edge.node->num_outputs());
        stack.push_back(edge.node);
      }
    }
  }

  void Visit(Node& node) {
    NodeState state = std::move(nodes_[&node]);
    for (const Node::Hook& hook : node.hooks) {
      if (state.grads[hook.output])
        state.grads[hook.output] = RunHook(hook.function, state.grads[hook.output]);
    }
    Gradients out(node);
    const bool any = std::any_of(state.grads.begin(), state.grads.end(),
                                 [](const DTensor& g) { return bool(g); });
    if (any) node.Backward(state.grads, out);
    node.used = true;
    node.Release();
    state.grads.clear();
    // Where a value was used twice, edges are met in order: sums are alike on all ranks.
    for (size_t i = 0; i < node.edges().size(); ++i)
      Pass(node.edges()[i], out.value(i), out.delivered(i));
    node.edges().clear();
  }

  void Pass(const Edge& edge, const DTensor& grad, bool delivered) {
    if (edge.node != nullptr && grad) {
      AddTo(nodes_[edge.node.get()].grads[edge.output], grad);
    } else if (edge.leaf != nullptr) {
      LeafState& state = leaves_[edge.leaf.get()];
      if (grad && !delivered) Deliver(*edge.leaf, state, grad);
      if (--state.awaited == 0) Complete(*edge.leaf, state);
    }
  }

  static void AddTo(DTensor& sum, const DTensor& grad) { sum = sum ? Add(sum, grad) : grad; }

  void Deliver(Leaf& leaf, LeafState& state, const DTensor& grad) {
    if (leaf.sink != nullptr && leaf.hooks.empty()) {
      IntoSink(*leaf.sink, grad);
    } else {
      AddTo(state.grad, grad);
    }
  }

  void IntoSink(GradSink& sink, const DTensor& grad) {
    Layout layout = grad.layout();
    Tensor local = grad.local();
    if (!sink.Accepts(layout)) {
      local =
          internal::Move(runtime_, mesh_, local, layout, sink.PreferredLayout(), kAccumulate.name);
      layout = sink.PreferredLayout();
    }
    GradSink::Target target = sink.Open(layout);
    if (target.accumulate) {
      ops::Accumulate(mesh_.context(), local, target.buffer);
    } else {
      ops::Copy(mesh_.context(), local, target.buffer);
    }
    sink.CountStaging(target.buffer.Bytes());
  }

  void Complete(Leaf& leaf, LeafState& state) {
    if (state.grad) {
      for (const auto& hook : leaf.hooks) state.grad = RunHook(hook, state.grad);
      if (leaf.sink != nullptr) {
        IntoSink(*leaf.sink, state.grad);
        state.grad = DTensor();
      } else if (const auto tensor = leaf.tensor.lock()) {
        // In the leaf's layout, whatever the formulas found cheapest.
        const Layout layout = tensor->layout.PartialAsReplicate();
        state.grad = DTensor(mesh_, layout,
                             internal::Move(runtime_, mesh_, state.grad.local(),
                                            state.grad.layout(), layout, kAccumulate.name));
      }
    }
    if (leaf.on_complete) leaf.on_complete();
  }

  // Only after everything has succeeded: a Backward that throws leaves no gradient behind.
  void Commit(Leaf& leaf, LeafState& state) {
    const auto tensor = leaf.tensor.lock();
    if (tensor == nullptr || !state.grad) return;
    if (tensor->grad) {
      Tensor sum = tensor->grad.local();
      ops::BinaryInto(mesh_.context(), BinaryOp::kAdd, sum, state.grad.local());
      return;
    }
    // A copy: the gradient may share memory with another value's, and the user may scale it in
    // place.
    Tensor copy = Tensor::Empty(mesh_.context(), state.grad.local().shape(), state.grad.dtype(),
                                MemoryCategory::kGradients);
    ops::Copy(mesh_.context(), state.grad.local(), copy);
    tensor->grad = DTensor(mesh_, state.grad.layout(), std::move(copy));
  }

  Runtime& runtime_;
  DeviceMesh mesh_;
  absl::flat_hash_map<Node*, NodeState> nodes_;
  absl::flat_hash_map<Leaf*, LeafState> leaves_;
  std::vector<std::shared_ptr<Node>> order_;
};

// Marks the runtime as running a backward, and tells the callbacks how it ended.
class BackwardScope {
 public:
  explicit BackwardScope(Runtime& runtime)
      : runtime_(runtime), grad_enabled_(runtime.grad_enabled) {
    if (runtime.in_backward) {
      Throw(absl::StatusCode::kFailedPrecondition, "Backward was called within a Backward");
    }
    runtime.in_backward = true;
    runtime.grad_enabled = false;
  }
  void Succeed() { Finish(/*succeeded=*/true); }
  ~BackwardScope() {
    Finish(/*succeeded=*/false);  // Nothing is left to call after Succeed().
    runtime_.in_backward = false;
    runtime_.grad_enabled = grad_enabled_;
  }

 private:
  // If a callback throws, those after it still learn that this Backward failed.
  void Finish(bool succeeded) {
    while (!runtime_.at_end_of_backward.empty()) {
      const std::function<void(bool)> callback = std::move(runtime_.at_end_of_backward.front());
      runtime_.at_end_of_backward.erase(runtime_.at_end_of_backward.begin());
      if (succeeded) {
        callback(true);
        continue;
      }
      try {
        callback(false);
      } catch (...) {
        // The first error is on its way already.
      }
    }
  }

  Runtime& runtime_;
  bool grad_enabled_;
};

}  // namespace

void Backward(const DTensor& loss) {
  if (!loss) ThrowInvalid("Backward: no tensor");
  if (loss.NumElements() != 1) {
    ThrowInvalid("Backward: expected a tensor with one element, got ", loss.ToString(),
                 "; pass its gradient");
  }
  const Layout layout = Layout::Replicated(loss.mesh().shape(), loss.shape());
  const Tensor one = ops::Full(loss.mesh().context(), loss.shape(), loss.dtype(), 1.0);
  Backward(loss, DTensor(loss.mesh(), layout, one));
}

void Backward(const DTensor& root, const DTensor& grad) {
  if (!root || !grad) ThrowInvalid("Backward: no tensor");
  if (!(grad.shape() == root.shape()) || grad.dtype() != root.dtype()) {
    ThrowInvalid("Backward: gradient ", grad.ToString(), " does not fit ", root.ToString());
  }
  internal::CheckTogether("Backward", root, grad);
  if (!root.RequiresGrad()) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: ", root.ToString(),
          " does not depend on a tensor that requires a gradient");
  }
  Runtime& runtime = *root.impl()->runtime;
  BackwardScope scope(runtime);
  Engine(runtime, root.mesh()).Run(root, grad);
  scope.Succeed();
}

NoGrad::NoGrad(const DeviceMesh& mesh)
    : runtime_(Runtime::Of(mesh)), before_(runtime_.grad_enabled) {
  runtime_.grad_enabled = false;
}

NoGrad::~NoGrad() { runtime_.grad_enabled = before_; }

void SetGradSink(const DTensor& leaf, GradSink* sink, std::function<void()> on_complete) {
  if (!leaf.IsLeaf())
    ThrowInvalid("SetGradSink: ", leaf.ToString(), " is the result of an op, not a leaf");
  const std::shared_ptr<Leaf>& record = internal::LeafOf(leaf.impl());
  record->sink = sink;
  record->on_complete = std::move(on_complete);
}

DTensor WithBackwardCallback(const DTensor& x, std::function<void()> before_backward) {
  if (!x.RequiresGrad() || !x.impl()->runtime->grad_enabled) return x;
  Runtime& runtime = *x.impl()->runtime;
  DTensor y(x.mesh(), x.layout(), x.local());
  auto backward = [callback = std::move(before_backward)](std::span<const DTensor> grads,
                                                          Gradients& out) {
    callback();
    out.Set(0, grads[0]);
  };
  auto node = std::make_shared<internal::FunctionNode<decltype(backward)>>(
      runtime.NextSequence(), "backward_callback", 1, std::move(backward));
  node->edges().push_back(internal::EdgeTo(x));
  y.impl()->grad_fn = std::move(node);
  y.impl()->requires_grad = true;
  y.impl()->may_write = x.impl()->may_write;
  return y;
}

void AtEndOfBackward(const DeviceMesh& mesh, std::function<void(bool succeeded)> callback) {
  Runtime& runtime = Runtime::Of(mesh);
  if (!runtime.in_backward) {
    Throw(absl::StatusCode::kFailedPrecondition, "AtEndOfBackward: no Backward is running");
  }
  runtime.at_end_of_backward.push_back(std::move(callback));
}

}  // namespace shardmesh
