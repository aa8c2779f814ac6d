// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/unit.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp::internal {

Unit::Unit(nn::Module& module, DeviceMesh mesh, FullyShardOptions options, StagingStats& staging)
    : module_(module), mesh_(std::move(mesh)), options_(std::move(options)), staging_(staging) {}

std::string Unit::Name() const {
  return parameters_.empty() ? "without parameters"
                             : absl::StrCat("of ", parameters_[0]->parameter().name());
}

void Unit::AddParameter(const nn::Parameter& parameter, int shard_axis) {
  parameters_.push_back(std::make_unique<UnitParameter>(parameter, mesh_, shard_axis,
                                                        options_.mixed_precision, staging_));
}

void Unit::SetTree(std::shared_ptr<Tree> tree, bool is_root) {
  tree_ = std::move(tree);
  is_root_ = is_root;
}

void Unit::Prepare() {
  if (std::exchange(prepared_, true)) return;
  for (auto& parameter : parameters_) {
    parameter->Prepare(Name(), [this] { OnParameterGradient(); });
  }
  BeginBackward();
}

void Unit::BeginBackward() {
  entered_backward_ = false;
  awaited_gradients_ = static_cast<int>(
      std::count_if(parameters_.begin(), parameters_.end(),
                    [](const auto& parameter) { return parameter->parameter().requires_grad(); }));
}

// ---- gathering ----------------------------------------------------------------------------------

bool Unit::IsStale() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return parameter->IsStale(); });
}

void Unit::Prefetch() {
  if (state_ != State::kSharded) return;
  Prepare();
  std::vector<AllGatherItem> batch;
  for (auto& parameter : parameters_) {
    if (std::optional<AllGatherItem> item = parameter->BeginGather()) {
      batch.push_back(*std::move(item));
    }
  }
  state_ = State::kGathering;
  if (!batch.empty()) {
    gather_ = mesh_.Group(options_.shard_axis).AllGather(std::move(batch), "fsdp_gather");
    for (auto& parameter : parameters_) parameter->GatherWasPosted();
  }
}

void Unit::WaitForGather() {
  if (state_ != State::kGathering) return;
  gather_.Wait();
  gather_ = Work();
  for (auto& parameter : parameters_) parameter->EndGather();
  state_ = State::kGathered;
}

void Unit::Unshard() {
  // The optimizer may have stepped since the last gather, after a forward without a backward.
  if (state_ != State::kSharded && IsStale()) Reshard();
  Prefetch();
  WaitForGather();
}

void Unit::Reshard() {
  WaitForGather();  // Peers may still be writing into the buffers.
  for (auto& parameter : parameters_) parameter->Release();
  state_ = State::kSharded;
}

// ---- hooks --------------------------------------------------------------------------------------

void Unit::PreForward(nn::Module::Inputs& inputs) {
  if (is_root_) tree_->BeginForward();
  if (const std::optional<DType> dtype = options_.mixed_precision.param_dtype) {
    for (DTensor& input : inputs) {
      if (IsFloating(input.dtype())) input = Cast(input, *dtype);
    }
  }
  tree_->Visit(this);
  Unshard();
  if (Unit* next = tree_->After(this)) next->Prefetch();
}

void Unit::PostForward(DTensor& output) {
  const bool backward_follows = output.RequiresGrad();
  if (ReshardsAfterForward() || !backward_follows) Reshard();
  if (backward_follows) {
    output = WithBackwardCallback(output, [self = shared_from_this()] { self->PreBackward(); });
  }
  if (is_root_) tree_->EndForward();
}

void Unit::PreBackward() {
  tree_->BeginBackward(mesh_);
  entered_backward_ = true;
  Unshard();
  // The root is used both first and last, so backward may have entered it before.
  Unit* before = tree_->Before(this);
  if (before != nullptr && !before->entered_backward_) before->Prefetch();
}

// ---- reducing -----------------------------------------------------------------------------------

bool Unit::HasFrozen() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return !parameter->parameter().requires_grad(); });
}

bool Unit::HasGradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return parameter->has_gradient(); });
}

void Unit::OnParameterGradient() {
  if (--awaited_gradients_ > 0) return;
  // A trainable parameter is not used after its last gradient; a frozen one may be.
  if (!HasFrozen()) Reshard();
  if (sync) StartReduction();
}

void Unit::StartReduction() {
  if (tree_->reducing != nullptr) tree_->reducing->FinishReduction();
  reductions_.clear();
  num_phases_ = 0;
  for (auto& parameter : parameters_) {
    if (!parameter->has_gradient()) continue;
    Reduction reduction;
    reduction.parameter = parameter.get();
    for (const Step& step : MakePlan(parameter->gradient_layout(), parameter->sharded_layout(),
                                     {.element_bytes = SizeOf(parameter->gradient().dtype())})
                                .steps) {
      if (shardmesh::internal::GroupOf(mesh_, step.axes).size() > 1) {
        reduction.steps.push_back(step);
      }
    }
    reduction.value = parameter->TakeGradient();
    num_phases_ = std::max(num_phases_, reduction.steps.size());
    reductions_.push_back(std::move(reduction));
  }
  tree_->reducing = this;
  reduction_works_ = PostPhase(0);
}

void Unit::FinishReduction() {
  tree_->reducing = nullptr;
  for (size_t phase = 0; phase < num_phases_; ++phase) {
    if (phase > 0) reduction_works_ = PostPhase(phase);
    for (Work& work : reduction_works_) work.Wait();
    for (Reduction& reduction : reductions_) {
      if (reduction.target) reduction.value = std::exchange(reduction.target, Tensor());
    }
  }
  for (Reduction& reduction : reductions_)
    reduction.parameter->SetReduced(std::move(reduction.value));
  reductions_.clear();
  reduction_works_.clear();
}

// Steps of the same kind over the same group form one batched collective.
std::vector<Work> Unit::PostPhase(size_t phase) {
  struct Batch {
    std::vector<ReduceScatterItem> scatter;
    std::vector<AllReduceItem> reduce;
  };
  std::map<std::pair<StepKind, std::vector<int>>, Batch> batches;
  ExecutionContext& context = mesh_.context();
  for (Reduction& reduction : reductions_) {
    if (phase >= reduction.steps.size()) continue;
    const Step& step = reduction.steps[phase];
    Batch& batch = batches[{step.kind, std::vector<int>(step.axes.begin(), step.axes.end())}];
    if (step.kind == StepKind::kReduceScatter) {
      reduction.target = Tensor::Empty(context, step.to.LocalShape(mesh_.coord()),
                                       reduction.value.dtype(), MemoryCategory::kGradients);
      batch.scatter.push_back(
          shardmesh::internal::ScatterItem(mesh_, step, reduction.value, reduction.target));
    } else if (step.kind == StepKind::kAllReduce) {
      batch.reduce.push_back({reduction.value, reduction.value});
    } else {
      // A gradient that is replicated along the shard axis needs only a local slice; rare.
      Tensor target = Tensor::Empty(context, step.to.LocalShape(mesh_.coord()),
                                    reduction.value.dtype(), MemoryCategory::kGradients);
      const Tensor moved =
          shardmesh::internal::Move(Runtime::Of(mesh_), mesh_, reduction.value,
                                    reduction.value.dtype(), step.from, step.to, "fsdp_reduce");
      ops::Copy(context, moved, target);
      staging_.staging_bytes += target.Bytes();
      reduction.target = target;
    }
  }
  std::vector<Work> works;
  for (auto& [key, batch] : batches) {
    const AxisList axes(key.second.begin(), key.second.end());
    Communicator& group = shardmesh::internal::GroupOf(mesh_, axes);
    if (!batch.scatter.empty()) {
      works.push_back(group.ReduceScatter(std::move(batch.scatter), ReduceOp::kSum, "fsdp_reduce"));
    }
    if (!batch.reduce.empty()) {
      works.push_back(group.AllReduce(std::move(batch.reduce), ReduceOp::kSum, "fsdp_reduce"));
    }
  }
  return works;
}

void Unit::Commit() {
  for (auto& parameter : parameters_) parameter->Commit();
}

void Unit::Discard() {
  for (Work& work : reduction_works_) work.Wait();
  reduction_works_.clear();
  reductions_.clear();
  for (auto& parameter : parameters_) parameter->DiscardGradients();
}

// ---- the tree -----------------------------------------------------------------------------------

void Tree::BeginForward() {
  if (in_forward_ || in_backward_) Recover();
  if (std::exchange(lost_accumulated_, false)) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "FullyShard: a backward that threw took with it the gradients that earlier micro-batches "
          "had accumulated without synchronisation; start the accumulation again");
  }
  in_forward_ = true;
  current_.clear();
}

void Tree::Visit(Unit* unit) {
  if (std::find(current_.begin(), current_.end(), unit) == current_.end()) current_.push_back(unit);
}

void Tree::EndForward() {
  in_forward_ = false;
  order_ = current_;
}

Unit* Tree::After(const Unit* unit) const {
  auto found = std::find(order_.begin(), order_.end(), unit);
  return found == order_.end() || found + 1 == order_.end() ? nullptr : *(found + 1);
}

Unit* Tree::Before(const Unit* unit) const {
  auto found = std::find(order_.begin(), order_.end(), unit);
  return found == order_.end() || found == order_.begin() ? nullptr : *(found - 1);
}

void Tree::BeginBackward(const DeviceMesh& mesh) {
  if (std::exchange(in_backward_, true)) return;
  for (Unit* unit : units_) unit->BeginBackward();
  AtEndOfBackward(mesh, [this](bool succeeded) { EndBackward(succeeded); });
}

void Tree::EndBackward(bool succeeded) {
  if (!succeeded) {
    Recover();
    return;
  }
  for (Unit* unit : units_) {
    unit->Reshard();
    if (unit->sync && unit->HasGradients())
      unit->StartReduction();  // Some parameters received no gradient.
  }
  if (reducing != nullptr) reducing->FinishReduction();
  holds_accumulated_ = false;
  for (Unit* unit : units_) {
    unit->Commit();
    holds_accumulated_ |= unit->HasGradients();
  }
  in_backward_ = false;
}

void Tree::Recover() {
  if (in_backward_) lost_accumulated_ |= std::exchange(holds_accumulated_, false);
  for (Unit* unit : units_) {
    unit->Reshard();
    if (in_backward_) unit->Discard();
  }
  reducing = nullptr;
  in_forward_ = false;
  in_backward_ = false;
}

}  // namespace shardmesh::fsdp::internal
