// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/unit_parameter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/fsdp/internal/coordinator.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp::internal {
namespace {

// The dim that is sharded; none of a scalar, which stays replicated.
std::optional<int> ShardDim(const nn::Parameter& parameter, const Sharding& sharding) {
  if (parameter.shape().size() == 0) return std::nullopt;
  const int dim = sharding.dim == nullptr ? 0 : sharding.dim(parameter);
  if (dim < 0 || dim >= parameter.shape().size()) {
    ThrowInvalid("FullyShard: shard_dim gives dim ", dim, " for parameter ", parameter.ToString(),
                 ", which has ", parameter.shape().size(), " dims");
  }
  return dim;
}

// The shard axes become the innermost splits.
Layout ShardedLayout(const nn::Parameter& parameter, const Layout& layout,
                     const Sharding& sharding) {
  const std::optional<int> dim = ShardDim(parameter, sharding);
  Layout sharded = layout;
  if (!dim) return sharded;
  for (int axis : sharding.axes) sharded = sharded.With(axis, Shard(*dim));
  return sharded;
}

Layout PlacedLayout(const nn::Parameter& parameter, const DeviceMesh& mesh) {
  if (!parameter.IsPlaced()) return Layout::Replicated(mesh.shape(), parameter.shape());
  return parameter.layout();
}

DType ParamDType(const nn::Parameter& parameter, const MixedPrecision& precision) {
  std::optional<DType> dtype;
  if (precision.param_dtype_of != nullptr) dtype = precision.param_dtype_of(parameter);
  if (!dtype) dtype = precision.param_dtype;
  return dtype.value_or(parameter.dtype());
}
DType ReduceDType(const nn::Parameter& parameter, const MixedPrecision& precision) {
  return precision.reduce_dtype.value_or(parameter.dtype());
}

// Adds a gradient of the shard to `sum`, which may be empty.
void Add(ExecutionContext& context, Tensor gradient, Tensor& sum) {
  if (sum) return ops::Accumulate(context, gradient, sum);
  // Where nothing was scattered it is the buffer itself.
  gradient.storage()->set_category(MemoryCategory::kGradients);
  sum = std::move(gradient);
}

std::string WhyReleased(const std::string& owner) {
  return absl::StrCat(
      "gathered by FullyShard for ", owner,
      ", and only while its forward or backward runs: call the module, or begin the "
      "method that uses them with Module::OpenForwardScopes()");
}

}  // namespace

// ---- the gradient buffer ------------------------------------------------------------------------

GradientBuffer::GradientBuffer(DeviceMesh mesh, Layout gathered, DType dtype,
                               std::function<void()> on_first)
    : mesh_(std::move(mesh)), gathered_(gathered), dtype_(dtype), on_first_(std::move(on_first)) {}

// The first gradient fixes the layout, any that has the gathered boxes; later ones must match.
bool GradientBuffer::Accepts(const Layout& layout) const {
  return sum_ ? layout == layout_ : layout.PartialAsReplicate() == gathered_;
}

GradSink::Target GradientBuffer::Open(const Layout& layout) {
  if (!std::exchange(is_touched_, true)) on_first_();
  if (sum_) return {sum_, /*accumulate=*/true};
  sum_ = Tensor::Empty(mesh_.context(), layout.LocalShape(mesh_.coord()), dtype_,
                       MemoryCategory::kUnshardedGradients);
  layout_ = layout;
  return {sum_, /*accumulate=*/false};
}

void GradientBuffer::CountStaging(int64_t bytes) {
  Coordinator::Of(mesh_)->staging.staging_bytes += bytes;
}

// ---- the parameter ------------------------------------------------------------------------------

void UnitParameter::Check(const nn::Parameter& parameter, const Sharding& sharding) {
  const DType param = ParamDType(parameter, sharding.precision);
  if (!IsFloating(param)) {
    ThrowInvalid("FullyShard: param_dtype_of gives ", std::string(Name(param)), " for parameter ",
                 parameter.ToString(), ", expected a floating-point dtype");
  }
  const DType reduce = ReduceDType(parameter, sharding.precision);
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
  ShardDim(parameter, sharding);
  if (!parameter.IsPlaced()) return;
  for (int axis : sharding.axes) {
    if (parameter.layout().placement(axis).IsReplicate()) continue;
    ThrowInvalid("FullyShard: parameter ", parameter.ToString(), " is not replicated along axis ",
                 sharding.mesh.shape().axis(axis).name);
  }
}

UnitParameter::UnitParameter(nn::Parameter parameter, const Sharding& sharding,
                             std::function<void()> on_gradient)
    : parameter_(std::move(parameter)),
      mesh_(sharding.mesh),
      param_dtype_(ParamDType(parameter_, sharding.precision)),
      shard_axes_(sharding.axes),
      gathered_(PlacedLayout(parameter_, mesh_)) {
  sharded_ = ShardedLayout(parameter_, gathered_, sharding);
  AxisList axes;
  for (int axis = 0; axis < mesh_.shape().num_axes(); ++axis) {
    if (!(sharded_.placement(axis) == gathered_.placement(axis))) axes.push_back(axis);
  }
  for (int axis : axes) exchanges_ |= mesh_.shape().size(axis) > 1;
  copies_ = param_dtype_ != parameter_.dtype() || sharding.releases_on_one_rank;
  gather_step_ = {StepKind::kAllGather, axes, sharded_, gathered_};
  if (!axes.empty() && !sharding.slice_axes.empty()) {
    Layout slice = gathered_;
    AxisList slice_axes;
    for (int axis : sharding.slice_axes) {
      slice = slice.With(axis, sharded_.placement(axis));
      slice_axes.push_back(axis);
    }
    std::sort(slice_axes.begin(), slice_axes.end());
    slice_step_ = {StepKind::kAllGather, slice_axes, slice, gathered_};
  }
  gradient_ = std::make_shared<GradientBuffer>(
      mesh_, gathered_, ReduceDType(parameter_, sharding.precision), std::move(on_gradient));
  parameter_.Place(mesh_, sharded_);
  parameter_.FixPlacement("FullyShard");
}

// If it has no buffer of its own, the gathered form is the shard itself.
std::optional<AllGatherItem> UnitParameter::BeginGather(const std::string& owner, bool from_slice) {
  ExecutionContext& context = mesh_.context();
  const Tensor shard = parameter_.data().local();
  const bool has_new_values = IsStale();
  gathered_from_ = shard.storage();
  gathered_version_ = shard.storage()->version();
  if (!NeedsBuffer()) {
    local_ = shard;
    return std::nullopt;
  }
  if (!local_) {
    local_ = Tensor::Empty(context, gathered_.LocalShape(mesh_.coord()), param_dtype_,
                           MemoryCategory::kUnshardedParameters);
    local_.storage()->Release(WhyReleased(owner));
  }
  local_.storage()->Refill();
  // A graph that saved the old values must not be differentiated with the new ones.
  if (has_new_values) local_.storage()->BumpVersion();
  StagingStats& staging = Coordinator::Of(mesh_)->staging;
  if (!exchanges_) {
    KernelsFor(context.device()).copy(context, shard, local_);
    staging.cast_bytes += local_.Bytes();
    return std::nullopt;
  }
  local_version_ = local_.storage()->version();
  if (from_slice) return shardmesh::internal::GatherItem(mesh_, slice_step_, slice_, local_);
  Tensor source = shard;
  if (param_dtype_ != parameter_.dtype()) {
    cast_ = Tensor::Empty(context, shard.shape(), param_dtype_, MemoryCategory::kCommunication);
    ops::Copy(context, shard, cast_);
    staging.cast_bytes += cast_.Bytes();
    source = cast_;
  }
  return shardmesh::internal::GatherItem(mesh_, gather_step_, source, local_);
}

void UnitParameter::GatherWasPosted() {
  if (exchanges_) local_.storage()->RestoreVersion(local_version_);
}

void UnitParameter::EndGather() { cast_ = Tensor(); }

bool UnitParameter::IsStale() const {
  const std::shared_ptr<Storage>& storage = parameter_.data().local().storage();
  return storage != gathered_from_ || storage->version() != gathered_version_;
}

void UnitParameter::Release(const std::string& owner) {
  if (!NeedsBuffer() || !local_ || local_.storage()->IsReleased()) return;
  local_.storage()->Release(WhyReleased(owner));
}

int64_t UnitParameter::KeepSlice() {
  if (slice_step_.axes.empty()) return 0;
  ExecutionContext& context = mesh_.context();
  const Coord& coord = mesh_.coord();
  const Box box = slice_step_.from.LocalBox(coord);
  slice_ =
      Tensor::Empty(context, box.Extents(), param_dtype_, MemoryCategory::kUnshardedParameters);
  ops::Copy(context, shardmesh::internal::ViewOfBox(local_, gathered_.LocalBox(coord), box),
            slice_);
  Coordinator::Of(mesh_)->staging.staging_bytes += slice_.Bytes();
  return slice_.Bytes();
}

int64_t UnitParameter::gathered_bytes() const {
  const bool is_here = NeedsBuffer() && local_ && !local_.storage()->IsReleased();
  return (is_here ? local_.Bytes() : 0) + (slice_ ? slice_.Bytes() : 0);
}

void UnitParameter::Activate() {
  DTensor leaf(mesh_, gathered_, local_);
  if (parameter_.requires_grad()) {
    leaf.SetRequiresGrad();
    SetGradSink(leaf, gradient_);
  }
  parameter_.set_active(std::move(leaf));
}

void UnitParameter::AddReduced(Tensor gradient) {
  Add(mesh_.context(), std::move(gradient), reduced_);
}

void UnitParameter::Deliver(BackwardRun& run) {
  if (!reduced_) return;
  Tensor gradient = std::exchange(reduced_, Tensor());
  if (gradient.dtype() != parameter_.dtype()) {
    const Tensor reduced =
        std::exchange(gradient, Tensor::Empty(mesh_.context(), gradient.shape(), parameter_.dtype(),
                                              MemoryCategory::kGradients));
    ops::Copy(mesh_.context(), reduced, gradient);
  }
  run.Deliver(parameter_.data(), DTensor(mesh_, sharded_, std::move(gradient)));
}

void UnitParameter::AddScattered(Tensor summands, const Layout& layout) {
  scattered_layout_ = layout;
  Add(mesh_.context(), std::move(summands), new_scattered_);
}

Tensor UnitParameter::TakeScattered() {
  is_scattered_taken_ |= static_cast<bool>(scattered_);
  Tensor summands = std::exchange(scattered_, Tensor());
  if (new_scattered_) Add(mesh_.context(), std::exchange(new_scattered_, Tensor()), summands);
  scattered_layout_ = Layout();
  return summands;
}

void UnitParameter::EndBackward() {
  if (new_scattered_) Add(mesh_.context(), std::exchange(new_scattered_, Tensor()), scattered_);
  is_scattered_taken_ = false;
  gradient_->ClearTouched();
  had_gradient_ = static_cast<bool>(*gradient_);
  parameter_.set_has_unreduced_gradient(had_gradient_ || scattered_);
}

bool UnitParameter::AbandonBackward() {
  const bool is_lost = (gradient_->is_touched() && had_gradient_) || is_scattered_taken_;
  if (gradient_->is_touched()) gradient_->Take();
  reduced_ = Tensor();
  new_scattered_ = Tensor();
  if (!scattered_) scattered_layout_ = Layout();
  EndBackward();
  return is_lost;
}

void UnitParameter::DiscardGradient() {
  gradient_->Take();
  scattered_ = Tensor();
  scattered_layout_ = Layout();
  EndBackward();
}

}  // namespace shardmesh::fsdp::internal
