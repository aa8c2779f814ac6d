// SPDX-License-Identifier: Apache-2.0
//
// A unit is a set of parameters that are gathered together and whose gradients are reduced
// together.
#ifndef SHARDMESH_FSDP_INTERNAL_UNIT_H_
#define SHARDMESH_FSDP_INTERNAL_UNIT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardmesh/comm/work.h"
#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/fsdp/internal/coordinator.h"
#include "shardmesh/fsdp/internal/reduction.h"
#include "shardmesh/fsdp/internal/unit_parameter.h"

namespace shardmesh::fsdp::internal {

/// "fsdp_gather of layers.3 (layers.3.wq.weight and 6 more, 1f0c2a55)": ranks whose collectives
/// differ in unit or parameters differ in it.
std::string CollectiveName(const std::string& op, const std::string& unit,
                           const std::vector<nn::Parameter>& parameters);

class Unit;
class UnitCall;

/// What a module's locals() hold.
struct UnitSlot {
  std::shared_ptr<Unit> unit;
};
/// The unit whose forward the module's forward is; null if there is none.
inline const std::shared_ptr<Unit>& UnitOf(nn::Module& module) {
  return module.locals().Get<UnitSlot>().unit;
}

/// The module that no other has registered, up from `module`.
inline nn::Module& Outermost(nn::Module& module) {
  nn::Module* outermost = &module;
  while (outermost->parent() != nullptr) outermost = outermost->parent();
  return *outermost;
}

/// Belongs to one rank; owned by the hooks of its modules, and by the graphs in which they were
/// called.
class Unit : public std::enable_shared_from_this<Unit> {
 public:
  Unit(Sharding sharding, const FullyShardOptions& options,
       std::shared_ptr<Coordinator> coordinator);

  const DeviceMesh& mesh() const { return sharding_.mesh; }
  const FullyShardOptions& options() const { return options_; }
  const std::vector<std::unique_ptr<UnitParameter>>& parameters() const { return parameters_; }
  Coordinator& coordinator() const { return *coordinator_; }
  const std::shared_ptr<Model>& model() const { return model_; }
  void AddParameter(const nn::Parameter& parameter);
  /// Takes the name from `module`, the first of the unit's that is called, and the place in the
  /// tree of modules from all of them.
  void Locate(nn::Module& module);

  // ---- gathering --------------------------------------------------------------------------------
  bool is_gathered() const { return state_ != State::kSharded; }
  /// Begins to gather.
  void Prefetch();
  void Unshard();
  /// Waits for a gather that is under way, whose peers may still be writing, and releases; keeps
  /// slices if a backward is to gather them.
  void Reshard();
  /// Unless a forward or backward of the unit runs. Does not throw.
  void ReshardIfIdle();

  // ---- forward ----------------------------------------------------------------------------------
  /// If it throws, EndCall must follow all the same.
  void BeginCall(nn::Module& module);
  /// Does not throw.
  void EndCall(UnitCall& call, bool failed);
  /// The graph of a call is gone without a backward. Does not throw.
  void DropCall();

  // ---- backward ---------------------------------------------------------------------------------
  /// Forward goes on within a call of the unit, in a recomputation. Pause does not throw.
  void Resume();
  void Pause();
  void Expect();
  /// `next` is the unit of the call that backward enters next, or null.
  void Enter(Unit* next);
  void Leave(UnitCall& call);
  bool HasGradients() const;
  Reduction TakeGradients();
  /// What is gathered ahead, in place of what followed last time.
  std::optional<std::vector<std::weak_ptr<Unit>>> forward_prefetch, backward_prefetch;
  void Deliver(BackwardRun& run);
  /// All regions have been left: releases, unless the strategy keeps the parameters.
  void ReshardAfterBackward();
  void EndBackward();
  /// Drops what the Backward that failed has left; returns whether gradients of earlier
  /// micro-batches are lost with it. Does not throw.
  bool AbandonBackward();
  /// Drops gradients of earlier micro-batches.
  void DiscardGradients();

  // ---- switches and statistics ------------------------------------------------------------------
  bool sync = true;
  bool all_reduce = true;
  // In place of what the options say.
  std::optional<bool> reshard_after_forward, reshard_after_backward;
  /// But for the module's name and the memory now.
  UnitStats stats;
  int64_t gathered_bytes() const;

 private:
  enum class State { kSharded, kGathering, kGathered };
  void WaitForGather();
  void ReleaseAfterBackward();
  bool HasGradient(UnitParameter& parameter) const;
  bool IsStale() const;
  bool KeepsSlices() const;
  void KeepSlices();
  void DropSlices();
  std::optional<bool> ReshardsAfterForward() const;
  bool KeepsAfterForward(const UnitCall& call) const;
  bool KeepsBetweenRegions() const;
  bool KeepsAfterBackward() const;

  Sharding sharding_;
  FullyShardOptions options_;
  std::shared_ptr<Coordinator> coordinator_;
  std::shared_ptr<Model> model_;
  std::string name_;                        // For messages.
  std::string gather_name_;                 // Of the collective.
  std::vector<const nn::Module*> located_;  // Its modules that Locate has seen.
  bool is_within_another_ = false;          // One of these, in a module of another unit.
  bool is_root_ = false;
  std::vector<std::unique_ptr<UnitParameter>> parameters_;
  State state_ = State::kSharded;
  bool has_slices_ = false;
  Work gather_;
  int open_calls_ = 0;
  int awaited_calls_ = 0;  // Recorded calls whose backward is still to come.
  int expected_ = 0;       // Calls that the Backward now running has still to leave.
  int entered_ = 0;        // Of these, those entered.
};

/// One call of a module of the unit, as backward sees it.
class UnitCall : public BackwardRegion {
 public:
  explicit UnitCall(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {}
  ~UnitCall() override {
    if (is_awaited) unit_->DropCall();
  }
  bool is_awaited = false;  ///< Backward may still come to it.

  const Unit& unit() const { return *unit_; }
  void Expect() override { unit_->Expect(); }
  void Enter(BackwardRegion* next) override;
  void Leave() override;
  std::shared_ptr<void> Resume() override;

 private:
  std::shared_ptr<Unit> unit_;
};

/// One call of a module of the unit, as forward sees it: the parameters are gathered while it
/// lives.
class ForwardCall {
 public:
  ForwardCall(std::shared_ptr<Unit> unit, nn::Module& module);
  ~ForwardCall();
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;

 private:
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<UnitCall> call_;
  BackwardRegionScope region_;
  const int num_exceptions_;
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_UNIT_H_
