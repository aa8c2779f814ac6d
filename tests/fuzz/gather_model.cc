// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/gather_model.h"

#include <utility>

namespace shardmesh::fsdp {

GatherModel::Unit& GatherModel::AddUnit(const std::vector<const void*>& modules) {
  for (const void* module : modules) unit_of_[module] = modules[0];
  order_of_units_.push_back(modules[0]);
  states_[modules[0]] = {};
  return units_[modules[0]];
}

int64_t GatherModel::bytes() const {
  int64_t bytes = 0;
  for (const auto& [unit, state] : states_) {
    for (const Parameter& parameter : units_.at(unit).parameters) {
      if (state.is_gathered) bytes += parameter.bytes;
      if (state.has_slices) bytes += parameter.slice_bytes;
    }
  }
  return bytes;
}

void GatherModel::Gather(const void* unit) {
  states_[unit].is_gathered = true;
  NotePeak(bytes());
}

void GatherModel::GatherAhead(const std::vector<const void*>& modules,
                              std::vector<const void*>& ahead) {
  for (const void* module : modules) {
    const void* const unit = unit_of_.at(module);
    if (states_[unit].is_gathered) continue;
    Gather(unit);
    ahead.push_back(unit);
  }
}

// A slice is made of one parameter after the other, each before the whole of it goes.
void GatherModel::Release(const void* unit) {
  State& state = states_[unit];
  if (!KeepsSlices(unit)) {
    state.has_slices = false;
  } else if (!state.has_slices && state.is_gathered) {
    int64_t now = bytes();
    for (const Parameter& parameter : units_.at(unit).parameters) {
      now += parameter.slice_bytes;
      NotePeak(now);
      now -= parameter.bytes;
    }
    state.has_slices = true;
  }
  state.is_gathered = false;
}

void GatherModel::ReleaseIfIdle(const void* unit) {
  const State& state = states_[unit];
  if (state.open == 0 && state.entered == 0) Release(unit);
}

// ---- the table of strategies --------------------------------------------------------------------

std::optional<bool> GatherModel::ReshardsAfterForward(const Unit& unit) {
  return unit.switched_after_forward ? unit.switched_after_forward : unit.reshard_after_forward;
}

bool GatherModel::KeepsSlices(const void* unit) const {
  const State& state = states_.at(unit);
  return units_.at(unit).has_slices && !units_.at(unit).switched_after_forward &&
         (state.awaited > 0 || state.expected > 0);
}

bool GatherModel::KeepsAfterForward(const Unit& unit, bool records) const {
  if (const std::optional<bool> reshards = ReshardsAfterForward(unit)) return !*reshards;
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
  if (unit.switched_after_backward) return !*unit.switched_after_backward;
  return unit.strategy == Strategy::kOptimizerState ||
         (unit.strategy == Strategy::kShardGradOp && !syncs);
}

// ---- forward ------------------------------------------------------------------------------------

const void* GatherModel::Predicted() const {
  return position_ < last_order_.size() ? last_order_[position_] : nullptr;
}

void GatherModel::ReleasePredicted() {
  if (const void* const unit = std::exchange(predicted_, nullptr)) ReleaseIfIdle(unit);
}

bool GatherModel::KeepsForNextCall(const void* unit) {
  if (Predicted() != unit) return false;
  ReleasePredicted();
  predicted_ = unit;
  return true;
}

int64_t GatherModel::Begin(const void* module) {
  const void* const key = unit_of_.at(module);
  if (open_.empty()) {
    order_.clear();
    position_ = 0;
  }
  if (predicted_ != key) ReleasePredicted();
  predicted_ = nullptr;
  std::erase(ahead_, key);
  order_.push_back(key);
  const auto followed =
      std::find(last_order_.begin() + static_cast<int64_t>(position_), last_order_.end(), key);
  position_ = followed - last_order_.begin() + (followed == last_order_.end() ? 0 : 1);

  ++states_[key].open;
  const int64_t id = next_id_++;
  graph_.push_back({id, key, static_cast<int>(open_.size())});
  open_.push_back(graph_.size() - 1);
  ++holders_[id];
  Gather(key);
  const Unit& unit = units_.at(key);
  if (unit.forward_prefetch) {
    GatherAhead(*unit.forward_prefetch, ahead_);
  } else if (const void* const next = Predicted(); next != nullptr && !states_[next].is_gathered) {
    Gather(next);
    predicted_ = next;
  }
  return id;
}

void GatherModel::EndOutermost() {
  ReleasePredicted();
  for (const void* unit : std::exchange(ahead_, {})) ReleaseIfIdle(unit);
}

void GatherModel::End(bool records, bool is_reached) {
  Call& call = graph_[open_.back()];
  open_.pop_back();
  State& state = states_[call.unit];
  if (records) Await(call.id, call.unit);
  if (--state.open == 0 && !KeepsAfterForward(units_.at(call.unit), records) &&
      !KeepsForNextCall(call.unit))
    Release(call.unit);
  if (open_.empty()) {
    EndOutermost();
    last_order_ = order_;
  }
  // What was recorded and does not lead to a result is gone already.
  call.is_reached = is_reached;
  if (is_reached) ++holders_[call.id];
  LetGo(call);
}

void GatherModel::Fail(bool records) {
  const size_t failed = open_.back();
  open_.pop_back();
  const Call call = graph_[failed];
  // The results of calls within it are gone.
  Drop(Graph(graph_.begin() + static_cast<int64_t>(failed) + 1, graph_.end()));
  graph_.resize(failed);
  if (records) Await(call.id, call.unit);
  --states_[call.unit].open;
  ReleaseIfIdle(call.unit);
  if (open_.empty()) {
    EndOutermost();
    for (const void* unit : order_of_units_) ReleaseIfIdle(unit);
  }
  LetGo(call);
}

GatherModel::Graph GatherModel::TakeGraph() { return std::exchange(graph_, {}); }

// ---- what is recorded, and what holds it --------------------------------------------------------

void GatherModel::Await(int64_t call, const void* unit) {
  awaited_.insert(call);
  ++states_[unit].awaited;
}

bool GatherModel::IsNoLongerAwaited(int64_t call, const void* unit) {
  if (awaited_.erase(call) == 0) return false;
  --states_[unit].awaited;
  return true;
}

void GatherModel::DropCall(const void* key) {
  const Unit& unit = units_.at(key);
  const bool keeps = KeepsAfterBackward(unit) || ReshardsAfterForward(unit) == false;
  if (states_[key].awaited == 0 && !keeps) ReleaseIfIdle(key);
}

void GatherModel::LetGo(const Call& call) {
  if (--holders_.at(call.id) > 0) return;
  holders_.erase(call.id);
  if (IsNoLongerAwaited(call.id, call.unit)) DropCall(call.unit);
}

void GatherModel::Drop(const Graph& graph) {
  for (const Call& call : graph) {
    if (call.is_reached) LetGo(call);
  }
}

std::optional<int64_t> GatherModel::MakeSide(bool requires_grad) {
  Graph before = std::exchange(side_, {});
  if (requires_grad) {
    for (size_t i : open_) {
      ++holders_[graph_[i].id];
      side_.push_back(graph_[i]);
      side_.back().is_reached = true;
    }
  }
  Drop(before);
  if (open_.empty()) return std::nullopt;
  return graph_[open_.back()].id;
}

void GatherModel::AddSideToLoss() {
  for (const Call& aside : side_) {
    for (Call& call : graph_) {
      if (call.id != aside.id || call.is_reached) continue;
      call.is_reached = true;
      ++holders_[call.id];
    }
  }
}

// ---- forward again ------------------------------------------------------------------------------

void GatherModel::BeginAgain(const void* module) {
  const void* const unit = unit_of_.at(module);
  ++states_[unit].open;
  Gather(unit);
}

// Backward comes to the recomputed ops next, and to those of other calls that it expects.
void GatherModel::EndAgain(const void* module, bool records, bool is_reached) {
  const void* const unit = unit_of_.at(module);
  State& state = states_[unit];
  if (--state.open == 0 && !records && state.expected == 0) ReleaseIfIdle(unit);
  if (!records) return;
  if (is_reached) {
    ++state.awaited;
    again_.push_back(unit);
  } else {
    DropCall(unit);
  }
}

void GatherModel::EndRecomputation() {
  for (const void* unit : std::exchange(again_, {})) {
    --states_[unit].awaited;
    DropCall(unit);
  }
}

// ---- backward -----------------------------------------------------------------------------------

// From the last call to the first, each around those within it.
void GatherModel::BeginBackward(const Graph& graph) {
  events_.clear();
  next_event_ = 0;
  for (const Call& call : graph) {
    if (call.is_reached) ++states_[call.unit].expected;
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
    if (events_[i].is_enter) return events_[i].call.unit;
  }
  return nullptr;
}

void GatherModel::Apply(const Event& event) {
  const void* const key = event.call.unit;
  const Unit& unit = units_.at(key);
  State& state = states_[key];
  const void* const next = NextEntered();
  if (event.is_enter) {
    ++state.entered;
    Gather(key);
    std::vector<const void*> ahead;  // All that is gathered is released at the end.
    if (unit.backward_prefetch) {
      GatherAhead(*unit.backward_prefetch, ahead);
    } else if (next != nullptr) {
      GatherAhead({next}, ahead);
    }
    return;
  }
  IsNoLongerAwaited(event.call.id, key);
  --state.entered;
  --state.expected;
  if (state.entered > 0 || state.open > 0) return;
  if (state.expected == 0) {
    ReleaseAfterBackward(key);
  } else if (next != key && !KeepsBetweenCalls(unit)) {
    Release(key);
  }
}

void GatherModel::ReleaseAfterBackward(const void* unit) {
  if (!KeepsAfterBackward(units_.at(unit))) {
    ReleaseIfIdle(unit);
  } else if (!KeepsSlices(unit)) {
    states_[unit].has_slices = false;
  }
}

bool GatherModel::Enter(int64_t call) {
  while (next_event_ < events_.size()) {
    const Event& event = events_[next_event_++];
    Apply(event);
    if (event.is_enter) return event.call.id == call;
  }
  return false;
}

const GatherModel::Event* GatherModel::NextEvent(bool is_enter, int64_t call) const {
  for (size_t i = next_event_; i < events_.size(); ++i) {
    if (events_[i].is_enter == is_enter && events_[i].call.id == call) return &events_[i];
  }
  return nullptr;
}

bool GatherModel::ComeTo(int64_t call, int64_t later) {
  if (NextEvent(/*is_enter=*/false, call) == nullptr) return false;
  while (NextEvent(/*is_enter=*/true, call) != nullptr) Apply(events_[next_event_++]);
  while (events_[next_event_].call.id >= later) Apply(events_[next_event_++]);
  return NextEvent(/*is_enter=*/false, call) != nullptr;
}

void GatherModel::Leave(int64_t call) {
  while (next_event_ < events_.size() && !events_[next_event_].is_enter) {
    const Event& event = events_[next_event_++];
    Apply(event);
    if (event.call.id == call) return;
  }
}

// The graph is gone with it.
void GatherModel::EndEvents() {
  for (const Event& event : std::exchange(events_, {})) {
    if (event.is_enter) LetGo(event.call);
  }
}

void GatherModel::EndBackward() {
  while (next_event_ < events_.size()) Apply(events_[next_event_++]);
  if (events_.empty()) return;
  EndEvents();
  for (const void* unit : order_of_units_) ReleaseAfterBackward(unit);
}

void GatherModel::FailBackward() {
  if (events_.empty()) return;
  EndEvents();
  for (const void* unit : order_of_units_) {
    State& state = states_[unit];
    state.expected = state.entered = 0;
    ReleaseIfIdle(unit);
  }
}

}  // namespace shardmesh::fsdp
