// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/unit.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/fsdp/internal/counting.h"

namespace shardmesh::fsdp::internal {

std::string CollectiveName(const std::string& op, const std::string& unit,
                           const std::vector<nn::Parameter>& parameters) {
  std::string name = absl::StrCat(op, " of ", unit);
  if (parameters.empty()) return name;
  uint64_t fingerprint = 0;
  for (const nn::Parameter& parameter : parameters)
    fingerprint = nn::RandomStreamOf(parameter.name(), fingerprint);
  absl::StrAppend(&name, " (", parameters[0].name());
  if (parameters.size() > 1) {
    absl::StrAppend(&name, " and ", parameters.size() - 1, " more, ",
                    absl::Hex(fingerprint & 0xffffffff, absl::kZeroPad8));
  }
  return name + ")";
}

Unit::Unit(Sharding sharding, const FullyShardOptions& options,
           std::shared_ptr<Coordinator> coordinator)
    : sharding_(std::move(sharding)), options_(options), coordinator_(std::move(coordinator)) {}

void Unit::AddParameter(const nn::Parameter& parameter) {
  const auto join = [weak = weak_from_this()] {
    if (const std::shared_ptr<Unit> unit = weak.lock()) return unit->coordinator().Join(*unit);
    Throw(
        absl::StatusCode::kFailedPrecondition,
        "backward has come to a gathered parameter that was kept beyond the forward of its module, "
        "and the module is gone");
  };
  parameters_.push_back(std::make_unique<UnitParameter>(parameter, sharding_, join));
}

namespace {

// Whether a module is of a unit other than `unit`, of which a list may have nested modules.
bool IsOfAnother(nn::Module& module, const Unit* unit) {
  const std::shared_ptr<Unit>& own = UnitOf(module);
  return own != nullptr && own.get() != unit;
}

bool HasAnotherBelow(nn::Module& module, const Unit* unit) {
  const auto modules = module.NamedModules();
  return std::any_of(modules.begin(), modules.end(), [unit](const nn::Module::NamedModule& entry) {
    return IsOfAnother(*entry.module, unit);
  });
}

bool HasAnotherAbove(nn::Module& module, const Unit* unit) {
  for (nn::Module* above = module.parent(); above != nullptr; above = above->parent()) {
    if (IsOfAnother(*above, unit)) return true;
  }
  return false;
}

}  // namespace

void Unit::Locate(nn::Module& module) {
  model_ = Outermost(module).locals().Share<Model>();
  if (std::find(located_.begin(), located_.end(), &module) != located_.end()) return;
  located_.push_back(&module);
  is_within_another_ = is_within_another_ || HasAnotherAbove(module, this);
  is_root_ = !is_within_another_ &&
             (is_root_ || module.parent() == nullptr || HasAnotherBelow(module, this));
  if (!gather_name_.empty()) return;
  const std::string full_name = module.FullName();
  name_ = full_name.empty() ? "the outermost module" : absl::StrCat("module ", full_name);
  std::vector<nn::Parameter> parameters;
  for (const auto& parameter : parameters_) parameters.push_back(parameter->parameter());
  gather_name_ = CollectiveName("fsdp_gather", name_, parameters);
}

// ---- gathering ----------------------------------------------------------------------------------

bool Unit::IsStale() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return parameter->IsStale(); });
}

void Unit::Prefetch() {
  if (state_ != State::kSharded) return;
  if (has_slices_ && IsStale()) DropSlices();
  try {
    std::vector<AllGatherItem> batch;
    AxisList axes;
    for (const auto& parameter : parameters_) {
      std::optional<AllGatherItem> item = parameter->BeginGather(name_, has_slices_);
      if (!item) continue;
      for (const Tensor& target : item->targets) stats.gather_bytes_received += target.Bytes();
      stats.gather_bytes_received -= item->source.Bytes();
      batch.push_back(*std::move(item));
      axes = parameter->gather_axes(has_slices_);
    }
    // All parameters but scalars are split along the same axes.
    if (!batch.empty()) {
      ++stats.gathers;
      const CountsSentBytes counts(mesh(), stats.gather_bytes_sent);
      gather_ =
          shardmesh::internal::GroupOf(mesh(), axes).AllGather(std::move(batch), gather_name_);
      for (const auto& parameter : parameters_) parameter->GatherWasPosted();
    }
    stats.peak_gathered_bytes = std::max(stats.peak_gathered_bytes, gathered_bytes());
  } catch (...) {
    for (const auto& parameter : parameters_) parameter->Release(name_);
    throw;
  }
  state_ = State::kGathering;
}

void Unit::WaitForGather() {
  if (state_ != State::kGathering) return;
  state_ = State::kGathered;
  {
    const WaitTimer timer(stats.gather_wait_seconds);
    std::exchange(gather_, Work()).Wait();
  }
  for (const auto& parameter : parameters_) parameter->EndGather();
}

void Unit::Unshard() {
  // The optimizer may have stepped since the last gather, after a forward without a backward.
  if (state_ != State::kSharded && IsStale()) Reshard();
  Prefetch();
  WaitForGather();
}

void Unit::Reshard() {
  WaitForGather();
  if (!KeepsSlices()) {
    DropSlices();
  } else if (!has_slices_ && state_ == State::kGathered && !IsStale()) {
    KeepSlices();
  }
  for (const auto& parameter : parameters_) parameter->Release(name_);
  state_ = State::kSharded;
}

void Unit::ReshardIfIdle() {
  if (open_calls_ > 0 || entered_ > 0 || (state_ == State::kSharded && !has_slices_)) return;
  try {
    Reshard();
  } catch (...) {
    // The world has failed; every wait says so.
  }
}

// Until the last backward that will gather from them.
bool Unit::KeepsSlices() const {
  return !sharding_.slice_axes.empty() && !reshard_after_forward &&
         (awaited_calls_ > 0 || expected_ > 0);
}

// The slices of what is gathered; each parameter is released as soon as its slice is made.
void Unit::KeepSlices() {
  has_slices_ = true;
  int64_t bytes = gathered_bytes();
  for (const auto& parameter : parameters_) {
    bytes += parameter->KeepSlice();
    stats.peak_gathered_bytes = std::max(stats.peak_gathered_bytes, bytes);
    bytes -= parameter->gathered_bytes();
    parameter->Release(name_);
    bytes += parameter->gathered_bytes();
  }
}

void Unit::DropSlices() {
  if (!std::exchange(has_slices_, false)) return;
  for (const auto& parameter : parameters_) parameter->DropSlice();
}

int64_t Unit::gathered_bytes() const {
  int64_t bytes = 0;
  for (const auto& parameter : parameters_) bytes += parameter->gathered_bytes();
  return bytes;
}

// ---- how long parameters stay gathered ----------------------------------------------------------

std::optional<bool> Unit::ReshardsAfterForward() const {
  return reshard_after_forward ? reshard_after_forward : options_.reshard_after_forward;
}

bool Unit::KeepsAfterForward(const UnitCall& call) const {
  // Recomputed within a backward, which comes to these ops next.
  if (IsInBackward(mesh())) return call.has_ops() || expected_ > 0;
  if (const std::optional<bool> reshards = ReshardsAfterForward()) return !*reshards;
  // Slices along axes of one rank would be the whole.
  if (options_.reshard_after_forward_axes) return sharding_.slice_axes.empty() && call.has_ops();
  switch (options_.strategy) {
    case Strategy::kOptimizerState:
      return true;
    case Strategy::kShardGradOp:
    case Strategy::kReplicate:
      return call.has_ops();
    case Strategy::kFullShard:
      return is_root_ && call.has_ops();
  }
  return false;
}

// Between two calls of the unit in one backward.
bool Unit::KeepsBetweenRegions() const {
  if (const std::optional<bool> reshards = ReshardsAfterForward()) return !*reshards;
  if (options_.reshard_after_forward_axes) return sharding_.slice_axes.empty();
  return options_.strategy != Strategy::kFullShard || is_root_;
}

bool Unit::KeepsAfterBackward() const {
  if (reshard_after_backward) return !*reshard_after_backward;
  return options_.strategy == Strategy::kOptimizerState ||
         (options_.strategy == Strategy::kShardGradOp && !sync);
}

// ---- forward ------------------------------------------------------------------------------------

void Unit::BeginCall(nn::Module& module) {
  const bool in_backward = IsInBackward(mesh());
  ++open_calls_;
  Locate(module);
  if (!in_backward) coordinator_->BeginCall(shared_from_this(), module);
  Unshard();
  for (const auto& parameter : parameters_) parameter->Activate();
  if (!in_backward) coordinator_->PrefetchNext(*this);
}

void Unit::EndCall(UnitCall& call, bool failed) {
  const bool in_backward = IsInBackward(mesh());
  call.is_awaited = call.has_ops();
  if (call.is_awaited) ++awaited_calls_;
  if (--open_calls_ == 0) {
    for (const auto& parameter : parameters_) parameter->Deactivate();
    const bool keeps =
        !failed && (KeepsAfterForward(call) ||
                    (!in_backward && coordinator_->KeepsForNextCall(shared_from_this())));
    if (!keeps) ReshardIfIdle();
  }
  if (!in_backward) coordinator_->EndCall(failed);
}

void Unit::DropCall() {
  --awaited_calls_;
  const bool keeps = KeepsAfterBackward() || ReshardsAfterForward() == std::optional<bool>(false);
  // A graph may outlive its rank.
  if (awaited_calls_ == 0 && !keeps && mesh().IsUsableHere()) ReshardIfIdle();
}

ForwardCall::ForwardCall(std::shared_ptr<Unit> unit, nn::Module& module)
    : unit_(std::move(unit)),
      call_(std::make_shared<UnitCall>(unit_)),
      region_(unit_->mesh(), call_),
      num_exceptions_(std::uncaught_exceptions()) {
  try {
    unit_->BeginCall(module);
  } catch (...) {
    unit_->EndCall(*call_, /*failed=*/true);
    throw;
  }
}

ForwardCall::~ForwardCall() {
  unit_->EndCall(*call_, /*failed=*/std::uncaught_exceptions() > num_exceptions_);
}

// ---- backward -----------------------------------------------------------------------------------

void UnitCall::Enter(BackwardRegion* next) {
  const auto* next_call = dynamic_cast<UnitCall*>(next);
  unit_->Enter(next_call == nullptr ? nullptr : next_call->unit_.get());
}

void UnitCall::Leave() { unit_->Leave(*this); }

std::shared_ptr<void> UnitCall::Resume() {
  unit_->Resume();
  return std::shared_ptr<void>(nullptr, [unit = unit_](void*) { unit->Pause(); });
}

void Unit::Resume() {
  Unshard();
  for (const auto& parameter : parameters_) parameter->Activate();
  ++open_calls_;
}

void Unit::Pause() {
  if (--open_calls_ > 0) return;
  for (const auto& parameter : parameters_) parameter->Deactivate();
}

void Unit::Expect() {
  coordinator_->Join(*this);
  ++expected_;
}

void Unit::Enter(Unit* next) {
  ++entered_;
  Unshard();
  coordinator_->next_in_backward = next;
  if (backward_prefetch) {
    coordinator_->GatherAheadInBackward(*backward_prefetch);
  } else if (next != nullptr) {
    next->Prefetch();
  }
}

void Unit::Leave(UnitCall& call) {
  if (std::exchange(call.is_awaited, false)) --awaited_calls_;
  --entered_;
  --expected_;
  if (entered_ > 0 || open_calls_ > 0) return;
  if (expected_ > 0) {
    if (coordinator_->next_in_backward != this && !KeepsBetweenRegions()) Reshard();
    return;
  }
  ReleaseAfterBackward();
  if (sync && HasGradients()) coordinator_->StartReduction(*this);
}

void Unit::ReleaseAfterBackward() {
  if (!KeepsAfterBackward()) return Reshard();
  WaitForGather();
  if (!KeepsSlices()) DropSlices();
}

bool Unit::HasGradient(UnitParameter& parameter) const {
  return parameter.gradient() || (all_reduce && parameter.scattered_layout());
}

bool Unit::HasGradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [this](const auto& parameter) { return HasGradient(*parameter); });
}

Reduction Unit::TakeGradients() {
  std::vector<UnitParameter*> with_gradient;
  for (const auto& parameter : parameters_) {
    if (HasGradient(*parameter)) with_gradient.push_back(parameter.get());
  }
  return Reduction(mesh(), name_, std::move(with_gradient), all_reduce, stats);
}

void Unit::Deliver(BackwardRun& run) {
  for (const auto& parameter : parameters_) parameter->Deliver(run);
}

void Unit::ReshardAfterBackward() {
  expected_ = entered_ = 0;
  if (open_calls_ == 0) ReleaseAfterBackward();
}

void Unit::EndBackward() {
  for (const auto& parameter : parameters_) parameter->EndBackward();
}

bool Unit::AbandonBackward() {
  expected_ = entered_ = 0;
  bool is_lost = false;
  for (const auto& parameter : parameters_) is_lost |= parameter->AbandonBackward();
  ReshardIfIdle();
  return is_lost;
}

void Unit::DiscardGradients() {
  for (const auto& parameter : parameters_) parameter->DiscardGradient();
}

}  // namespace shardmesh::fsdp::internal
