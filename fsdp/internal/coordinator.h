// SPDX-License-Identifier: Apache-2.0
//
// The units of one rank, in the order in which forward and backward use them: what to gather ahead,
// which reduction is under way, and how a step ends.
#ifndef SHARDMESH_FSDP_INTERNAL_COORDINATOR_H_
#define SHARDMESH_FSDP_INTERNAL_COORDINATOR_H_

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/fsdp/internal/reduction.h"

namespace shardmesh::fsdp::internal {

class Unit;

/// Of one outermost module: what its units share.
struct Model {
  bool has_compared_replicas = false;
  /// A Backward that failed took gradients of earlier micro-batches with it.
  bool has_lost_gradients = false;
  /// The units that the last forward called, in order.
  std::vector<std::weak_ptr<Unit>> order;
};

/// Belongs to one rank, in its locals.
class Coordinator : public BackwardParticipant, public std::enable_shared_from_this<Coordinator> {
 public:
  static std::shared_ptr<Coordinator> Of(const DeviceMesh& mesh) {
    return mesh.locals().Share<Coordinator>();
  }

  void Add(const std::shared_ptr<Unit>& unit) { units_.push_back(unit); }

  // ---- forward, outside a backward --------------------------------------------------------------
  /// A call of a module of `unit` begins.
  void BeginCall(const std::shared_ptr<Unit>& unit, nn::Module& module);
  /// After `unit` is gathered: begins to gather what its list says, or what followed last time.
  void PrefetchNext(const Unit& unit);
  /// The call has ended. `failed`: by an exception.
  void EndCall(bool failed);
  /// Keeps `unit` gathered if its own is the next call, should this forward be like the last.
  /// Returns whether it does.
  bool KeepsForNextCall(const std::shared_ptr<Unit>& unit);

  // ---- backward ---------------------------------------------------------------------------------
  /// The Backward now running will differentiate, or has written a gradient of, `unit`.
  void Join(Unit& unit);
  void GatherAheadInBackward(const std::vector<std::weak_ptr<Unit>>& units);
  /// That of the call which backward enters next, null if there is none; to compare with.
  const Unit* next_in_backward = nullptr;
  void StartReduction(Unit& unit);
  void Finish(BackwardRun& run) override;
  void Succeeded() override;
  void Failed() override;

  StagingStats staging;
  bool releases_on_one_rank = false;

 private:
  std::vector<std::shared_ptr<Unit>> LiveUnits();
  /// The units of the models that take part in the Backward now running.
  std::vector<std::shared_ptr<Unit>> Participants();
  /// What the last forward called next; null if this one has gone another way.
  std::shared_ptr<Unit> Predicted() const;
  void FinishReduction();
  void ReleasePrefetched();
  /// Begins to gather those that are released, and adds them to `ahead`.
  static void GatherAhead(const std::vector<std::weak_ptr<Unit>>& units,
                          std::vector<std::weak_ptr<Unit>>& ahead);
  /// Releases those of `ahead` that no call uses, and empties it.
  static void ReleaseAhead(std::vector<std::weak_ptr<Unit>>& ahead);

  std::vector<std::weak_ptr<Unit>> units_;  // In the order of FullyShard.
  int open_calls_ = 0;
  std::shared_ptr<Model> model_;            // Of the outermost open call.
  std::vector<std::weak_ptr<Unit>> order_;  // The units called in this forward.
  size_t position_ = 0;                     // In the last one's: one after the latest call.
  std::weak_ptr<Unit> prefetched_;          // Gathered as predicted, and not called yet.
  // Gathered as a list says: not called yet, or at some time in this Backward.
  std::vector<std::weak_ptr<Unit>> ahead_, ahead_in_backward_;
  std::set<std::shared_ptr<Model>> models_;  // Of the Backward now running.
  std::set<std::shared_ptr<Unit>> joined_;   // Which a graph may have been the last to own.
  std::optional<Reduction> reduction_;  // The only one in flight, so that gradients of at most two
                                        // units exist.
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_COORDINATOR_H_
