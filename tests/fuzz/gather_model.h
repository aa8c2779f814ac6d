// SPDX-License-Identifier: Apache-2.0
//
// What docs/fsdp.md says of how long parameters stay gathered, as a model of its own: which units
// are gathered after each call of a module, and in backward at the beginning of each. Nothing is
// gathered ahead.
#ifndef SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_
#define SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "shardmesh/fsdp/fully_shard.h"

namespace shardmesh::fsdp {

class GatherModel {
 public:
  struct Unit {
    int64_t bytes = 0;  ///< Gathered, on this rank.
    Strategy strategy = Strategy::kFullShard;
    std::optional<bool> reshard_after_forward = std::nullopt;
    bool is_root = false;  ///< As FullyShardOptions::reshard_after_forward has it.
  };
  /// A call of a module that is a unit.
  struct Call {
    const void* module = nullptr;
    int depth = 0;            ///< Calls of units around it.
    bool is_reached = false;  ///< By the backward of the result.
  };
  using Graph = std::vector<Call>;  ///< In the order in which the calls began.

  Unit& AddUnit(const void* module) { return units_[module]; }
  bool IsUnit(const void* module) const { return units_.count(module) > 0; }

  /// Of micro-batches: gradients are reduced.
  bool syncs = true;

  // ---- forward ----------------------------------------------------------------------------------
  /// A unit's module has been called.
  void Begin(const void* module);
  /// Its forward is over. `records`: it has recorded an op; `is_reached`: backward comes to it.
  void End(bool records, bool is_reached);
  /// The exception that ended it goes on.
  void Fail();
  /// The calls since the last TakeGraph.
  Graph TakeGraph();
  /// The graph is gone without a backward.
  void Drop(const Graph& graph);

  // ---- backward ---------------------------------------------------------------------------------
  /// Returns what is gathered at the beginning of each call of a unit, in the order of backward.
  std::vector<int64_t> Backward(const Graph& graph);
  /// Instead of its end: an exception.
  void FailBackward(const Graph& graph);

  int64_t bytes() const;
  /// Since the last ResetPeak.
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = bytes(); }
  void NotePeak(int64_t bytes) { peak_ = std::max(peak_, bytes); }

 private:
  struct State {
    int open = 0;     // Calls that forward has begun and not ended.
    int awaited = 0;  // Calls to which some backward is to come.
    bool is_gathered = false;
  };
  void Gather(const void* module);
  void ReleaseAll();
  bool KeepsAfterForward(const Unit& unit, bool records) const;
  bool KeepsBetweenCalls(const Unit& unit) const;
  bool KeepsAfterBackward(const Unit& unit) const;
  bool KeepsWithoutGraph(const Unit& unit) const;

  std::map<const void*, Unit> units_;
  std::map<const void*, State> states_;
  std::vector<size_t> open_;  // Of graph_.
  Graph graph_;
  int64_t peak_ = 0;
};

}  // namespace shardmesh::fsdp

#endif  // SHARDMESH_TESTS_FUZZ_GATHER_MODEL_H_
