// SPDX-License-Identifier: Apache-2.0
//
// Fully sharded data parallelism, per unit of modules. Everything is a layout change: S -> R before
// use, P -> S for gradients.
//
//   for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh, {.shard_axis = "dp"});
//   fsdp::FullyShard(model, mesh, {.shard_axis = "dp"});      // the root unit: the rest
//   model.Initialize(/*seed=*/1);
#ifndef SHARDMESH_FSDP_FULLY_SHARD_H_
#define SHARDMESH_FSDP_FULLY_SHARD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::fsdp {

struct MixedPrecision {
  /// Parameters are gathered and used in this dtype; the shards stay in the parameter's own dtype.
  std::optional<DType> param_dtype = std::nullopt;
  /// Gradients are accumulated and reduced in this dtype; default: the parameter's own dtype.
  std::optional<DType> reduce_dtype = std::nullopt;
};

struct FullyShardOptions {
  /// Axis along which parameters are sharded (appended as the innermost split of dim 0). An axis
  /// that the mesh lacks counts as size 1.
  std::string shard_axis = "dp";
  /// Axis along which shards are replicated (HSDP): gradients are all-reduced over it after the
  /// reduce-scatter. Empty, or an axis that the mesh lacks: none.
  std::string replicate_axis = "";
  MixedPrecision mixed_precision = {};
  /// Release the gathered parameters after forward and gather them again in backward. Default:
  /// true, but false for the root unit (the one whose module contains the others).
  std::optional<bool> reshard_after_forward = std::nullopt;
};

/// Groups the parameters of `module` and its children that are in no unit yet into a new unit. Call
/// it bottom-up (inner modules first), after Parallelize and before the first forward; before or
/// after Initialize. Collective over the mesh if the parameters have values.
/// Errors: throws Error(kInvalidArgument) before anything is changed, naming the axis or dtype that
/// does not fit, or the parameter that is in another unit, on another mesh or already sharded along
/// `shard_axis`.
void FullyShard(nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// While true (the default), backward reduces gradients. Set to false for all micro-batches but the
/// last: gradients then accumulate unsharded, without communication. Applies to the units of `root`
/// and its children. Local; call it between a backward and the next forward, alike on all ranks.
/// Errors: throws Error(kFailedPrecondition) if there is no such unit.
void SetRequiresGradientSync(nn::Module& root, bool sync);

/// Bytes copied by one rank, for tests and reports.
struct StagingStats {
  /// Copies of parameters and gradients other than the two that are necessary: from a peer's shard
  /// to the gather buffer, and from gradient buffers to the shard.
  int64_t staging_bytes = 0;
  /// Own shards cast to the gather dtype.
  int64_t cast_bytes = 0;
};
/// Totals of all units of this rank since it started. Local.
StagingStats GetStagingStats(const DeviceMesh& mesh);

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_FSDP_FULLY_SHARD_H_
