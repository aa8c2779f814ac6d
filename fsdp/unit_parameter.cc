// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/unit_parameter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp::internal {
namespace {

// `shard_axis` becomes the innermost split of dim 0. A scalar has no dim to shard and stays
// replicated.
Layout ShardedLayout(const Layout& layout, int shard_axis) {
  if (shard_axis < 0 || layout.global_shape().size() == 0) return layout;
  return layout.With(shard_axis, Shard(0));
}

Layout PlacedLayout(const nn::Parameter& parameter, const DeviceMesh& mesh) {
  if (!parameter.IsPlaced()) return Layout::Replicated(mesh.shape(), parameter.shape());
  return parameter.layout();
}

DType ParamDType(const nn::Parameter& parameter, const MixedPrecision& precision) {
  return precision.param_dtype.value_or(parameter.dtype());
}
DType ReduceDType(const nn::Parameter& parameter, const MixedPrecision& precision) {
  return precision.reduce_dtype.value_or(parameter.dtype());
}

}  // namespace

void UnitParameter::Check(const nn::Parameter& parameter, const DeviceMesh& mesh, int shard_axis,
                          const MixedPrecision& precision) {
  const DType param = ParamDType(parameter, precision), reduce = ReduceDType(parameter, precision);
  if (SizeOf(reduce) < SizeOf(param)) {
    ThrowInvalid("FullyShard: reduce_dtype ", std::string(Name(reduce)),
                 " is narrower than param_dtype ", std::string(Name(param)), " of parameter ",
                 parameter.ToString());
  }
  if (parameter.IsPlacementFixed()) {
    ThrowInvalid("FullyShard: parameter ", parameter.ToString(),
                 " belongs to another unit already; shard inner modules before outer ones, and the "
                 "users of a tied parameter as one unit");
  }
  if (!parameter.IsPlaced()) return;
  if (!(parameter.mesh() == mesh)) {
    ThrowInvalid("FullyShard: parameter ", parameter.ToString(), " is not on mesh ",
                 mesh.ToString());
  }
  if (shard_axis >= 0 && !parameter.layout().placement(shard_axis).IsReplicate()) {
    ThrowInvalid("FullyShard: parameter ", parameter.ToString(), " is not replicated along axis ",
                 mesh.shape().axis(shard_axis).name);
  }
}

UnitParameter::UnitParameter(nn::Parameter parameter, const DeviceMesh& mesh, int shard_axis,
                             const MixedPrecision& precision, StagingStats& staging)
    : parameter_(std::move(parameter)),
      mesh_(mesh),
      param_dtype_(ParamDType(parameter_, precision)),
      reduce_dtype_(ReduceDType(parameter_, precision)),
      staging_(staging),
      gathered_(PlacedLayout(parameter_, mesh)) {
  sharded_ = ShardedLayout(gathered_, shard_axis);
  exchanges_ = !(sharded_ == gathered_) && mesh.shape().size(shard_axis) > 1;
  parameter_.Place(mesh, sharded_);
  parameter_.FixPlacement("FullyShard");
}

void UnitParameter::Prepare(const std::string& unit_name, std::function<void()> on_grad_complete) {
  unit_name_ = unit_name;
  on_grad_complete_ = std::move(on_grad_complete);
  if (exchanges_) {
    const Plan plan = MakePlan(sharded_, gathered_, {.element_bytes = SizeOf(param_dtype_)});
    SHARDMESH_CHECK(plan.steps.size() == 1 && plan.steps[0].kind == StepKind::kAllGather)
        << plan.Explain();
    gather_step_ = plan.steps[0];
  }
  MakeLeaf();
}

// If it has no buffer of its own, the gathered form is the shard itself.
void UnitParameter::MakeLeaf() {
  Tensor local = parameter_.data().local();
  if (NeedsBuffer()) {
    local = Tensor::Empty(mesh_.context(), gathered_.LocalShape(mesh_.coord()), param_dtype_,
                          MemoryCategory::kUnshardedParameters);
    local.storage()->Release(absl::StrCat("resharded by FullyShard unit ", unit_name_));
  }
  leaf_ = DTensor(mesh_, gathered_, local);
  if (!parameter_.requires_grad()) return;
  leaf_.SetRequiresGrad();
  SetGradSink(leaf_, this, on_grad_complete_);
}

std::optional<AllGatherItem> UnitParameter::BeginGather() {
  const Tensor shard = parameter_.data().local();
  // Loading may have replaced the values since.
  if (!NeedsBuffer() && leaf_.local().storage() != shard.storage()) MakeLeaf();
  parameter_.set_active(leaf_);
  const bool has_new_values =
      std::exchange(gathered_version_, shard.storage()->version()) != shard.storage()->version();
  if (!NeedsBuffer()) return std::nullopt;
  leaf_.local().storage()->Refill();
  // A graph that saved the old values must not be differentiated with the new ones.
  if (has_new_values) leaf_.local().storage()->BumpVersion();
  ExecutionContext& context = mesh_.context();
  if (!exchanges_) {
    Tensor target = leaf_.local();
    KernelsFor(context.device()).copy(context, shard, target);
    staging_.cast_bytes += target.Bytes();
    return std::nullopt;
  }
  Tensor source = shard;
  if (param_dtype_ != parameter_.dtype()) {
    cast_ = Tensor::Empty(context, shard.shape(), param_dtype_, MemoryCategory::kCommunication);
    ops::Copy(context, shard, cast_);
    staging_.cast_bytes += cast_.Bytes();
    source = cast_;
  }
  leaf_version_ = leaf_.local().storage()->version();
  return shardmesh::internal::GatherItem(mesh_, gather_step_, source, leaf_.local());
}

void UnitParameter::GatherWasPosted() {
  if (exchanges_) leaf_.local().storage()->RestoreVersion(leaf_version_);
}

void UnitParameter::EndGather() { cast_ = Tensor(); }

bool UnitParameter::IsStale() const {
  return parameter_.data().local().storage()->version() != gathered_version_;
}

void UnitParameter::Release() {
  if (!NeedsBuffer() || leaf_.local().storage()->IsReleased()) return;
  leaf_.local().storage()->Release(absl::StrCat("resharded by FullyShard unit ", unit_name_));
}

// The first gradient fixes the layout, any that has the gathered boxes; later ones must match.
bool UnitParameter::Accepts(const Layout& layout) const {
  return buffer_ ? layout == buffer_layout_ : Fits(layout);
}

Layout UnitParameter::PreferredLayout() const { return buffer_ ? buffer_layout_ : gathered_; }

GradSink::Target UnitParameter::Open(const Layout& layout) {
  if (buffer_) return {buffer_, /*accumulate=*/true};
  buffer_ = Tensor::Empty(mesh_.context(), layout.LocalShape(mesh_.coord()), reduce_dtype_,
                          MemoryCategory::kUnshardedGradients);
  buffer_layout_ = layout;
  return {buffer_, /*accumulate=*/false};
}

Tensor UnitParameter::TakeGradient() { return std::exchange(buffer_, Tensor()); }

void UnitParameter::Commit() {
  if (!reduced_) return;
  const DTensor& shard = parameter_.data();
  ExecutionContext& context = mesh_.context();
  if (shard.grad()) {
    Tensor sum = shard.grad().local();
    ops::Accumulate(context, reduced_, sum);
    sum.storage()->BumpVersion();
  } else {
    DTensor handle = shard;
    Tensor gradient = ops::Cast(context, reduced_, parameter_.dtype());
    reduced_ = Tensor();  // So that SetGrad finds no other owner and need not copy.
    handle.SetGrad(DTensor(mesh_, sharded_, std::move(gradient)));
  }
  reduced_ = Tensor();
}

void UnitParameter::DiscardGradients() {
  buffer_ = Tensor();
  reduced_ = Tensor();
}

}  // namespace shardmesh::fsdp::internal
