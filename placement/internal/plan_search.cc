// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_search.h"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "shardmesh/base/check.h"

namespace shardmesh::internal {
namespace {

/// What starting a move costs, so that costs which are equal but for rounding go to fewer moves.
constexpr double kStartSeconds = 1e-8;

/// From one state to another that has no Partial of which the source has none.
class Search {
 public:
  Search(const PlanState& source, const PlanState& target, const CostModel& costs)
      : source_(source), target_(target), costs_(costs) {}

  std::vector<Move> Run();

 private:
  struct Node {
    double seconds = 0;
    int num_moves = 0;
    bool done = false;
    Move move;  // The last one on the way here.
  };
  struct Entry {
    double seconds;
    int num_moves;
    int64_t sequence;  // First found, first served: the fixed order among equals.
    PlanState state;
    bool operator>(const Entry& other) const {
      return std::tie(seconds, num_moves, sequence) >
             std::tie(other.seconds, other.num_moves, other.sequence);
    }
  };

  std::vector<Move> MovesFrom(const PlanState& state) const;
  void AddMovesOfShard(const PlanState& state, int axis, std::vector<Move>& moves) const;
  void AddMovesOfPartial(const PlanState& state, int axis, std::vector<Move>& moves) const;
  void AddMovesOfReplicate(const PlanState& state, int axis, std::vector<Move>& moves) const;
  void AddExchangeToTarget(const PlanState& state, std::vector<Move>& moves) const;
  /// The dims that `axis` splits in the source or the target.
  AxisList DimsOf(int axis) const;
  void Relax(const Node& node, Move move);

  const PlanState source_;
  const PlanState target_;
  const CostModel& costs_;
  absl::flat_hash_map<PlanState, Node> nodes_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  int64_t sequence_ = 0;
};

AxisList Search::DimsOf(int axis) const {
  AxisList dims;
  for (const PlanState* state : {&source_, &target_}) {
    if (state->IsShard(axis)) dims.push_back(state->ShardDim(axis));
  }
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  return dims;
}

void Search::AddMovesOfShard(const PlanState& state, int axis, std::vector<Move>& moves) const {
  if (state.IsInnermost(axis)) {
    moves.push_back({StepKind::kAllGather, {axis}, state, state.WithReplicate(axis)});
  }
  for (const int dim : DimsOf(axis)) {
    if (state.IsShard(axis, dim) && state.IsInnermost(axis)) continue;
    const PlanState to = state.WithShard(axis, dim);
    moves.push_back({StepKind::kAllToAll, ChangedAxes(state, to), state, to});
  }
}

void Search::AddMovesOfPartial(const PlanState& state, int axis, std::vector<Move>& moves) const {
  moves.push_back({StepKind::kAllReduce, {axis}, state, state.WithReplicate(axis)});
  for (const int dim : DimsOf(axis)) {
    moves.push_back({StepKind::kReduceScatter, {axis}, state, state.WithShard(axis, dim)});
  }
}

void Search::AddMovesOfReplicate(const PlanState& state, int axis, std::vector<Move>& moves) const {
  for (const int dim : DimsOf(axis)) {
    moves.push_back({StepKind::kSlice, {axis}, state, state.WithShard(axis, dim)});
  }
}

void Search::AddExchangeToTarget(const PlanState& state, std::vector<Move>& moves) const {
  const AxisList axes = ChangedAxes(state, target_);
  const auto is_partial = [&](int axis) {
    return state.IsPartial(axis) || target_.IsPartial(axis);
  };
  const auto is_gathered = [&](int axis) {
    return state.IsShard(axis) && target_.IsReplicate(axis);
  };
  if (axes.empty() || std::any_of(axes.begin(), axes.end(), is_partial)) return;
  const bool gather = std::all_of(axes.begin(), axes.end(), is_gathered);
  moves.push_back({gather ? StepKind::kAllGather : StepKind::kAllToAll, axes, state, target_});
}

std::vector<Move> Search::MovesFrom(const PlanState& state) const {
  std::vector<Move> moves;
  for (int axis = 0; axis < costs_.num_axes(); ++axis) {
    if (costs_.AxisSize(axis) == 1) continue;
    if (state.IsShard(axis)) AddMovesOfShard(state, axis, moves);
    if (state.IsPartial(axis)) AddMovesOfPartial(state, axis, moves);
    if (state.IsReplicate(axis)) AddMovesOfReplicate(state, axis, moves);
  }
  AddExchangeToTarget(state, moves);
  return moves;
}

void Search::Relax(const Node& node, Move move) {
  const double seconds =
      node.seconds + kStartSeconds + costs_.Seconds(move.kind, move.axes, move.from, move.to);
  const int num_moves = node.num_moves + 1;
  const auto [found, is_new] = nodes_.try_emplace(move.to, Node{seconds, num_moves, false, move});
  Node& known = found->second;
  if (!is_new) {
    if (std::tie(known.seconds, known.num_moves) <= std::tie(seconds, num_moves)) return;
    known = Node{seconds, num_moves, false, move};
  }
  queue_.push({seconds, num_moves, sequence_++, move.to});
}

std::vector<Move> Search::Run() {
  nodes_.try_emplace(source_, Node{0, 0, false, {StepKind::kSlice, {}, source_, source_}});
  queue_.push({0, 0, sequence_++, source_});
  while (!queue_.empty()) {
    const PlanState state = queue_.top().state;
    queue_.pop();
    if (state == target_) break;
    Node& node = nodes_.at(state);
    if (std::exchange(node.done, true)) continue;
    const Node copy = node;  // Relaxing may move the nodes.
    for (Move& move : MovesFrom(state)) Relax(copy, std::move(move));
  }
  std::vector<Move> path;
  for (PlanState state = target_; !(state == source_); state = path.back().from) {
    const auto found = nodes_.find(state);
    SHARDMESH_CHECK(found != nodes_.end()) << "the planner found no way to the target";
    path.push_back(found->second.move);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

std::vector<Move> FindMoves(const PlanState& source, const PlanState& target,
                            const CostModel& costs) {
  PlanState reduced = target;
  AxisList partial;
  for (int axis = 0; axis < costs.num_axes(); ++axis) {
    if (!target.IsPartial(axis) || target.placement(axis) == source.placement(axis)) continue;
    reduced = reduced.WithReplicate(axis);
    partial.push_back(axis);
  }
  std::vector<Move> moves = Search(source, reduced, costs).Run();
  if (!partial.empty()) moves.push_back({StepKind::kMakePartial, partial, reduced, target});
  return moves;
}

}  // namespace shardmesh::internal
