// SPDX-License-Identifier: Apache-2.0
//
// One parameter of a FullyShard unit: its shard, its gathered form, and the buffer that accumulates
// its gradient.
#ifndef SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_
#define SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_

#include <memory>
#include <optional>
#include <string>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/parameter.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::fsdp::internal {

/// Belongs to one unit of one rank.
class UnitParameter : public GradSink {
 public:
  /// Errors: throws Error(kInvalidArgument) naming the parameter if it belongs to a unit already,
  /// cannot be sharded along `shard_axis` (an index in the mesh, or -1), or would have its
  /// gradients reduced in a narrower dtype than they are computed in.
  static void Check(const nn::Parameter& parameter, const DeviceMesh& mesh, int shard_axis,
                    const MixedPrecision& precision);
  /// Places the parameter. The arguments have passed Check.
  UnitParameter(nn::Parameter parameter, const DeviceMesh& mesh, int shard_axis,
                const MixedPrecision& precision, StagingStats& staging);

  const nn::Parameter& parameter() const { return parameter_; }

  /// Called once values exist: creates the gathered leaf, empty, and makes forward use it in place
  /// of the parameter.
  void Prepare(const std::string& unit_name, std::function<void()> on_grad_complete);

  // ---- the gathered parameter -------------------------------------------------------------------
  /// Allocates the gathered form and returns its part of the unit's all-gather, or nothing if no
  /// data has to be exchanged.
  std::optional<AllGatherItem> BeginGather();
  /// After the all-gather was posted: the gathered form has the version that BeginGather left, as
  /// the values of that version come back.
  void GatherWasPosted();
  /// After the all-gather.
  void EndGather();
  /// Whether the shard was written since BeginGather, so that the gathered form is out of date.
  bool IsStale() const;
  void Release();

  // ---- the gradient -----------------------------------------------------------------------------
  bool Accepts(const Layout& layout) const override;
  Layout PreferredLayout() const override;
  Target Open(const Layout& layout) override;
  void CountStaging(int64_t bytes) override { staging_.staging_bytes += bytes; }

  bool has_gradient() const { return static_cast<bool>(buffer_); }
  const Tensor& gradient() const { return buffer_; }
  const Layout& gradient_layout() const { return buffer_layout_; }
  const Layout& sharded_layout() const { return sharded_; }
  /// Moves the buffer out.
  Tensor TakeGradient();
  /// Keeps the reduced gradient of the shard until Commit, because a Backward that fails must not
  /// leave a gradient behind.
  void SetReduced(Tensor gradient) { reduced_ = std::move(gradient); }
  /// Adds the reduced gradient to the parameter's.
  void Commit();
  void DiscardGradients();

 private:
  bool NeedsBuffer() const { return exchanges_ || param_dtype_ != parameter_.dtype(); }
  void MakeLeaf();
  bool Fits(const Layout& layout) const { return layout.PartialAsReplicate() == gathered_; }

  nn::Parameter parameter_;
  DeviceMesh mesh_;
  DType param_dtype_;
  DType reduce_dtype_;
  StagingStats& staging_;
  Layout sharded_;
  Layout gathered_;
  bool exchanges_ = false;  // Whether the gathered form consists of the shards of several ranks.
  Step gather_step_;

  std::string unit_name_;
  std::function<void()> on_grad_complete_;
  DTensor leaf_;
  Tensor cast_;  // The shard in the gather dtype, while peers read it.
  int64_t gathered_version_ = -1;
  int64_t leaf_version_ = 0;  // Of the gathered form, before its gather is posted.

  Tensor buffer_;
  Layout buffer_layout_;
  Tensor reduced_;
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_UNIT_PARAMETER_H_
