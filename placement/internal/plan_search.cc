// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "shardmesh/placement/internal/coarse_search.h"
#include "shardmesh/placement/internal/node_table.h"

namespace shardmesh::internal {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Search {
 public:
  /// Starts a search; memory of the one before is used again.
  void Start(const PlanState& source, const PlanState& target, const CostModel& costs);
  std::vector<PlanState> Run();
  bool IsLarge() const { return coarse_search_.IsLarge(); }

 private:
  struct Node {
    PlanState state;
    double seconds;  // From the source, with the charge of each step.
    double rest;     // At least, to the target.
    int parent;
  };
  struct Entry {
    double total;
    double rest;
    int node;
    bool operator<(const Entry& other) const {  // The top of the heap is the least.
      // Among totals that are nearly equal, the one that is nearest to the target: there are many
      // where axes or dims are alike.
      const auto near = static_cast<float>(total), other_near = static_cast<float>(other.total);
      if (near != other_near) return near > other_near;
      return rest != other.rest ? rest > other.rest : node > other.node;
    }
  };

  /// Whether the cheapest plan is one step, as many are, and the formula knows it.
  bool IsOneStep();
  /// Finds the cheapest plan of at most `limit`, if there is one.
  void RunWithin(double limit);
  void Expand(int index);
  /// Tries a step between coarse states, with those of `staying` that move along.
  void TrySteps(const CoarseSearch::Step& step, AxisSet staying);
  void TryStep(AxisSet axes, const CoarseSearch::Node& to);
  /// The kind of a step over `axes` between coarse states.
  StepKind KindOf(AxisSet axes, const CoarseState& to) const;

  /// Whether a plan of at least `total` is within the limit.
  bool IsWithin(double total) {
    if (total <= limit_) return true;
    beyond_ = std::min(beyond_, total);
    return false;
  }
  /// Calls `fn` with every state in which the splits of `leaving` have gone from `from_`, `settled`
  /// split as in the target, and `moved` any dims in any order inside what is there.
  template <typename Fn>
  void ForEachArrangement(AxisSet leaving, AxisSet settled, AxisSet moved, const Fn& fn);
  template <typename Fn>
  void Arrange(AxisSet axes, const Fn& fn);
  /// Whether only axes of the set split a dim inside one of them.
  bool IsInner(AxisSet axes) const {
    for (AxisSet rest = axes & parts_.sharded; rest != 0; rest &= rest - 1) {
      if ((inside_[std::countr_zero(rest)] & ~axes) != 0) return false;
    }
    return true;
  }
  /// Whether the outermost of the splits that go from a dim, and come to it, stays, so that fewer
  /// axes do the same.
  bool IsDoneByFewer() const {
    for (int dim = 0; dim < num_dims_; ++dim) {
      const int kept = num_kept_[dim];
      if (parts_.num_splits[dim] > kept && made_.num_splits[dim] > kept &&
          parts_.splits[dim][kept] == made_.splits[dim][kept]) {
        return true;
      }
    }
    return false;
  }
  int64_t ElementsOf(const PlanParts& parts) const;
  /// Of a step from the state that is expanded; `replicated` are those of its axes that replicate
  /// after it, `elements` what is there after it.
  double SecondsOf(StepKind kind, AxisSet axes, AxisSet replicated, int64_t elements) const;
  double Charge(AxisSet axes) const { return kStepSeconds + kAxisSeconds * costs_->NumAxes(axes); }
  /// Notes the way to the state that is made by a step over `axes` from the one that is expanded.
  void Relax(AxisSet axes, double seconds);
  std::vector<PlanState> PathTo(int index) const;

  const CostModel* costs_ = nullptr;
  AxisSet axes_ = 0;
  int num_dims_ = 0;
  PlanState source_, target_;
  PlanParts goal_;
  CoarseSearch coarse_search_;
  NodeTable<Node, 64> nodes_;
  std::vector<Entry> queue_;
  double limit_ = 0;
  double beyond_ = 0;  // The least of the bounds above the limit that were met.
  int expanded_ = 0;
  int found_ = -1;  // The node of the target.

  // The state that is expanded.
  int from_index_ = 0;
  PlanState from_;
  PlanParts parts_;
  CoarseState coarse_;
  std::array<AxisSet, MeshShape::kMaxAxes> inside_;  // The splits inside that of an axis.
  /// The axes that are in the way of a set: they split its dims, and not as in the target.
  std::array<AxisSet, 1 << MeshShape::kMaxAxes> blocked_by_;
  double from_seconds_ = 0;
  int64_t from_elements_ = 0;

  // The arrangement that is made.
  PlanParts made_;
  PlanState made_state_;
  std::array<uint8_t, Dims::kMaxRank> num_kept_{}, num_fixed_{};
};

void Search::Start(const PlanState& source, const PlanState& target, const CostModel& costs) {
  costs_ = &costs;
  axes_ = costs.real_axes();
  num_dims_ = costs.shape().size();
  source_ = source;
  target_ = target;
  goal_ = PlanParts(target, axes_);
  coarse_search_.Start(source, target, costs);
}

int64_t Search::ElementsOf(const PlanParts& parts) const {
  int64_t elements = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    AxisSet splits = 0;
    for (int depth = 0; depth < parts.num_splits[dim]; ++depth)
      splits |= 1u << parts.splits[dim][depth];
    elements *= costs_->Extent(dim, splits);
  }
  return elements;
}

double Search::SecondsOf(StepKind kind, AxisSet axes, AxisSet replicated, int64_t elements) const {
  switch (kind) {
    case StepKind::kSlice:
      return costs_->CopySeconds(elements);
    case StepKind::kMakePartial:
      return costs_->CopySeconds(from_elements_);
    case StepKind::kAllGather:
      return costs_->AllGatherSeconds(axes, from_elements_);
    case StepKind::kAllReduce:
      return costs_->AllReduceSeconds(axes, from_elements_);
    case StepKind::kReduceScatter:
      return costs_->ReduceScatterSeconds(axes, elements);
    case StepKind::kAllToAll:
      return costs_->AllToAllSeconds(axes, replicated, from_elements_);
  }
  return kInfinite;
}

template <typename Fn>
void Search::Arrange(AxisSet axes, const Fn& fn) {
  if (axes == 0) {
    for (int dim = 0; dim < num_dims_; ++dim) {
      for (int depth = num_fixed_[dim]; depth < made_.num_splits[dim]; ++depth)
        made_state_.SetShard(made_.splits[dim][depth], dim, depth);
    }
    fn();
    return;
  }
  const auto axis = static_cast<uint8_t>(std::countr_zero(axes));
  for (int dim = 0; dim < num_dims_; ++dim) {
    auto& splits = made_.splits[dim];
    uint8_t& count = made_.num_splits[dim];
    // At each depth, from the innermost outwards to the splits that are fixed.
    int depth = count++;
    splits[depth] = axis;
    Arrange(axes & (axes - 1), fn);
    for (; depth > num_fixed_[dim]; --depth) {
      std::swap(splits[depth - 1], splits[depth]);
      Arrange(axes & (axes - 1), fn);
    }
    --count;
    for (; depth < count; ++depth) splits[depth] = splits[depth + 1];
  }
}

template <typename Fn>
void Search::ForEachArrangement(AxisSet leaving, AxisSet settled, AxisSet moved, const Fn& fn) {
  made_ = parts_;
  made_state_ = from_;
  for (AxisSet rest = leaving; rest != 0; rest &= rest - 1)
    made_state_.SetReplicate(std::countr_zero(rest));
  for (int dim = 0; dim < num_dims_; ++dim) {
    uint8_t& count = made_.num_splits[dim];
    while (count > 0 && Has(leaving, made_.splits[dim][count - 1])) --count;
    num_kept_[dim] = count;
    while (count < goal_.num_splits[dim] && Has(settled, goal_.splits[dim][count])) {
      made_.splits[dim][count] = goal_.splits[dim][count];
      made_state_.SetShard(goal_.splits[dim][count], dim, count);
      ++count;
    }
  }
  num_fixed_ = made_.num_splits;
  made_.sharded = (made_.sharded & ~leaving) | settled | moved;
  made_.partial &= ~leaving;
  made_.replicated = axes_ & ~made_.sharded & ~made_.partial;
  Arrange(moved, fn);
}

void Search::Relax(AxisSet axes, double seconds) {
  const double total = from_seconds_ + seconds + Charge(axes);
  if (total > limit_) return;
  int found = nodes_.Find(made_state_);
  if (found >= 0) {
    Node& node = nodes_[found];
    if (node.seconds <= total) return;
    node.seconds = total;
    node.parent = from_index_;
  } else {
    const CoarseSearch::Node* coarse = coarse_search_.Find(coarse_search_.Of(made_, made_state_));
    if (coarse == nullptr || !IsWithin(total + coarse->rest)) return;
    found = nodes_.AddFound({made_state_, total, coarse->rest, from_index_});
  }
  if (made_state_ == target_) {
    found_ = found;
    limit_ = std::min(limit_, total);
  }
  queue_.push_back({total + nodes_[found].rest, nodes_[found].rest, found});
  std::push_heap(queue_.begin(), queue_.end());
}

StepKind Search::KindOf(AxisSet axes, const CoarseState& to) const {
  if ((axes & to.any_partial()) != 0) return StepKind::kMakePartial;
  const bool is_sharded_after = (axes & to.sharded()) != 0;
  if ((axes & parts_.partial) != 0)
    return is_sharded_after ? StepKind::kReduceScatter : StepKind::kAllReduce;
  if ((axes & parts_.sharded) == 0) return StepKind::kSlice;
  return is_sharded_after ? StepKind::kAllToAll : StepKind::kAllGather;
}

void Search::TryStep(AxisSet axes, const CoarseSearch::Node& to) {
  const StepKind kind = KindOf(axes, to.state);
  const AxisSet replicated = axes & ~to.state.sharded() & ~to.state.any_partial();
  const AxisSet settled = axes & to.state.settled;
  // A lower bound; the box after a slice or reduce-scatter may be larger than that of `to`.
  const double least = SecondsOf(kind, axes, replicated, to.elements);
  if (!IsWithin(from_seconds_ + least + Charge(axes) + to.rest)) return;
  if (!IsInner(axes) || (blocked_by_[settled] & ~axes) != 0) return;
  ForEachArrangement(axes, settled, axes & to.state.moved, [&] {
    if (kind == StepKind::kAllToAll && IsDoneByFewer()) return;
    if (kind == StepKind::kMakePartial) {
      made_.replicated &= ~axes;
      made_.partial |= axes;
      for (AxisSet rest = axes; rest != 0; rest &= rest - 1)
        made_state_.SetPartial(std::countr_zero(rest), coarse_search_.OpOf(to.state));
    }
    const int64_t elements = ElementsOf(made_);
    if (costs_->Fits(from_elements_, elements))
      Relax(axes, SecondsOf(kind, axes, replicated, elements));
  });
}

void Search::TrySteps(const CoarseSearch::Step& step, AxisSet staying) {
  const CoarseSearch::Node& to = coarse_search_.node(step.to);
  TryStep(step.axes, to);
  if (((parts_.partial | to.state.any_partial()) & step.axes) != 0) return;
  // An all-to-all may take along splits that are anywhere before and after it.
  staying &= to.state.moved & ~step.axes;
  for (AxisSet along = staying; along != 0; along = (along - 1) & staying)
    TryStep(step.axes | along, to);
}

void Search::Expand(int index) {
  from_index_ = index;
  from_ = nodes_[index].state;
  from_seconds_ = nodes_[index].seconds;
  parts_ = PlanParts(from_, axes_);
  coarse_ = coarse_search_.Of(parts_, from_);
  from_elements_ = ElementsOf(parts_);
  const AxisSet unsettled = parts_.sharded & ~AxisSet{coarse_.settled};
  std::array<AxisSet, MeshShape::kMaxAxes> in_the_way{};
  for (int dim = 0; dim < num_dims_; ++dim) {
    AxisSet inside = 0;
    for (int depth = parts_.num_splits[dim]; depth-- > 0;) {
      inside_[parts_.splits[dim][depth]] = inside;
      inside |= 1u << parts_.splits[dim][depth];
    }
    for (int depth = 0; depth < goal_.num_splits[dim]; ++depth)
      in_the_way[goal_.splits[dim][depth]] = inside & unsettled;
  }
  blocked_by_[0] = 0;
  for (AxisSet set = 1; set <= goal_.sharded; ++set)
    blocked_by_[set] = blocked_by_[set & (set - 1)] | in_the_way[std::countr_zero(set)];
  const CoarseSearch::Node& from = *coarse_search_.Find(coarse_);
  for (int i = from.first_step; i >= 0;) {
    const CoarseSearch::Step& step = coarse_search_.step(i);
    if (IsWithin(from_seconds_ + step.rest)) TrySteps(step, coarse_.moved);
    i = step.next;
  }
  // Moved splits that go anywhere else.
  for (AxisSet along = coarse_.moved; along != 0; along = (along - 1) & coarse_.moved)
    TryStep(along, from);
}

std::vector<PlanState> Search::PathTo(int index) const {
  std::vector<PlanState> path;
  for (; index >= 0; index = nodes_[index].parent) path.push_back(nodes_[index].state);
  std::reverse(path.begin(), path.end());
  return path;
}

void Search::RunWithin(double limit) {
  limit_ = limit;
  beyond_ = kInfinite;
  nodes_.Clear();
  queue_.clear();
  nodes_.Find(source_);
  queue_.push_back({0, 0, nodes_.AddFound({source_, 0, 0, -1})});
  while (!queue_.empty() && (expanded_ < kMaxExpanded || found_ < 0)) {
    const Entry entry = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end());
    queue_.pop_back();
    const Node& node = nodes_[entry.node];
    // Older and dearer ways, and those that the best plan has overtaken.
    if (entry.total > node.seconds + node.rest || (found_ >= 0 && entry.total >= limit_)) continue;
    Expand(entry.node);
    ++expanded_;
  }
}

bool Search::IsOneStep() {
  const AxisSet axes = SetOf(ChangedAxes(source_, target_));
  const std::optional<StepKind> kind = FindStepKind(axes, source_, target_);
  if (!kind || !costs_->Fits(costs_->Elements(source_), costs_->Elements(target_))) return false;
  const double seconds = costs_->Seconds(*kind, axes, source_, target_) + Charge(axes);
  return seconds <= coarse_search_.bound() * kRounding;
}

std::vector<PlanState> Search::Run() {
  if (IsOneStep()) return {source_, target_};
  const double least = coarse_search_.Run();
  expanded_ = 0;
  found_ = -1;
  if (least == kInfinite) return {};
  double limit = least * kRounding;
  RunWithin(limit);
  // Bounds are made by large steps, as they are cheap, and used by small ones: most plans that cost
  // more than the bound do so by less than 1 %.
  for (const double factor : {1.02, 1.3, 2.0, 10.0, kInfinite}) {
    if (found_ >= 0) break;
    const double last = least * factor;
    coarse_search_.Extend(last);
    while (found_ < 0 && limit < last) {
      limit = std::min(last, std::max(beyond_ * kRounding, limit + (limit - least)));
      RunWithin(limit);
    }
  }
  return found_ >= 0 ? PathTo(found_) : std::vector<PlanState>();
}

}  // namespace

std::vector<PlanState> FindStates(const PlanState& source, const PlanState& target,
                                  const CostModel& costs) {
  if (source == target) return {source};
  static thread_local auto search = std::make_unique<Search>();
  search->Start(source, target, costs);
  std::vector<PlanState> states = search->Run();
  if (search->IsLarge()) search = std::make_unique<Search>();
  return states;
}

}  // namespace shardmesh::internal
