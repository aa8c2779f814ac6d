// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/gather_model.h"

#include <utility>

namespace shardmesh::fsdp {

int64_t GatherModel::bytes() const {
  int64_t bytes = 0;
  for (const auto& [module, state] : states_) {
    if (state.is_gathered) bytes += units_.at(module).bytes;
  }
  return bytes;
}

void GatherModel::Gather(const void* module) {
  states_[module].is_gathered = true;
  NotePeak(bytes());
}

void GatherModel::ReleaseAll() {
  for (auto& [module, state] : states_) state.is_gathered &= state.open > 0;
}

// ---- the table of strategies --------------------------------------------------------------------

bool GatherModel::KeepsAfterForward(const Unit& unit, bool records) const {
  if (unit.reshard_after_forward) return !*unit.reshard_after_forward;
  switch (unit.strategy) {
    case Strategy::kOptimizerState:
      return true;
    case Strategy::kShardGradOp:
    case Strategy::kReplicate:
      return records;
    case Strategy::kFullShard:
      return unit.is_root && records;
  }
  return false;
}

bool GatherModel::KeepsBetweenCalls(const Unit& unit) const {
  return KeepsAfterForward(unit, /*records=*/true);
}

bool GatherModel::KeepsAfterBackward(const Unit& unit) const {
  return unit.strategy == Strategy::kOptimizerState ||
         (unit.strategy == Strategy::kShardGradOp && !syncs);
}

bool GatherModel::KeepsWithoutGraph(const Unit& unit) const {
  return KeepsAfterBackward(unit) || unit.reshard_after_forward == false;
}

// ---- forward ------------------------------------------------------------------------------------

void GatherModel::Begin(const void* module) {
  ++states_[module].open;
  graph_.push_back({module, static_cast<int>(open_.size())});
  open_.push_back(graph_.size() - 1);
  Gather(module);
}

void GatherModel::End(bool records, bool is_reached) {
  Call& call = graph_[open_.back()];
  open_.pop_back();
  const Unit& unit = units_.at(call.module);
  State& state = states_[call.module];
  --state.open;
  call.is_reached = is_reached;
  if (is_reached) ++state.awaited;
  if (!KeepsAfterForward(unit, records)) state.is_gathered = false;
  // What was recorded and does not lead to the result is gone already.
  if (records && state.awaited == 0 && !KeepsWithoutGraph(unit)) state.is_gathered = false;
}

void GatherModel::Fail() {
  State& state = states_[graph_[open_.back()].module];
  open_.pop_back();
  --state.open;
  state.is_gathered = false;
  if (open_.empty()) ReleaseAll();
}

GatherModel::Graph GatherModel::TakeGraph() { return std::exchange(graph_, {}); }

void GatherModel::Drop(const Graph& graph) {
  for (const Call& call : graph) {
    if (!call.is_reached) continue;
    const Unit& unit = units_.at(call.module);
    State& state = states_[call.module];
    --state.awaited;
    if (state.awaited == 0 && !KeepsWithoutGraph(unit)) state.is_gathered = false;
  }
}

// ---- backward -----------------------------------------------------------------------------------

// From the last call to the first, each around those within it.
std::vector<int64_t> GatherModel::Backward(const Graph& graph) {
  std::vector<int64_t> gathered;
  std::map<const void*, int> expected;
  for (const Call& call : graph) {
    if (call.is_reached) ++expected[call.module];
  }
  if (expected.empty()) return gathered;
  // Calls whose end backward has passed, and not their beginning; the innermost is the last.
  std::vector<size_t> entered;
  const auto leave = [&] {
    const void* module = graph[entered.back()].module;
    entered.pop_back();
    const Unit& unit = units_.at(module);
    State& state = states_[module];
    --state.awaited;
    const bool is_last = --expected[module] == 0;
    if (is_last ? !KeepsAfterBackward(unit) : !KeepsBetweenCalls(unit)) state.is_gathered = false;
  };
  const auto enter = [&](size_t i) {
    Gather(graph[i].module);
    gathered.push_back(bytes());
    entered.push_back(i);
  };
  // The last call of depth 0 with all within it, then the one before.
  const auto visit = [&](const auto& self, size_t begin, size_t end, int depth) -> void {
    while (end > begin) {
      size_t i = end - 1;
      while (graph[i].depth > depth) --i;
      if (graph[i].is_reached) {
        enter(i);
        self(self, i + 1, end, depth + 1);
        leave();
      }
      end = i;
    }
  };
  visit(visit, 0, graph.size(), 0);
  for (auto& [module, state] : states_) {
    if (!KeepsAfterBackward(units_.at(module))) state.is_gathered = false;
  }
  return gathered;
}

void GatherModel::FailBackward(const Graph& graph) {
  bool has_begun = false;
  for (const Call& call : graph) {
    if (!call.is_reached) continue;
    has_begun = true;
    --states_[call.module].awaited;
  }
  if (has_begun) ReleaseAll();
}

}  // namespace shardmesh::fsdp
