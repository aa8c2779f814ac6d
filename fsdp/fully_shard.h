// SPDX-License-Identifier: Apache-2.0
//
// Fully sharded data parallelism, per unit of modules. Everything is a layout change: S -> R before
// use, P -> S for gradients.
//
//   for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh, {.shard_axis = "dp"});
//   fsdp::FullyShard(model, mesh, {.shard_axis = "dp"});      // the root unit: what is left
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

/// Makes the parameters below `module` that belong to no unit yet one unit. Bottom-up: inner
/// modules first, the outermost last. Before the first forward; before or after Initialize.
/// Parallelize must come before. Collective over the mesh (if values exist).
/// Errors: throws Error(kInvalidArgument) before anything is changed, naming the axis or dtype that
/// does not fit, or the parameter that belongs to another unit, lives on another mesh or is sharded
/// along `shard_axis` already.
void FullyShard(nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// While true (the default), backward reduces gradients. Set to false for all micro-batches but the
/// last: gradients then accumulate unsharded, without communication. Holds for the units at and
/// below `root`. Local; between a backward and the next forward, and alike on all ranks.
/// Errors: throws Error(kFailedPrecondition) if there is no such unit.
void SetRequiresGradientSync(nn::Module& root, bool sync);

/// Copied bytes of one rank, for tests and reports.
struct StagingStats {
  /// Every copy of a parameter or gradient byte but the two needed ones: peer shard to gather
  /// buffer, gradient buffers to shard.
  int64_t staging_bytes = 0;
  /// Own shards cast to the gather dtype.
  int64_t cast_bytes = 0;
};
/// Since the start, over all units of this rank. Local.
StagingStats GetStagingStats(const DeviceMesh& mesh);

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_FSDP_FULLY_SHARD_H_
