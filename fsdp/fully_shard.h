// SPDX-License-Identifier: Apache-2.0
//
// Fully sharded data parallelism, per unit of modules. Everything is a layout change: S -> R before
// use, P -> S for gradients.
//
//   for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
//   fsdp::FullyShard(model, mesh);                       // the root unit: the rest
//   model.Initialize(/*seed=*/1);
//
// A parameter stays one thing: what is set on it or on parameter.data() (values, requires_grad,
// gradient hooks, gradients) holds for its shard and for the gathered form that forward uses.
// docs/fsdp.md says what corresponds to the options of PyTorch's FSDP2.
#ifndef SHARDMESH_FSDP_FULLY_SHARD_H_
#define SHARDMESH_FSDP_FULLY_SHARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::fsdp {

namespace internal {
class Unit;
}

struct MixedPrecision {
  /// Parameters are gathered and used in this dtype; the shards stay in the parameter's own dtype.
  std::optional<DType> param_dtype = std::nullopt;
  /// The same for one parameter, in place of param_dtype where it gives a dtype: norms in f32 in a
  /// unit in bf16. Ops need operands of one dtype, so the module that uses such a parameter casts
  /// its inputs (docs/fsdp.md).
  std::function<std::optional<DType>(const nn::Parameter&)> param_dtype_of = nullptr;
  /// Gradients are accumulated and reduced in this dtype; default: the parameter's own dtype.
  std::optional<DType> reduce_dtype = std::nullopt;
  /// The module's output is cast to this dtype; default: it stays as it is.
  std::optional<DType> output_dtype = std::nullopt;
  /// Cast floating-point inputs of the module to param_dtype.
  bool cast_forward_inputs = true;
};

/// What is sharded, and for how long parameters stay gathered. With p ranks along the shard axes,
/// a unit of n bytes costs a rank, a step with one backward:
///
///   |                 | shards    | gathered                | bytes sent                       |
///   |-----------------|-----------|-------------------------|----------------------------------|
///   | kFullShard      | all state | in forward; in backward | 2 (p-1)/p n + (p-1)/p n          |
///   | kShardGradOp    | all state | forward to backward     | (p-1)/p n + (p-1)/p n            |
///   | kOptimizerState | all state | always                  | as kShardGradOp                  |
///   | kReplicate      | nothing   | -                       | 2 (p-1)/p n, along replicas      |
enum class Strategy {
  kFullShard,  ///< ZeRO-3. A unit that contains all others keeps its own parameters until backward.
  /// ZeRO-2: gathered from forward to the end of backward; over micro-batches without
  /// synchronisation, to the end of the last backward.
  kShardGradOp,
  /// ZeRO-1: gathered once after each change of the values, and kept, also without a backward.
  kOptimizerState,
  kReplicate,  ///< Data parallel: one batched all-reduce a unit, while backward goes on.
};

struct FullyShardOptions {
  /// Axes along which parameters are sharded, as one group (appended as the innermost splits of the
  /// dim, in this order). Default: "dp" if the mesh has it, else its only axis. Gradients are also
  /// summed along every other axis along which they arrive as summands: on a mesh [dp_replicate,
  /// dp] with the batch split along both, that is hybrid sharding. Empty: nothing is sharded.
  std::optional<std::vector<std::string>> shard_axes = std::nullopt;
  Strategy strategy = Strategy::kFullShard;
  MixedPrecision mixed_precision = {};
  /// Whether gathered parameters are released after forward and gathered again in backward.
  /// Default: as the strategy says. Under kFullShard the root unit (within no other unit, and
  /// containing others or the outermost module) keeps them until backward, the others release them.
  /// Of several modules: if none is within another unit, and one of them contains another unit's or
  /// is the outermost. An explicit `false` holds without a backward (NoGrad) as well.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// Some of shard_axes: between a recorded forward and its backward each rank keeps its slice
  /// along these alone, so that backward gathers along them alone (ZeRO++ hpZ). With shard_axes
  /// {"node", "local"} and {"local"} here, nothing is gathered along "node" in backward, for
  /// 1/size(local) of the parameters in memory; without a backward nothing is kept. Only under
  /// kFullShard; holds for the root unit as well.
  std::optional<std::vector<std::string>> reshard_after_forward_axes = std::nullopt;
  /// The dim to shard of each parameter (of any extent); default: dim 0. Scalars are replicated.
  std::function<int(const nn::Parameter&)> shard_dim = nullptr;
  /// Parameters for which it is true are in no unit, neither this one nor one made by a later call:
  /// they stay as placed (replicated over the mesh if they have no place), keep their dtype, and
  /// each Backward reduces their gradients by itself. OneOf makes it of a list.
  std::function<bool(const nn::Parameter&)> ignored = nullptr;
};

/// Whether a parameter is one of `parameters`.
/// Errors: throws Error(kInvalidArgument) if one of them is undefined.
std::function<bool(const nn::Parameter&)> OneOf(std::vector<nn::Parameter> parameters);

/// Groups the parameters of `module` and its children that are in no unit yet into a new unit. Call
/// it bottom-up (inner modules first), after Parallelize and before the first forward; before or
/// after Initialize. `mesh` is that of the parameters which have one already, or a slice of it
/// (`mesh["dp"]`), whose axes are then meant. The first forward compares replicas
/// (nn/replicas.h). Collective over the mesh if the parameters have values.
/// Errors: throws Error(kInvalidArgument) before anything is changed, naming the axis or dtype that
/// does not fit, or the parameter that is in another unit, on another mesh, already sharded along a
/// shard axis, or ignored after an earlier call has sharded it.
void FullyShard(nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});
/// The parameters of several modules as one unit, gathered at the first call of any of them.
void FullyShard(const std::vector<nn::Module*>& modules, const DeviceMesh& mesh,
                const FullyShardOptions& options = {});

// Switches of units that exist. They apply to the units of `root` and its children, or, unless
// `recursive`, to the unit of `root`. Local; call them between a backward and the next forward,
// alike on all ranks. Errors: throw Error(kFailedPrecondition) if there is no such unit.

/// While true (the default), backward reduces gradients. Set to false for all micro-batches but the
/// last: gradients then accumulate unsharded, without communication; the last one reduces those of
/// all units of the model, whether it uses them or not. Until then ClipGradNorm and Step() refuse
/// the parameters.
void SetRequiresGradientSync(nn::Module& root, bool sync, bool recursive = true);
/// While true (the default), a reduction ends with the all-reduce along axes along which the
/// gradient has summands and the parameter is not split: the replicate axis of hybrid sharding. Set
/// to false for all micro-batches but the last: each then reduce-scatters, the shards of gradients
/// accumulate, and the last one all-reduces their sum. Otherwise as SetRequiresGradientSync.
void SetRequiresAllReduce(nn::Module& root, bool all_reduce, bool recursive = true);
/// As FullyShardOptions::reshard_after_forward, in place of it and of reshard_after_forward_axes;
/// nullopt: as these say again.
void SetReshardAfterForward(nn::Module& root, std::optional<bool> reshard, bool recursive = true);
/// Whether parameters are released at the end of backward. `false` keeps them gathered for the next
/// forward, which gathers again if the values have changed; nullopt: as the strategy says.
void SetReshardAfterBackward(nn::Module& root, std::optional<bool> reshard, bool recursive = true);

namespace internal {
/// Turns a switch of units off while it lives; then each is as it was.
class SwitchedOff {
 public:
  SwitchedOff(nn::Module& root, bool Unit::*which, const char* name);
  ~SwitchedOff();
  SwitchedOff(const SwitchedOff&) = delete;
  SwitchedOff& operator=(const SwitchedOff&) = delete;

 private:
  struct Before {
    std::shared_ptr<Unit> unit;
    bool value;
  };
  bool Unit::*which_;
  std::vector<Before> before_;
};
}  // namespace internal

/// No synchronisation while it lives, as by SetRequiresGradientSync(root, false); then each unit is
/// as it was. May be nested, and outlive the module.
class NoSync : private internal::SwitchedOff {
 public:
  explicit NoSync(nn::Module& root);
};
/// The same of SetRequiresAllReduce(root, false).
class NoAllReduce : private internal::SwitchedOff {
 public:
  explicit NoAllReduce(nn::Module& root);
};

/// What the unit of `module` begins to gather, in this order, when a forward (or backward) comes to
/// it and it is gathered itself; without a list, the unit that followed last time. Nothing if
/// `modules` is empty. What is gathered ahead and not used is released at the end of the outermost
/// call (or of Backward). Local; alike on all ranks, between a backward and the next forward.
/// Errors: throws Error(kInvalidArgument) naming the one of the modules that is not a unit.
/// Source: set_modules_to_forward_prefetch of PyTorch's FSDP2.
void SetForwardPrefetch(nn::Module& module, const std::vector<nn::Module*>& modules);
void SetBackwardPrefetch(nn::Module& module, const std::vector<nn::Module*>& modules);
/// Back to what followed last time, in forward and backward. Errors: as SetForwardPrefetch.
void ResetPrefetch(nn::Module& module);

/// Drops the gradients that backwards without synchronisation have accumulated in the units of
/// `root` and its children: the window begins again. Local, alike on all ranks. Errors: as
/// SetRequiresGradientSync.
void DiscardUnreducedGradients(nn::Module& root);

/// Gathers the parameters of all units of `root` and its children, which then stay gathered until
/// their next release. Collective over the mesh. Errors: as SetRequiresGradientSync.
void Unshard(nn::Module& root);
/// Releases what is gathered of them, but for modules whose forward or backward runs, and for the
/// slices of reshard_after_forward_axes that a backward will gather. Local.
void Reshard(nn::Module& root);

/// What one unit has done on this rank since it was made or its statistics were reset. Bytes are
/// those of CommTrace; groups of one rank do not count.
struct UnitStats {
  std::string module;  ///< The full name of its first module; empty for the outermost.
  int64_t gathers = 0;
  int64_t gather_bytes_sent = 0;
  int64_t gather_bytes_received = 0;
  int64_t reductions = 0;  ///< Batches of gradients, each of one or several collectives.
  int64_t reduce_bytes_sent = 0;
  int64_t gathered_bytes = 0;       ///< Memory of gathered parameters now.
  int64_t peak_gathered_bytes = 0;  ///< The most since then.
  /// Seconds that the rank has waited, in which collectives were also carried out.
  double gather_wait_seconds = 0;
  double reduce_wait_seconds = 0;
};
/// Of the units of `root` and its children, parents first. Local. Errors: as
/// SetRequiresGradientSync.
std::vector<UnitStats> GetUnitStats(nn::Module& root);
/// All counts are 0 again, and the peak is what is gathered now. Local. Errors: as
/// SetRequiresGradientSync.
void ResetUnitStats(nn::Module& root);

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

/// For tests: units that are wrapped later have gathered forms apart from the shards on one rank
/// too, and release them, as they do on several. Local.
void SetReleasesOnOneRank(const DeviceMesh& mesh, bool value);

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_FSDP_FULLY_SHARD_H_
