// SPDX-License-Identifier: Apache-2.0
//
// One parameter of a FullyShard unit: its shard, its gathered form, and the buffer that accumulates
// its gradient.
#ifndef SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_
#define SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/parameter.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::fsdp::internal {

/// Accumulates the gradient of a gathered parameter, in the dtype in which it is reduced. Shared
/// with the graphs that write it.
class GradientBuffer : public GradSink {
 public:
  /// `on_first` is called before the first gradient of a Backward is written.
  GradientBuffer(DeviceMesh mesh, Layout gathered, DType dtype, std::function<void()> on_first);

  bool Accepts(const Layout& layout) const override;
  Layout PreferredLayout() const override { return sum_ ? layout_ : gathered_; }
  Target Open(const Layout& layout) override;
  void CountStaging(int64_t bytes) override;

  explicit operator bool() const { return static_cast<bool>(sum_); }
  /// Of the sum, if there is one.
  const Layout& layout() const { return layout_; }
  DType dtype() const override { return dtype_; }
  /// Moves the sum out.
  Tensor Take() {
    is_touched_ = true;
    return std::exchange(sum_, Tensor());
  }
  /// Whether the sum was written or taken in this Backward, which ClearTouched ends.
  bool is_touched() const { return is_touched_; }
  void ClearTouched() { is_touched_ = false; }

 private:
  DeviceMesh mesh_;
  Layout gathered_;
  DType dtype_;
  std::function<void()> on_first_;
  Tensor sum_;
  Layout layout_;
  bool is_touched_ = false;
};

/// How a unit shards its parameters.
struct Sharding {
  DeviceMesh mesh;
  std::vector<int> axes;  ///< Indices in the mesh, outermost split first.
  /// Of these, those along which slices are kept between forward and backward; none: no slices.
  std::vector<int> slice_axes;
  std::function<int(const nn::Parameter&)> dim;
  MixedPrecision precision;
  bool releases_on_one_rank = false;
};

/// Belongs to one unit of one rank.
class UnitParameter {
 public:
  /// Errors: throws Error(kInvalidArgument) naming the parameter if it belongs to a unit already,
  /// cannot be sharded so, or would have its gradients reduced in a narrower dtype than they are
  /// computed in.
  static void Check(const nn::Parameter& parameter, const Sharding& sharding);
  /// Places the parameter. The arguments have passed Check. `on_gradient` as GradientBuffer's
  /// `on_first`.
  UnitParameter(nn::Parameter parameter, const Sharding& sharding,
                std::function<void()> on_gradient);

  const nn::Parameter& parameter() const { return parameter_; }

  // ---- the gathered parameter -------------------------------------------------------------------
  /// Allocates the gathered form and returns its part of the unit's all-gather, or nothing if no
  /// data has to be exchanged: from the slice if `from_slice`, which must be of the present values.
  /// `owner` names the unit where released memory is used.
  std::optional<AllGatherItem> BeginGather(const std::string& owner, bool from_slice);
  /// After the all-gather was posted: the gathered form has the version that BeginGather left, as
  /// the values of that version come back.
  void GatherWasPosted();
  /// After the all-gather.
  void EndGather();
  /// Whether the values were written or replaced since BeginGather. The same on all ranks, as every
  /// rank counts a write, also of an empty shard.
  bool IsStale() const;
  void Release(const std::string& owner);
  /// Keeps this rank's slice of the gathered form, which must be there. Returns its bytes.
  int64_t KeepSlice();
  void DropSlice() { slice_ = Tensor(); }
  /// Memory of the gathered form and the slice.
  int64_t gathered_bytes() const;
  /// Makes forward use the gathered form, as a leaf that wants a gradient if the parameter does.
  void Activate();
  void Deactivate() { parameter_.set_active(DTensor()); }

  // ---- the gradient -----------------------------------------------------------------------------
  GradientBuffer& gradient() { return *gradient_; }
  const Layout& sharded_layout() const { return sharded_; }
  const std::vector<int>& shard_axes() const { return shard_axes_; }
  const AxisList& gather_axes(bool from_slice) const {
    return from_slice ? slice_step_.axes : gather_step_.axes;
  }
  /// Keeps (adds) a reduced gradient of the shard until Deliver, because a Backward that fails must
  /// not leave a gradient behind.
  void AddReduced(Tensor gradient);
  /// Summands of the shard's gradient that wait for an all-reduce. Their layout is undefined if
  /// there are none; later ones must have it too.
  const Layout& scattered_layout() const { return scattered_layout_; }
  /// Keeps (adds) them; for good if the Backward succeeds.
  void AddScattered(Tensor summands, const Layout& layout);
  /// Moves them out.
  Tensor TakeScattered();
  void Deliver(BackwardRun& run);
  void EndBackward();
  /// Drops what the Backward that failed has made. Returns whether gradients of earlier
  /// micro-batches are lost with it.
  bool AbandonBackward();
  /// Drops the gradients of earlier micro-batches.
  void DiscardGradient();

 private:
  bool NeedsBuffer() const { return exchanges_ || copies_; }

  nn::Parameter parameter_;
  DeviceMesh mesh_;
  DType param_dtype_;
  std::vector<int> shard_axes_;
  Layout sharded_;
  Layout gathered_;
  bool exchanges_ = false;  // The gathered form consists of the shards of several ranks.
  bool copies_ = false;     // It is apart from the shard.
  Step gather_step_;
  Step slice_step_;  // From the slice; without axes if there is none.

  Tensor local_;  // The gathered form; its memory comes and goes.
  Tensor slice_;  // Kept of it between forward and backward.
  Tensor cast_;   // The shard in the gather dtype, while peers read it.
  // What was gathered.
  std::shared_ptr<Storage> gathered_from_;
  int64_t gathered_version_ = -1;
  int64_t local_version_ = 0;  // Of the gathered form, before its gather is posted.

  std::shared_ptr<GradientBuffer> gradient_;
  bool had_gradient_ = false;  // In the buffer, when this Backward began.
  Tensor reduced_;
  Tensor scattered_;      // Of earlier Backwards.
  Tensor new_scattered_;  // Of the one that runs.
  Layout scattered_layout_;
  bool is_scattered_taken_ = false;  // In the one that runs.
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_
