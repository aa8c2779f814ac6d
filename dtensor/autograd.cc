// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/autograd.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
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
  for (Edge& edge : edges_) {
    if (edge.node != nullptr) internal::Drop(std::move(edge.node));
  }
}

void Node::Connect(const std::shared_ptr<Node>& self, std::span<const DTensor* const> operands,
                   std::initializer_list<DTensor*> results) {
  for (const DTensor* operand : operands) edges_.push_back(internal::EdgeTo(*operand));
  const Runtime& runtime = *(*results.begin())->impl()->runtime;
  partial_precision = runtime.partial_precision;
  if (runtime.region != nullptr) {
    region = runtime.region;
    region->NoteOp();
  }
  for (DTensor* result : results) {
    DTensorImpl& impl = *result->impl();
    impl.grad_fn = self;
    impl.output = static_cast<int>(outputs_.size());
    impl.requires_grad = true;
    outputs_.push_back({impl.layout, result->dtype()});
  }
}

namespace internal {

namespace {
// While a node is being destroyed on this thread: the nodes to destroy after it.
using Doomed = absl::InlinedVector<std::shared_ptr<Node>, 8>;
thread_local Doomed* doomed_nodes = nullptr;
}  // namespace

void Drop(std::shared_ptr<Node> node) {
  if (doomed_nodes != nullptr) {
    doomed_nodes->push_back(std::move(node));
    return;
  }
  if (node.use_count() > 1) return;  // Destroys nothing.
  Doomed doomed;
  doomed_nodes = &doomed;
  node.reset();
  while (!doomed.empty()) {
    const std::shared_ptr<Node> next = std::move(doomed.back());
    doomed.pop_back();
  }
  doomed_nodes = nullptr;
}

const std::shared_ptr<Leaf>& LeafOf(const std::shared_ptr<DTensorImpl>& impl) {
  if (impl->leaf == nullptr) {
    impl->leaf = std::make_shared<Leaf>(impl, impl->layout, impl->dtype);
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

// The hook may write its argument, and keep what it returns: neither shares memory with another
// gradient.
DTensor RunHook(const std::function<DTensor(const DTensor&)>& hook, DTensor given) {
  DTensor grad = internal::SoleOwner(std::move(given));
  DTensor result = hook(grad);
  if (!result || !(result.shape() == grad.shape()) || result.dtype() != grad.dtype()) {
    ThrowInvalid("a gradient hook returned ", result.ToString(), " for ", grad.ToString());
  }
  internal::CheckTogether("gradient hook", grad, result);
  grad = DTensor();
  return internal::SoleOwner(std::move(result));
}

// Notices that a backward formula wrote a gradient that it was given.
class UnwrittenCheck {
 public:
  explicit UnwrittenCheck(std::span<const DTensor> grads) : grads_(grads) {
    for (const DTensor& grad : grads) versions_.push_back(VersionOf(grad));
  }
  // Throws Error(kFailedPrecondition) if backward of `op` wrote one of the gradients it was given:
  // other operands may have been given the same.
  void Check(const char* op) const {
    for (size_t i = 0; i < grads_.size(); ++i) {
      if (VersionOf(grads_[i]) == versions_[i]) continue;
      Throw(absl::StatusCode::kFailedPrecondition, "backward of ", op, " wrote the gradient ",
            grads_[i].ToString(), " of its result ", i,
            " in place; other values may share it, so make a new tensor");
    }
  }

 private:
  static int64_t VersionOf(const DTensor& grad) {
    return grad ? grad.local().storage()->version() : 0;
  }
  std::span<const DTensor> grads_;
  absl::InlinedVector<int64_t, 2> versions_;
};

// Throws unless `grad`, which backward of `op` set for its operand `i`, fits the operand's global
// shape and dtype, and the mesh of `of_result`.
void CheckGradient(const char* op, size_t i, const DTensor& grad, const DTensor& of_result,
                   const Layout& layout, DType dtype) {
  if (!(grad.shape() == layout.global_shape()) || grad.dtype() != dtype) {
    ThrowInvalid("backward of ", op, ": the gradient of operand ", i, " is ", grad.ToString(),
                 ", expected ", std::string(Name(dtype)), layout.global_shape().ToString());
  }
  internal::CheckTogether(op, of_result, grad);
}

// Tells the regions of a graph where backward is. They are nested or apart, and nodes are visited
// in reverse order of creation, so those that are entered form a stack.
class RegionWalk {
 public:
  explicit RegionWalk(const std::vector<std::shared_ptr<Node>>& order) {
    absl::flat_hash_set<BackwardRegion*> seen;
    for (const std::shared_ptr<Node>& node : order) {
      const size_t first = upcoming_.size();
      for (std::shared_ptr<BackwardRegion> region = node->region;
           region != nullptr && seen.insert(region.get()).second; region = region->outer()) {
        upcoming_.push_back(region);
      }
      std::reverse(upcoming_.begin() + first, upcoming_.end());  // Outer regions first.
    }
    for (const std::shared_ptr<BackwardRegion>& region : upcoming_) region->Expect();
  }

  void ComeTo(const Node& node) {
    LeaveAfter(node.sequence());
    if (node.region == nullptr || (!entered_.empty() && entered_.back() == node.region.get()))
      return;
    // `upcoming_` has the regions of this node next, up to the node's own.
    while (position_ < upcoming_.size() && !IsEntered(node.region.get())) {
      BackwardRegion* const region = upcoming_[position_++].get();
      entered_.push_back(region);
      region->Enter(position_ < upcoming_.size() ? upcoming_[position_].get() : nullptr);
    }
  }
  void End() { LeaveAfter(0); }

 private:
  // Leaves the regions that began after `sequence`.
  void LeaveAfter(uint64_t sequence) {
    while (!entered_.empty() && entered_.back()->begin() > sequence) {
      BackwardRegion* const region = entered_.back();
      entered_.pop_back();
      region->Leave();
    }
  }
  bool IsEntered(const BackwardRegion* region) const {
    return std::find(entered_.begin(), entered_.end(), region) != entered_.end();
  }

  std::vector<std::shared_ptr<BackwardRegion>> upcoming_;  // In the order of entering.
  size_t position_ = 0;                                    // The first that is not entered yet.
  std::vector<BackwardRegion*> entered_;
};

// One run of Backward.
class Engine : public BackwardRun {
 public:
  Engine(Runtime& runtime, const DeviceMesh& mesh) : runtime_(runtime), mesh_(mesh) {}

  void Run(const DTensor& root, const DTensor& grad) {
    if (root.IsLeaf()) {
      Pass(internal::EdgeTo(root), grad, /*delivered=*/false);
    } else {
      Differentiate(root, grad);
    }
    // Sinks first: participants may have to send on what the hooks of these leaves return.
    for (LeafState& state : leaves_) {
      if (state.leaf->sink != nullptr) Complete(*state.leaf, state);
    }
    for (size_t i = 0; i < runtime_.participants.size(); ++i) {
      const std::shared_ptr<BackwardParticipant> participant = runtime_.participants[i];
      participant->Finish(*this);
    }
    for (LeafState& state : leaves_) {
      if (state.leaf->sink == nullptr) Complete(*state.leaf, state);
    }
    // Only after everything has succeeded: a Backward that throws leaves no gradient behind.
    for (LeafState& state : leaves_) Allocate(state);
    for (LeafState& state : leaves_) Commit(state);
  }

  /// Once the Backward has succeeded.
  void RunPostAccumulateHooks() {
    for (const LeafState& state : leaves_) {
      const auto tensor = state.leaf->tensor.lock();
      if (tensor == nullptr || !state.is_committed) continue;
      const auto& hooks = state.leaf->post_accumulate_hooks;
      for (size_t i = 0, registered = hooks.size(); i < registered; ++i) {
        if (hooks[i].is_removed()) continue;
        const auto hook = hooks[i].function();  // It may register another.
        hook(DTensor(tensor));
      }
    }
  }

  void Deliver(const DTensor& leaf, DTensor grad) override {
    const std::shared_ptr<Leaf>& record = internal::LeafOf(leaf.impl());
    CheckGradient("a leaf", 0, grad, leaf, record->layout, record->dtype);
    Deliver(*record, StateOf(record), std::move(grad));
  }

 private:
  struct LeafState {
    std::shared_ptr<Leaf> leaf;
    DTensor grad;
    bool is_committed = false;
  };

  // In the order in which leaves are met, which all ranks share.
  LeafState& StateOf(const std::shared_ptr<Leaf>& leaf) {
    const auto [entry, is_new] = leaf_index_.try_emplace(leaf.get(), leaves_.size());
    if (is_new) leaves_.push_back({leaf, {}});
    return leaves_[entry->second];
  }

  // Gradients that have arrived, one entry a result.
  using Arrived = absl::InlinedVector<DTensor, 2>;
  struct Graph {
    absl::flat_hash_map<Node*, Arrived> arrived;
    std::vector<std::shared_ptr<Node>> order;  // As they are visited.
  };

  void Differentiate(const DTensor& root, const DTensor& grad) {
    Graph graph = Collect(root.impl()->grad_fn);
    for (const std::shared_ptr<Node>& node : graph.order) {
      if (node->used) {
        Throw(absl::StatusCode::kFailedPrecondition, "backward through ", node->name(),
              ": the graph was used by an earlier Backward and its saved values are gone; run "
              "forward again");
      }
    }
    graph.arrived[root.impl()->grad_fn.get()][root.impl()->output] = grad;
    RegionWalk regions(graph.order);
    for (std::shared_ptr<Node>& node : graph.order) {
      regions.ComeTo(*node);
      Visit(*node, graph);
      node.reset();
    }
    regions.End();
  }

  static Graph Collect(const std::shared_ptr<Node>& root) {
    Graph graph;
    std::vector<std::shared_ptr<Node>> stack = {root};
    graph.arrived[root.get()].resize(root->num_outputs());
    while (!stack.empty()) {
      const std::shared_ptr<Node> node = std::move(stack.back());
      stack.pop_back();
      graph.order.push_back(node);
      for (const Edge& edge : node->edges()) {
        if (edge.node == nullptr) continue;
        const auto [entry, is_new] = graph.arrived.try_emplace(edge.node.get());
        if (!is_new) continue;
        entry->second.resize(edge.node->num_outputs());
        stack.push_back(edge.node);
      }
    }
    std::sort(graph.order.begin(), graph.order.end(),
              [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
    return graph;
  }

  void Visit(Node& node, Graph& graph) {
    Arrived grads = std::move(graph.arrived[&node]);
    runtime_.partial_precision = node.partial_precision;
    for (size_t i = 0, registered = node.hooks.size(); i < registered; ++i) {
      DTensor& grad = grads[node.hooks[i].output];
      if (!grad || node.hooks[i].hook.is_removed()) continue;
      const auto hook = node.hooks[i].hook.function();  // It may register another.
      grad = RunHook(hook, std::move(grad));
    }
    Gradients out(node, runtime_);
    const auto of_result =
        std::find_if(grads.begin(), grads.end(), [](const DTensor& g) { return bool(g); });
    if (of_result != grads.end()) {
      const UnwrittenCheck unwritten(grads);
      node.Backward(grads, out);
      unwritten.Check(node.name());
      CheckGradients(node, out, *of_result);
    }
    node.used = true;
    node.Release();
    grads.clear();
    // Where a value was used twice, edges are met in order: sums are alike on all ranks.
    for (size_t i = 0; i < node.edges().size(); ++i) {
      const Edge& edge = node.edges()[i];
      DTensor grad = out.Take(static_cast<int>(i));
      if (edge.node != nullptr && grad) {
        AddTo(graph.arrived[edge.node.get()][edge.output], std::move(grad));
      } else {
        Pass(edge, std::move(grad), out.delivered(static_cast<int>(i)));
      }
    }
    node.edges().clear();
  }

  static void CheckGradients(Node& node, const Gradients& out, const DTensor& of_result) {
    for (size_t i = 0; i < node.edges().size(); ++i) {
      const Edge& edge = node.edges()[i];
      const DTensor& grad = out.value(static_cast<int>(i));
      if (!grad || !edge) continue;
      if (edge.node != nullptr) {
        const Node::Output& output = edge.node->outputs()[edge.output];
        CheckGradient(node.name(), i, grad, of_result, output.layout, output.dtype);
      } else {
        CheckGradient(node.name(), i, grad, of_result, edge.leaf->layout, edge.leaf->dtype);
      }
    }
  }

  // To a leaf, if the edge leads to one.
  void Pass(const Edge& edge, DTensor grad, bool delivered) {
    if (edge.leaf == nullptr) return;
    LeafState& state = StateOf(edge.leaf);
    if (grad && !delivered) Deliver(*edge.leaf, state, std::move(grad));
  }

  // A sum is held small only if both terms are: were it the scope of the node that comes last that
  // decides, what one scope keeps in f32 would be rounded because of another.
  void AddTo(DTensor& sum, DTensor grad) {
    if (!sum) {
      sum = std::move(grad);
      return;
    }
    const bool is_small = sum.local().dtype() == sum.dtype() && grad.local().dtype() == sum.dtype();
    runtime_.partial_precision =
        is_small ? PartialPrecision::kTensor : PartialPrecision::kAccumulator;
    sum = Add(sum, grad);
  }

  void Deliver(Leaf& leaf, LeafState& state, DTensor grad) {
    if (leaf.sink != nullptr && !leaf.HasHooks()) {
      IntoSink(*leaf.sink, grad);
    } else {
      AddTo(state.grad, std::move(grad));
    }
  }

  void IntoSink(GradSink& sink, const DTensor& grad) {
    const DTensor moved = sink.Accepts(grad.layout())
                              ? grad
                              : internal::MoveTo(grad, sink.PreferredLayout(), kAccumulate.name);
    GradSink::Target target = sink.Open(moved.layout());
    if (target.accumulate) {
      ops::Accumulate(mesh_.context(), moved.local(), target.buffer);
    } else {
      ops::Copy(mesh_.context(), moved.local(), target.buffer);
    }
    sink.CountStaging(target.buffer.Bytes());
  }

  // Every use has delivered.
  void Complete(Leaf& leaf, LeafState& state) {
    if (!state.grad) return;
    // In the leaf's layout, whatever the formulas or hooks found cheapest.
    const auto move = [&] {
      const Layout& delivered = leaf.layout.PartialAsReplicate();
      if (leaf.sink != nullptr || state.grad.layout() == delivered) return;
      state.grad = internal::MoveTo(state.grad, delivered, kAccumulate.name);
    };
    move();
    runtime_.partial_precision = PartialPrecision::kAccumulator;
    for (size_t i = 0, registered = leaf.hooks.size(); i < registered; ++i) {
      if (leaf.hooks[i].is_removed()) continue;
      const auto hook = leaf.hooks[i].function();  // It may register another.
      state.grad = RunHook(hook, std::move(state.grad));
      move();
    }
    if (leaf.sink != nullptr) {
      IntoSink(*leaf.sink, state.grad);
      state.grad = DTensor();
    }
  }

  // What Commit needs. Sums go into the gradient that exists; a first gradient becomes a tensor of
  // its own, as it may share memory with another value's and the user may scale it in place.
  static void Allocate(LeafState& state) {
    const auto tensor = state.leaf->tensor.lock();
    if (tensor == nullptr || !state.grad || tensor->grad) return;
    if (!IsGradientOfItsOwn(state.grad)) state.grad = internal::CopyOfGradient(state.grad);
  }

  // Whether nothing else shares the memory of `grad`, and it is accounted as a gradient.
  static bool IsGradientOfItsOwn(const DTensor& grad) {
    const std::shared_ptr<Storage>& storage = grad.local().storage();
    return grad.impl().use_count() == 1 && storage.use_count() == 1 &&
           storage->category() == MemoryCategory::kGradients && grad.local().IsContiguous();
  }

  void Commit(LeafState& state) {
    const auto tensor = state.leaf->tensor.lock();
    if (tensor == nullptr || !state.grad) return;
    state.is_committed = true;
    if (tensor->grad) {
      Tensor sum = tensor->grad.local();
      ops::BinaryInto(mesh_.context(), BinaryOp::kAdd, sum, state.grad.local());
    } else {
      tensor->grad = std::move(state.grad);
    }
  }

  Runtime& runtime_;
  DeviceMesh mesh_;
  std::vector<LeafState> leaves_;
  absl::flat_hash_map<Leaf*, size_t> leaf_index_;
};

// Marks the runtime as running a backward, and tells the callbacks how it ended.
class BackwardScope {
 public:
  explicit BackwardScope(Runtime& runtime)
      : runtime_(runtime),
        grad_enabled_(runtime.grad_enabled),
        partial_precision_(runtime.partial_precision) {
    if (runtime.in_backward) {
      Throw(absl::StatusCode::kFailedPrecondition, "Backward was called within a Backward");
    }
    runtime.in_backward = true;
    runtime.grad_enabled = false;
  }
  void Succeed() {
    while (!runtime_.participants.empty()) TakeParticipant()->Succeeded();
    Finish(/*succeeded=*/true);
  }
  ~BackwardScope() {
    // Nothing is left to call after Succeed().
    while (!runtime_.participants.empty()) TakeParticipant()->Failed();
    Finish(/*succeeded=*/false);
    runtime_.in_backward = false;
    runtime_.grad_enabled = grad_enabled_;
    runtime_.partial_precision = partial_precision_;
  }

 private:
  std::shared_ptr<BackwardParticipant> TakeParticipant() {
    const std::shared_ptr<BackwardParticipant> first = runtime_.participants.front();
    runtime_.participants.erase(runtime_.participants.begin());
    return first;
  }
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
  PartialPrecision partial_precision_;
};

}  // namespace

void Backward(const DTensor& loss) {
  internal::CheckUsable("Backward", loss);
  if (loss.NumElements() != 1) {
    ThrowInvalid("Backward: expected a tensor with one element, got ", loss.ToString(),
                 "; pass its gradient");
  }
  const Layout layout = Layout::Replicated(loss.mesh().shape(), loss.shape());
  const Tensor one = ops::Full(loss.mesh().context(), loss.shape(), loss.dtype(), 1.0);
  Backward(loss, DTensor(loss.mesh(), layout, one));
}

void Backward(const DTensor& root, const DTensor& grad) {
  internal::CheckUsable("Backward", root);
  internal::CheckUsable("Backward", grad);
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
  Engine engine(runtime, root.mesh());
  engine.Run(root, grad);
  scope.Succeed();
  engine.RunPostAccumulateHooks();
}

NoGrad::NoGrad(const DeviceMesh& mesh)
    : runtime_(Runtime::Of(mesh)), before_(runtime_.grad_enabled) {
  runtime_.grad_enabled = false;
}

NoGrad::~NoGrad() { runtime_.grad_enabled = before_; }

void SetGradSink(const DTensor& leaf, std::shared_ptr<GradSink> sink) {
  internal::CheckUsable("SetGradSink", leaf);
  if (!leaf.IsLeaf())
    ThrowInvalid("SetGradSink: ", leaf.ToString(), " is the result of an op, not a leaf");
  internal::LeafOf(leaf.impl())->sink = std::move(sink);
}

DTensor WithBackwardCallback(const DTensor& x, std::function<void()> before_backward) {
  internal::CheckUsable("WithBackwardCallback", x);
  if (before_backward == nullptr) ThrowInvalid("WithBackwardCallback: the callback is empty");
  if (!x.RequiresGrad() || !x.impl()->runtime->grad_enabled) return x;
  Runtime& runtime = *x.impl()->runtime;
  DTensor y(x.mesh(), x.layout(), x.local());
  const DTensor* operands[] = {&x};
  internal::RecordNode(
      runtime.NextSequence(), "backward_callback", operands, {&y},
      [callback = std::move(before_backward)](std::span<const DTensor> grads, Gradients& out) {
        callback();
        out.Set(0, grads[0]);
      });
  y.impl()->dtype = x.impl()->dtype;
  y.impl()->may_write = x.impl()->may_write;
  y.impl()->order = x.impl()->order;
  return y;
}

void AtEndOfBackward(const DeviceMesh& mesh, std::function<void(bool succeeded)> callback) {
  if (callback == nullptr) ThrowInvalid("AtEndOfBackward: the callback is empty");
  Runtime& runtime = Runtime::Of(mesh);
  if (!runtime.in_backward) {
    Throw(absl::StatusCode::kFailedPrecondition, "AtEndOfBackward: no Backward is running");
  }
  runtime.at_end_of_backward.push_back(std::move(callback));
}

// ---- regions and participants -------------------------------------------------------------------

BackwardRegionScope::BackwardRegionScope(const DeviceMesh& mesh,
                                         std::shared_ptr<BackwardRegion> region)
    : runtime_(Runtime::Of(mesh)), region_(std::move(region)) {
  region_->outer_ = runtime_.region;
  region_->begin_ = runtime_.NextSequence();
  runtime_.region = region_;
}

BackwardRegionScope::~BackwardRegionScope() {
  runtime_.region = region_->outer_;
  if (region_->has_ops_ && runtime_.region != nullptr) runtime_.region->NoteOp();
}

void JoinBackward(const DeviceMesh& mesh, std::shared_ptr<BackwardParticipant> participant) {
  Runtime& runtime = Runtime::Of(mesh);
  if (!runtime.in_backward) {
    Throw(absl::StatusCode::kFailedPrecondition, "JoinBackward: no Backward is running");
  }
  auto& participants = runtime.participants;
  if (std::find(participants.begin(), participants.end(), participant) != participants.end())
    return;
  participants.push_back(std::move(participant));
}

bool IsInBackward(const DeviceMesh& mesh) { return Runtime::Of(mesh).in_backward; }

}  // namespace shardmesh
