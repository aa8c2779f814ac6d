// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/dispatch.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/checkpoint_frame.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/tensor/ops.h"

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
  internal::CheckUsable(op.name, *operands[0]);
  for (size_t i = 1; i < operands.size(); ++i) {
    if (!*operands[i]) ThrowInvalid(op.name, ": operand ", i, " is no tensor");
    internal::CheckTogether(op.name, *operands[0], *operands[i]);
  }
  return *operands[0]->impl()->runtime;
}

// The storage knows why it is empty; a kernel that came to it would not know the op.
[[noreturn]] void ThrowReleased(const Op& op, const DTensor& operand) {
  const absl::Status status = Catch([&] { operand.local().storage()->data(); });
  Throw(status.code(), op.name, " of ", operand.ToString(), ": ", status.message());
}

}  // namespace

OpCall::OpCall(const Op& op, std::span<const DTensor* const> operands)
    : op_(op), operands_(operands.begin(), operands.end()), runtime_(CheckedRuntime(op, operands)) {
  key_.Add(&op);
  for (const DTensor* operand : operands_) {
    const internal::DTensorImpl& impl = *operand->impl();
    if (impl.local.storage()->IsReleased()) ThrowReleased(op, *operand);
    key_.Add(impl.layout.id());
    key_.Add(static_cast<unsigned>(impl.dtype) | static_cast<unsigned>(impl.local.dtype()) << 8);
    records_ |= impl.requires_grad;
  }
  for (const int coordinate : mesh().coord()) key_.Add(coordinate);
  records_ &= runtime_.grad_enabled;
  if (runtime_.checkpoint != nullptr)
    records_ = runtime_.checkpoint->NoteOp(op_, operands_, records_);
  runtime_.BeginCall();
}

void OpCall::ThrowMisuse(const char* what, int index) const {
  if (decision_ == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, op_.name,
          ": its call was asked for a layout, an operand or a result before Decide");
  }
  ThrowInvalid(op_.name, ": there is no ", what, " ", index);
}

namespace {

// What is wrong with some operand names at least one of them.
OpRule WithOperandsInErrors(absl::FunctionRef<OpRule()> make_rule,
                            std::span<const DTensor* const> operands) {
  try {
    return make_rule();
  } catch (const Error& error) {
    std::vector<std::string> names;
    for (const DTensor* operand : operands) names.push_back(operand->ToString());
    const bool names_one = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return error.message().find(name) != std::string::npos;
    });
    if (names_one) throw;
    Throw(error.code(), error.message(), "; called with ", absl::StrJoin(names, ", "));
  }
}

}  // namespace

const Decision& OpCall::DecideAnew(absl::FunctionRef<OpRule()> make_rule) {
  const OpRule op_rule = WithOperandsInErrors(make_rule, {operands_.data(), operands_.size()});
  if (runtime_.rule_observer) runtime_.rule_observer(op_.name, op_rule.rule);
  absl::InlinedVector<Layout, 4> layouts;
  for (const DTensor* operand : operands_) layouts.push_back(operand->layout());
  const MovePrice price = [&](const Layout& from, const Layout& to, int operand) {
    const int64_t element_bytes = SizeOf(operands_[operand]->local().dtype());
    return runtime_.plans.Get(from, to, element_bytes)->plan().seconds;
  };
  const MoveBound bound = [&](const Layout& from, std::span<const Placement> to, int operand) {
    return MinSeconds(from, to, {.element_bytes = SizeOf(operands_[operand]->local().dtype())});
  };
  Decision decision = {
      Propagate(op_.name, op_rule.rule, std::span<const Layout>(layouts.data(), layouts.size()),
                op_rule.output_shapes, price, bound),
      std::move(layouts),
      /*has_small_summands=*/false,
      {}};
  for (size_t i = 0; i < operands_.size(); ++i) {
    decision.has_small_summands |=
        IsSmall(operands_[i]->dtype()) && HoldsSummands(decision.propagation.inputs[i]);
  }
  for (const Layout& output : decision.propagation.outputs) {
    decision.output_shapes.push_back(output.LocalShape(mesh().coord()));
  }
  return runtime_.AddDecision(key_, std::move(decision));
}

// Says which operands would have to communicate, and under kExplicit what the op allows instead.
void OpCall::CheckMoves(const OpRule& op_rule) const {
  const ReshardPolicy policy = runtime_.reshard_policy;
  if (runtime_.in_backward || policy == ReshardPolicy::kForbid) return;  // Move looks itself.
  const auto plan_of = [&](const Layout& to, int operand) -> const Plan& {
    const int64_t element_bytes = SizeOf(operands_[operand]->local().dtype());
    return runtime_.plans.Get(operands_[operand]->layout(), to, element_bytes)->plan();
  };
  const auto bytes_of = [&](const Propagation& choice) {
    int64_t bytes = 0;
    for (size_t i = 0; i < operands_.size(); ++i)
      bytes += plan_of(choice.inputs[i], static_cast<int>(i)).bytes_sent;
    return bytes;
  };
  const auto placements_of = [](const std::vector<Layout>& layouts) {
    return absl::StrJoin(layouts, ", ", [](std::string* out, const Layout& layout) {
      absl::StrAppend(out, layout.PlacementsToString());
    });
  };
  const Propagation& chosen = decision_->propagation;
  bool communicates = false;
  for (size_t i = 0; i < operands_.size(); ++i) {
    for (const Step& step : plan_of(chosen.inputs[i], static_cast<int>(i)).steps)
      communicates |= step.kind != StepKind::kSlice && step.kind != StepKind::kMakePartial;
  }
  if (!communicates) return;
  std::string text = absl::StrCat(op_.name, ": operands have to move first:");
  for (size_t i = 0; i < operands_.size(); ++i) {
    absl::StrAppend(&text, "\n  operand ", i, ": ", operands_[i]->ToString());
    if (chosen.inputs[i] == operands_[i]->layout()) continue;
    const Plan& plan = plan_of(chosen.inputs[i], static_cast<int>(i));
    absl::StrAppend(&text, " -> ", chosen.inputs[i].PlacementsToString(), ", ", plan.bytes_sent,
                    " bytes sent by a rank");
  }
  if (policy == ReshardPolicy::kWarn) {
    const bool is_first = std::all_of(mesh().coord().begin(), mesh().coord().end(),
                                      [](int coordinate) { return coordinate == 0; });
    if (is_first && !std::exchange(decision_->was_warned_of, true))
      std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  absl::InlinedVector<Layout, 4> layouts;
  for (const DTensor* operand : operands_) layouts.push_back(operand->layout());
  const MovePrice price = [&](const Layout&, const Layout& to, int operand) {
    return plan_of(to, operand).seconds;
  };
  absl::StrAppend(&text,
                  "\nThe reshard policy is explicit: Redistribute them to what one of these ",
                  "asks for (operands -> results: bytes sent by a rank)");
  for (const Propagation& choice :
       AllowedChoices(op_.name, op_rule.rule, {layouts.data(), layouts.size()},
                      op_rule.output_shapes, price)) {
    absl::StrAppend(&text, "\n  ", placements_of(choice.inputs), " -> ",
                    placements_of(choice.outputs), ": ", bytes_of(choice));
  }
  Throw(absl::StatusCode::kFailedPrecondition, text);
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
    moved_[i] =
        internal::Move(runtime_, impl.mesh, impl.local, impl.dtype, impl.layout, target, op_.name);
    impl.moved.push_back({target, version, moved_[i]});
  }
  locals_ = moved_;
}

void OpCall::WidenOperands() {
  locals_.resize(operands_.size());
  for (size_t i = 0; i < operands_.size(); ++i) {
    const DType dtype = operands_[i]->dtype();
    if (!IsSmall(dtype) || !HoldsSummands(decision_->propagation.inputs[i])) continue;
    small_dtype_ = dtype;
    wide_ |= runtime_.partial_precision == PartialPrecision::kAccumulator ||
             local(static_cast<int>(i)).dtype() != dtype;
  }
  if (!wide_) return;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Tensor& narrow = local(static_cast<int>(i));
    if (IsSmall(narrow.dtype())) locals_[i] = ops::Cast(context(), narrow, DType::kF32);
  }
}

DTensor OpCall::input(int operand) const {
  const bool moved = IsMoved(operand);
  const internal::DTensorImpl& from = *operands_[operand]->impl();
  auto impl =
      std::make_shared<internal::DTensorImpl>(mesh(), decision_->propagation.inputs[operand],
                                              moved ? moved_[operand] : from.local, &runtime_);
  impl->dtype = from.dtype;
  impl->order = moved ? internal::MemoryOrder::Unknown() : from.order;
  return DTensor(std::move(impl));
}

std::shared_ptr<internal::DTensorImpl> OpCall::Wrap(DType dtype, Tensor&& local, int result) const {
  const Layout& layout = output_layout(result);
  if (!(local.shape() == decision_->output_shapes[result])) {
    Throw(absl::StatusCode::kInternal, op_.name, ": result ", result, " is ", local.ToString(),
          ", but this rank's box of ", layout.ToString(), " has the shape ",
          decision_->output_shapes[result].ToString());
  }
  if (IsSmall(dtype)) local = ops::Cast(context(), local, runtime_.StoredDType(dtype, layout));
  auto impl = std::make_shared<internal::DTensorImpl>(mesh(), layout, std::move(local), &runtime_);
  impl->dtype = dtype;
  return impl;
}

DTensor OpCall::Result(Tensor local, int result, bool may_write) const {
  const DType dtype = wide_ && local.dtype() == DType::kF32 ? small_dtype_ : local.dtype();
  DTensor y = ResultOf(dtype, std::move(local), result);
  y.impl()->may_write = may_write;
  return y;
}

DTensor OpCall::ResultOf(DType dtype, Tensor&& local, int result) const {
  if (!local.IsContiguous()) local = ops::Clone(context(), local);
  return DTensor(Wrap(dtype, std::move(local), result));
}

DTensor OpCall::View(Tensor local, internal::MemoryOrder order, bool may_write) const {
  const DType dtype = wide_ ? small_dtype_ : local.dtype();
  const bool is_view = local.dtype() == runtime_.StoredDType(dtype, output_layout());
  auto impl = Wrap(dtype, std::move(local), 0);
  if (is_view) impl->order = order;
  impl->may_write = is_view && may_write;
  return DTensor(std::move(impl));
}

}  // namespace shardmesh
