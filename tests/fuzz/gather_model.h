// SPDX-License-Identifier: Apache-2.0
//
// What docs/fsdp.md says of how long parameters stay gathered, as a model of its own, to the byte:
// in forward, ahead of it, in recomputations, in backward, and under exceptions. A unit is named by
// the first of its modules.
#ifndef SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_
#define SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shardmesh/fsdp/fully_shard.h"

namespace shardmesh::fsdp {

class GatherModel {
 public:
  struct Parameter {
    int64_t bytes = 0;        ///< Gathered, on this rank.
    int64_t slice_bytes = 0;  ///< Of what is kept between forward and backward.
  };
  struct Unit {
    std::vector<Parameter> parameters;
    Strategy strategy = Strategy::kFullShard;
    std::optional<bool> reshard_after_forward = std::nullopt;
    bool has_slices = false;  ///< As FullyShardOptions::reshard_after_forward_axes has it.
    bool is_root = false;     ///< As FullyShardOptions::reshard_after_forward has it.
    /// SetReshardAfterForward and SetReshardAfterBackward.
    std::optional<bool> switched_after_forward = std::nullopt;
    std::optional<bool> switched_after_backward = std::nullopt;
    std::optional<std::vector<const void*>> forward_prefetch, backward_prefetch;
  };
  /// A call of a module that is a unit, or one of several that are one.
  struct Call {
    int64_t id = 0;
    const void* unit = nullptr;
    int depth = 0;            ///< Calls of units around it.
    bool is_reached = false;  ///< By the backward of the result.
  };
  using Graph = std::vector<Call>;  ///< In the order in which the calls began.

  /// In the order in which FullyShard is called.
  Unit& AddUnit(const std::vector<const void*>& modules);
  Unit& unit(const void* module) { return units_.at(unit_of_.at(module)); }
  bool IsUnit(const void* module) const { return unit_of_.count(module) > 0; }

  /// Of micro-batches: gradients are reduced.
  bool syncs = true;

  // ---- between steps ----------------------------------------------------------------------------
  void Unshard(const void* module) { Gather(unit_of_.at(module)); }
  void Reshard(const void* module) { ReleaseIfIdle(unit_of_.at(module)); }

  // ---- forward ----------------------------------------------------------------------------------
  /// A unit's module has been called. Returns the call's id.
  int64_t Begin(const void* module);
  /// Its forward is over. `records`: it has recorded an op; `is_reached`: the backward of its
  /// result comes to it.
  void End(bool records, bool is_reached);
  /// The exception that ended it goes on.
  void Fail(bool records);
  /// The calls since the last TakeGraph.
  Graph TakeGraph();
  /// The graph is gone without a backward.
  void Drop(const Graph& graph);

  // ---- a result on the side: of an op that belongs to all calls that are open -------------------
  /// It takes the place of an earlier one. Returns the innermost call; none if there is no call.
  std::optional<int64_t> MakeSide(bool requires_grad);
  /// Later calls have ids from here on.
  int64_t next_id() const { return next_id_; }
  /// The loss of the calls since the last TakeGraph depends on it as well.
  void AddSideToLoss();
  /// The calls that a backward of it alone comes to. It follows.
  Graph TakeSide() { return std::exchange(side_, {}); }
  void DropSide() { Drop(TakeSide()); }

  // ---- forward again, within backward, by a checkpoint ------------------------------------------
  void BeginAgain(const void* module);
  void EndAgain(const void* module, bool records, bool is_reached);
  /// What was recorded meanwhile is gone.
  void EndRecomputation();

  // ---- backward ---------------------------------------------------------------------------------
  void BeginBackward(const Graph& graph);
  /// It has begun with a call. Returns false if another one is next.
  bool Enter(int64_t call);
  /// It is in a call, and over with those from the id `later` on. Returns false if it is not.
  bool ComeTo(int64_t call, int64_t later);
  /// It is about to be over with a call; for one of which it isn't said, it is before the next.
  void Leave(int64_t call);
  void EndBackward();
  /// Instead of its end: an exception, and the graph is gone.
  void FailBackward();

  int64_t bytes() const;
  /// Since the last ResetPeak.
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = bytes(); }

 private:
  struct State {
    int open = 0;      // Calls that forward has begun and not ended.
    int awaited = 0;   // Calls to which some backward is to come,
    int expected = 0;  // and the one that runs;
    int entered = 0;   // of these, those that it has begun.
    bool is_gathered = false;
    bool has_slices = false;
  };
  struct Event {
    bool is_enter;
    Call call;
  };
  void NotePeak(int64_t bytes) { peak_ = std::max(peak_, bytes); }
  void Gather(const void* unit);
  void GatherAhead(const std::vector<const void*>& modules, std::vector<const void*>& ahead);
  void Release(const void* unit);
  void ReleaseIfIdle(const void* unit);
  void ReleasePredicted();
  void EndOutermost();
  void Await(int64_t call, const void* unit);
  bool IsNoLongerAwaited(int64_t call, const void* unit);
  void LetGo(const Call& call);
  void EndEvents();
  void ReleaseAfterBackward(const void* unit);
  void DropCall(const void* unit);
  const void* Predicted() const;
  bool KeepsForNextCall(const void* unit);
  void Apply(const Event& event);
  const Event* NextEvent(bool is_enter, int64_t call) const;
  const void* NextEntered() const;

  static std::optional<bool> ReshardsAfterForward(const Unit& unit);
  bool KeepsSlices(const void* unit) const;
  bool KeepsAfterForward(const Unit& unit, bool records) const;
  bool KeepsBetweenCalls(const Unit& unit) const;
  bool KeepsAfterBackward(const Unit& unit) const;

  std::map<const void*, Unit> units_;
  std::map<const void*, const void*> unit_of_;  // Of modules.
  std::vector<const void*> order_of_units_;
  std::map<const void*, State> states_;
  int64_t next_id_ = 0;
  int64_t peak_ = 0;

  // Forward.
  std::vector<size_t> open_;  // Of graph_.
  Graph graph_;
  std::vector<const void*> order_, last_order_;  // Called since the outermost call began.
  size_t position_ = 0;                          // In last_order_: after the latest call.
  const void* predicted_ = nullptr;              // Gathered ahead, and not called yet.
  std::vector<const void*> ahead_;               // The same, by a list.
  std::vector<const void*> again_;               // Units of calls recorded by a recomputation.

  // What holds the ops of a call: the call itself while it is open, the loss, the result aside.
  std::map<int64_t, int> holders_;
  std::set<int64_t> awaited_;  // Calls to which some backward may come.
  Graph side_;

  // Backward.
  std::vector<Event> events_;
  size_t next_event_ = 0;
};

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_
