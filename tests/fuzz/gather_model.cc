// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/gather_model.h"

#include <utility>

namespace shardmesh::fsdp {

GatherModel::Unit& GatherModel::AddUnit(const void* module) {
  modules_.push_back(module);
  return units_[module];
}

int64_t GatherModel::bytes() const {
  int64_t bytes = 0;
  for (const auto& [module, state] : states_) {
    for (const Parameter& parameter : units_.at(module).parameters) {
      if (state.is_gathered) bytes += parameter.bytes;
      if (state.has_slices) bytes += parameter.slice_bytes;
    }
  }
  return bytes;
}

void GatherModel::Gather(const void* module) {
  states_[module].is_gathered = true;
  NotePeak(bytes());
}

void GatherModel::GatherAhead(const std::vector<const void*>& modules,
                              std::vector<const void*>& ahead) {
  for (const void* module : modules) {
    if (states_[module].is_gathered) continue;
    Gather(module);
    ahead.push_back(module);
  }
}

// A slice is made of one parameter after the other, each before the whole of it goes.
void GatherModel::Release(const void* module) {
  State& state = states_[module];
  if (!KeepsSlices(module)) {
    state.has_slices = false;
  } else if (!state.has_slices && state.is_gathered) {
    int64_t now = bytes();
    for (const Parameter& parameter : units_.at(module).parameters) {
      now += parameter.slice_bytes;
      NotePeak(now);
      now -= parameter.bytes;
    }
    state.has_slices = true;
  }
  state.is_gathered = false;
}

void GatherModel::ReleaseIfIdle(const void* module) {
  const State& state = states_[module];
  if (state.open == 0 && state.entered == 0) Release(module);
}

// ---- the table of strategies --------------------------------------------------------------------

bool GatherModel::KeepsSlices(const void* module) const {
  const State& state = states_.at(module);
  return units_.at(module).has_slices && (state.awaited > 0 || state.expected > 0);
}

bool GatherModel::KeepsAfterForward(const Unit& unit, bool records) const {
  if (unit.reshard_after_forward) return !*unit.reshard_after_forward;
  if (unit.has_slices) return false;
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

// ---- forward ------------------------------------------------------------------------------------

const void* GatherModel::Predicted() const {
  return position_ < last_order_.size() ? last_order_[position_] : nullptr;
}

void GatherModel::ReleasePredicted() {
  if (const void* const module = std::exchange(predicted_, nullptr)) ReleaseIfIdle(module);
}

bool GatherModel::KeepsForNextCall(const void* module) {
  if (Predicted() != module) return false;
  ReleasePredicted();
  predicted_ = module;
  return true;
}

int64_t GatherModel::Begin(const void* module) {
  if (open_.empty()) {
    order_.clear();
    position_ = 0;
  }
  if (predicted_ != module) ReleasePredicted();
  predicted_ = nullptr;
  std::erase(ahead_, module);
  order_.push_back(module);
  const auto followed =
      std::find(last_order_.begin() + static_cast<int64_t>(position_), last_order_.end(), module);
  position_ = followed - last_order_.begin() + (followed == last_order_.end() ? 0 : 1);

  ++states_[module].open;
  graph_.push_back({next_id_++, module, static_cast<int>(open_.size())});
  open_.push_back(graph_.size() - 1);
  Gather(module);
  const Unit& unit = units_.at(module);
  if (unit.forward_prefetch) {
    GatherAhead(*unit.forward_prefetch, ahead_);
  } else if (const void* const next = Predicted(); next != nullptr && !states_[next].is_gathered) {
    Gather(next);
    predicted_ = next;
  }
  return graph_.back().id;
}

void GatherModel::EndOutermost() {
  ReleasePredicted();
  for (const void* module : std::exchange(ahead_, {})) ReleaseIfIdle(module);
}

void GatherModel::End(bool records, bool is_reached) {
  Call& call = graph_[open_.back()];
  open_.pop_back();
  call.is_reached = is_reached;
  State& state = states_[call.module];
  if (records) ++state.awaited;
  if (--state.open == 0 && !KeepsAfterForward(units_.at(call.module), records) &&
      !KeepsForNextCall(call.module))
    Release(call.module);
  if (open_.empty()) {
    EndOutermost();
    last_order_ = order_;
  }
  // What was recorded and does not lead to the result is gone already.
  if (records && !is_reached) DropCall(call.module);
}

void GatherModel::Fail(bool records) {
  const size_t failed = open_.back();
  open_.pop_back();
  const void* const module = graph_[failed].module;
  // The results of calls within it are gone.
  Drop(Graph(graph_.begin() + static_cast<int64_t>(failed) + 1, graph_.end()));
  graph_.resize(failed);
  State& state = states_[module];
  if (records) ++state.awaited;
  --state.open;
  ReleaseIfIdle(module);
  if (open_.empty()) {
    EndOutermost();
    for (const void* each : modules_) ReleaseIfIdle(each);
  }
  if (records) DropCall(module);
}

GatherModel::Graph GatherModel::TakeGraph() { return std::exchange(graph_, {}); }

void GatherModel::DropCall(const void* module) {
  const Unit& unit = units_.at(module);
  const bool keeps = KeepsAfterBackward(unit) || unit.reshard_after_forward == false;
  if (--states_[module].awaited == 0 && !keeps) ReleaseIfIdle(module);
}

void GatherModel::Drop(const Graph& graph) {
  for (const Call& call : graph) {
    if (call.is_reached) DropCall(call.module);
  }
}

// ---- forward again ------------------------------------------------------------------------------

void GatherModel::BeginAgain(const void* module) {
  ++states_[module].open;
  Gather(module);
}

// Backward comes to the recomputed ops next, and to those of other calls that it expects.
void GatherModel::EndAgain(const void* module, bool records, bool is_reached) {
  State& state = states_[module];
  if (records) ++state.awaited;
  if (--state.open == 0 && !records && state.expected == 0) ReleaseIfIdle(module);
  if (!records) return;
  if (is_reached) {
    again_.push_back(module);
  } else {
    DropCall(module);
  }
}

void GatherModel::EndRecomputation() {
  for (const void* module : std::exchange(again_, {})) DropCall(module);
}

// ---- backward -----------------------------------------------------------------------------------

// From the last call to the first, each around those within it.
void GatherModel::BeginBackward(const Graph& graph) {
  events_.clear();
  next_event_ = 0;
  for (const Call& call : graph) {
    if (call.is_reached) ++states_[call.module].expected;
  }
  // The last call of depth 0 with all within it, then the one before.
  const auto visit = [&](const auto& self, size_t begin, size_t end, int depth) -> void {
    while (end > begin) {
      size_t i = end - 1;
      while (graph[i].depth > depth) --i;
      if (graph[i].is_reached) {
        events_.push_back({/*is_enter=*/true, graph[i]});
        self(self, i + 1, end, depth + 1);
        events_.push_back({/*is_enter=*/false, graph[i]});
      }
      end = i;
    }
  };
  visit(visit, 0, graph.size(), 0);
}

const void* GatherModel::NextEntered() const {
  for (size_t i = next_event_; i < events_.size(); ++i) {
    if (events_[i].is_enter) return events_[i].call.module;
  }
  return nullptr;
}

void GatherModel::Apply(const Event& event) {
  const void* const module = event.call.module;
  const Unit& unit = units_.at(module);
  State& state = states_[module];
  if (event.is_enter) {
    ++state.entered;
    Gather(module);
    const void* const next = NextEntered();
    std::vector<const void*> ahead;  // All that is gathered is released at the end.
    if (unit.backward_prefetch) {
      GatherAhead(*unit.backward_prefetch, ahead);
    } else if (next != nullptr) {
      GatherAhead({next}, ahead);
    }
    return;
  }
  --state.awaited;
  --state.entered;
  --state.expected;
  if (state.entered > 0 || state.open > 0) return;
  const bool keeps = state.expected > 0 ? KeepsBetweenCalls(unit) : KeepsAfterBackward(unit);
  if (!keeps) Release(module);
}

bool GatherModel::Enter(int64_t call) {
  while (next_event_ < events_.size()) {
    const Event& event = events_[next_event_++];
    Apply(event);
    if (event.is_enter) return event.call.id == call;
  }
  return false;
}

void GatherModel::Leave(int64_t call) {
  while (next_event_ < events_.size() && !events_[next_event_].is_enter) {
    const Event& event = events_[next_event_++];
    Apply(event);
    if (event.call.id == call) return;
  }
}

void GatherModel::EndBackward() {
  while (next_event_ < events_.size()) Apply(events_[next_event_++]);
  if (events_.empty()) return;
  for (const void* module : modules_) {
    if (!KeepsAfterBackward(units_.at(module))) ReleaseIfIdle(module);
  }
}

void GatherModel::FailBackward() {
  if (events_.empty()) return;
  for (const void* module : modules_) {
    State& state = states_[module];
    state.expected = state.entered = 0;
    ReleaseIfIdle(module);
  }
  for (; next_event_ < events_.size(); ++next_event_) {
    const Event& event = events_[next_event_];
    if (!event.is_enter) DropCall(event.call.module);
  }
}

}  // namespace shardmesh::fsdp
