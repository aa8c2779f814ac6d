// SPDX-License-Identifier: Apache-2.0
//
// A unit is a set of parameters that are gathered together and whose gradients are reduced
// together. The tree of units under one root records the order in which they are used.
#ifndef SHARDMESH_FSDP_INTERNAL_UNIT_H_
#define SHARDMESH_FSDP_INTERNAL_UNIT_H_

#include <memory>
#include <string>
#include <vector>

#include "shardmesh/comm/work.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/fsdp/internal/unit_parameter.h"

namespace shardmesh::fsdp::internal {

class Unit;

/// State shared by the units under one root. The root's first forward creates it.
class Tree {
 public:
  explicit Tree(std::vector<Unit*> units) : units_(std::move(units)) {}

  const std::vector<Unit*>& units() const { return units_; }

  // Order of use in forward, recorded in the first forward; prefetching follows it.
  void BeginForward();
  void Visit(Unit* unit);
  void EndForward();
  /// Null if there is none or the order is not known yet.
  Unit* After(const Unit* unit) const;
  Unit* Before(const Unit* unit) const;

  /// Called when backward reaches the first unit.
  void BeginBackward(const DeviceMesh& mesh);
  void EndBackward(bool succeeded);
  /// The only reduction in flight. It is finished before the next is posted, so gradients of at
  /// most two units exist.
  Unit* reducing = nullptr;

  /// After an exception: releases gathered parameters and waits for what is in flight.
  void Recover();
  bool in_forward() const { return in_forward_; }

 private:
  std::vector<Unit*> units_;
  std::vector<Unit*> order_;    // Of the last complete forward.
  std::vector<Unit*> current_;  // Of the forward now running.
  bool in_forward_ = false;
  bool in_backward_ = false;
  bool holds_accumulated_ = false;  // Unsynchronised gradients of earlier micro-batches.
  bool lost_accumulated_ = false;
};

/// Belongs to one rank; owned by the hooks of its module.
class Unit : public std::enable_shared_from_this<Unit> {
 public:
  Unit(nn::Module& module, DeviceMesh mesh, FullyShardOptions options, StagingStats& staging);

  nn::Module& module() const { return module_; }
  std::vector<std::unique_ptr<UnitParameter>>& parameters() { return parameters_; }
  /// For messages: the first parameter's name.
  std::string Name() const;
  void AddParameter(const nn::Parameter& parameter, int shard_axis);

  // Hooks.
  void PreForward(nn::Module::Inputs& inputs);
  void PostForward(DTensor& output);
  void PreBackward();

  // Used by the tree.
  void SetTree(std::shared_ptr<Tree> tree, bool is_root);
  bool has_tree() const { return tree_ != nullptr; }
  void Unshard();
  void Prefetch();
  void Reshard();
  void OnParameterGradient();
  void StartReduction();
  void FinishReduction();
  bool HasGradients() const;
  void Commit();
  /// Drops unreduced and uncommitted gradients.
  void Discard();
  void BeginBackward();

  bool sync = true;

 private:
  enum class State { kSharded, kGathering, kGathered };
  void Prepare();
  void WaitForGather();
  bool ReshardsAfterForward() const { return options_.reshard_after_forward.value_or(!is_root_); }
  bool IsStale() const;
  bool HasFrozen() const;

  // Progress of one gradient's reduction.
  struct Reduction {
    UnitParameter* parameter;
    std::vector<Step> steps;
    Tensor value;
    Tensor target;
  };
  std::vector<Work> PostPhase(size_t phase);

  nn::Module& module_;
  DeviceMesh mesh_;
  FullyShardOptions options_;
  StagingStats& staging_;
  std::shared_ptr<Tree> tree_;
  bool is_root_ = false;
  bool prepared_ = false;
  std::vector<std::unique_ptr<UnitParameter>> parameters_;
  State state_ = State::kSharded;
  Work gather_;
  int awaited_gradients_ = 0;
  bool entered_backward_ = false;
  std::vector<Reduction> reductions_;
  std::vector<Work> reduction_works_;
  size_t num_phases_ = 0;
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_UNIT_H_
