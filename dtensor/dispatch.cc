// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/dispatch.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"

namespace shardmesh {
namespace internal {

void CheckTogether(const char* op, const DTensor& a, const DTensor& b) {
  if (a.impl()->runtime != b.impl()->runtime) {
    ThrowInvalid(op, ": operands ", a.ToString(), " and ", b.ToString(),
                 " belong to different ranks; exchange values by collectives");
  }
  if (!(a.mesh() == b.mesh())) {
    ThrowInvalid(op, ": operands ", a.ToString(), " and ", b.ToString(),
                 " are on different meshes");
  }
}

}  // namespace internal

namespace {

Runtime& CheckedRuntime(const Op& op, std::span<const DTensor* const> operands) {
  if (operands.empty()) ThrowInvalid(op.name, ": needs at least one operand");
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!*operands[i]) ThrowInvalid(op.name, ": operand ", i, " is no tensor");
    internal::CheckTogether(op.name, *operands[0], *operands[i]);
  }
  return *operands[0]->impl()->runtime;
}

}  // namespace

OpCall::OpCall(const Op& op, std::span<const DTensor* const> operands)
    : op_(op), operands_(operands.begin(), operands.end()), runtime_(CheckedRuntime(op, operands)) {
  key_.Add(&op);
  for (const DTensor* operand : operands_) {
    key_.Add(operand->layout().id());
    key_.Add(operand->dtype());
  }
  for (const int coordinate : mesh().coord()) key_.Add(coordinate);
}

const Decision& OpCall::DecideAnew(const OpRule& op_rule) {
  absl::InlinedVector<Layout, 4> layouts;
  for (const DTensor* operand : operands_) layouts.push_back(operand->layout());
  const MovePrice price = [&](const Layout& from, const Layout& to, int operand) {
    return runtime_.GetPlan(from, to, SizeOf(operands_[operand]->dtype())).seconds;
  };
  Decision decision = {
      Propagate(op_.name, op_rule.rule, std::span<const Layout>(layouts.data(), layouts.size()),
                op_rule.output_shapes, price),
      {}};
  for (const Layout& output : decision.propagation.outputs) {
    decision.output_shapes.push_back(output.LocalShape(mesh().coord()));
  }
  return runtime_.AddDecision(key_, std::move(decision));
}

void OpCall::MoveOperands() {
  moved_.resize(operands_.size());
  for (size_t i = 0; i < operands_.size(); ++i) {
    internal::DTensorImpl& impl = *operands_[i]->impl();
    const Layout& target = decision_->propagation.inputs[i];
    if (target == impl.layout) continue;
    const int64_t version = impl.local.storage()->version();
    std::erase_if(impl.moved, [&](const auto& moved) { return moved.version != version; });
    for (const auto& moved : impl.moved) {
      if (moved.layout == target) moved_[i] = moved.local;
    }
    if (moved_[i]) continue;
    moved_[i] = internal::Move(runtime_, impl.mesh, impl.local, impl.layout, target, op_.name);
    impl.moved.push_back({target, version, moved_[i]});
  }
}

DTensor OpCall::input(int operand) const {
  return DTensor(std::make_shared<internal::DTensorImpl>(
      mesh(), decision_->propagation.inputs[operand], local(operand), &runtime_));
}

DTensor OpCall::Result(Tensor local, int result, bool may_write) const {
  const Layout& layout = output_layout(result);
  if (!(local.shape() == decision_->output_shapes[result])) {
    Throw(absl::StatusCode::kInternal, op_.name, ": result ", result, " is ", local.ToString(),
          ", but this rank's box of ", layout.ToString(), " has the shape ",
          decision_->output_shapes[result].ToString());
  }
  auto impl = std::make_shared<internal::DTensorImpl>(mesh(), layout, std::move(local), &runtime_);
  impl->may_write = may_write;
  return DTensor(std::move(impl));
}

bool OpCall::Records() const {
  if (!runtime_.grad_enabled) return false;
  for (const DTensor* operand : operands_) {
    if (operand->impl()->requires_grad) return true;
  }
  return false;
}

void OpCall::Attach(std::shared_ptr<Node> node, std::initializer_list<DTensor*> results) {
  for (const DTensor* operand : operands_) node->edges().push_back(internal::EdgeTo(*operand));
  int output = 0;
  for (DTensor* result : results) {
    result->impl()->grad_fn = node;
    result->impl()->output = output++;
    result->impl()->requires_grad = true;
  }
}

}  // namespace shardmesh
