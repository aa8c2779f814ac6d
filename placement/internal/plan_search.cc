// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "shardmesh/placement/internal/coarse_search.h"
#include "shardmesh/placement/internal/node_table.h"

namespace shardmesh::internal {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

uint8_t Bits(AxisSet set) { return static_cast<uint8_t>(set); }

class Search {
 public:
  /// Starts a search; memory of the one before is used again.
  void Start(const PlanState& source, const PlanState& target, const CostModel& costs);
  std::vector<PlanState> Run();

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

  static uint32_t BitOf(ReduceOp op) { return 1u << static_cast<int>(op); }
  /// Finds the cheapest plan of at most `limit`, if there is one.
  void RunWithin(double limit);
  void Expand(int index);
  void AddSlices();
  void AddMakePartials();
  void AddAllGathers();
  void AddAllReduces();
  void AddReduceScatters();
  void AddAllToAlls();
  void AddAllToAll(AxisSet axes, AxisSet replicated, AxisSet settled, double seconds);

  /// The coarse state after a step that takes `leaving` from where they are, and after which
  /// `settled` shard as in the target and `moved` otherwise.
  CoarseState After(AxisSet leaving, AxisSet settled, AxisSet moved) const {
    const uint8_t stay = Bits(~leaving);
    return {.partial = Bits(coarse_.partial & stay),
            .foreign = Bits(coarse_.foreign & stay),
            .settled = Bits((coarse_.settled & stay) | settled),
            .original = Bits(coarse_.original & stay),
            .moved = Bits((coarse_.moved & stay) | moved)};
  }
  /// Whether a step over `axes` of at least `seconds`, after which the coarse state is `after`, can
  /// be part of a plan within the limit.
  bool MayPay(double seconds, AxisSet axes, const CoarseState& after) {
    const double total = from_seconds_ + seconds + Charge(axes);
    if (total > limit_) return false;
    const CoarseSearch::Node* found = coarse_search_.Find(after);
    return found != nullptr && IsWithin(total + found->rest);
  }
  bool IsWithin(double total) {
    if (total <= limit_) return true;
    beyond_ = std::min(beyond_, total);
    return false;
  }
  /// Whether `settled` can be as in the target after a step that takes `leaving` from where they
  /// are.
  bool CanSettle(AxisSet leaving, AxisSet settled) const {
    return (blocked_by_[settled] & ~leaving) == 0 &&
           coarse_search_.IsClosed((coarse_.settled & ~leaving) | settled);
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
  int64_t ElementsOf(const PlanParts& parts) const;
  double Charge(AxisSet axes) const { return kStepSeconds + kAxisSeconds * costs_->NumAxes(axes); }
  /// Notes the way to the state that is made by a step over `axes` from the one that is expanded.
  void Relax(AxisSet axes, double seconds);
  std::vector<PlanState> PathTo(int index) const;

  const CostModel* costs_ = nullptr;
  AxisSet axes_ = 0;
  int num_dims_ = 0;
  PlanState source_, target_;
  PlanParts goal_;
  uint32_t ops_ = 0;
  CoarseSearch coarse_search_;
  NodeTable<Node> nodes_;
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
  ops_ = 0;
  for (const PlanState* state : {&source_, &target_}) {
    for (AxisSet rest = axes_; rest != 0; rest &= rest - 1) {
      const int axis = std::countr_zero(rest);
      if (state->IsPartial(axis)) ops_ |= BitOf(state->PartialOp(axis));
    }
  }
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

void Search::AddSlices() {
  // The box after a slice is that of the coarse state, or larger.
  for (AxisSet axes = parts_.replicated; axes != 0; axes = (axes - 1) & parts_.replicated) {
    const double least = costs_->CopySeconds(from_elements_ / costs_->GroupSize(axes));
    const AxisSet target = axes & goal_.sharded;
    for (AxisSet settled = target;; settled = (settled - 1) & target) {
      const AxisSet moved = axes & ~settled;
      if (CanSettle(0, settled) && MayPay(least, axes, After(0, settled, moved))) {
        ForEachArrangement(0, settled, moved, [&] {
          const int64_t elements = ElementsOf(made_);
          if (costs_->Fits(from_elements_, elements)) Relax(axes, costs_->CopySeconds(elements));
        });
      }
      if (settled == 0) break;
    }
  }
}

void Search::AddMakePartials() {
  if (!costs_->Fits(from_elements_, from_elements_)) return;
  const double seconds = costs_->CopySeconds(from_elements_);
  uint32_t ops = ops_;
  if (parts_.partial != 0) ops = BitOf(from_.PartialOp(std::countr_zero(parts_.partial)));
  for (; ops != 0; ops &= ops - 1) {
    for (AxisSet axes = parts_.replicated; axes != 0; axes = (axes - 1) & parts_.replicated) {
      made_ = parts_;
      made_state_ = from_;
      made_.partial |= axes;
      made_.replicated &= ~axes;
      for (AxisSet rest = axes; rest != 0; rest &= rest - 1) {
        made_state_.SetPartial(std::countr_zero(rest),
                               static_cast<ReduceOp>(std::countr_zero(ops)));
      }
      Relax(axes, seconds);
    }
  }
}

void Search::AddAllGathers() {
  for (AxisSet axes = parts_.sharded; axes != 0; axes = (axes - 1) & parts_.sharded) {
    const double seconds = costs_->AllGatherSeconds(axes, from_elements_);
    if (!MayPay(seconds, axes, After(axes, 0, 0)) || !IsInner(axes)) continue;
    ForEachArrangement(axes, 0, 0, [&] {
      if (costs_->Fits(from_elements_, ElementsOf(made_))) Relax(axes, seconds);
    });
  }
}

void Search::AddAllReduces() {
  if (!costs_->Fits(from_elements_, from_elements_)) return;
  for (AxisSet axes = parts_.partial; axes != 0; axes = (axes - 1) & parts_.partial) {
    const double seconds = costs_->AllReduceSeconds(axes, from_elements_);
    if (MayPay(seconds, axes, After(axes, 0, 0)))
      ForEachArrangement(axes, 0, 0, [&] { Relax(axes, seconds); });
  }
}

void Search::AddReduceScatters() {
  for (AxisSet axes = parts_.partial; axes != 0; axes = (axes - 1) & parts_.partial) {
    const double least =
        costs_->ReduceScatterSeconds(axes, from_elements_ / costs_->GroupSize(axes));
    const AxisSet target = axes & goal_.sharded;
    for (AxisSet settled = target;; settled = (settled - 1) & target) {
      const AxisSet moved = axes & ~settled;
      if (CanSettle(0, settled) && MayPay(least, axes, After(axes, settled, moved))) {
        ForEachArrangement(axes, settled, moved, [&] {
          const int64_t elements = ElementsOf(made_);
          if (costs_->Fits(from_elements_, elements))
            Relax(axes, costs_->ReduceScatterSeconds(axes, elements));
        });
      }
      if (settled == 0) break;
    }
  }
}

void Search::AddAllToAlls() {
  const AxisSet movable = parts_.sharded | parts_.replicated;
  for (AxisSet axes = movable; axes != 0; axes = (axes - 1) & movable) {
    const AxisSet sharded = axes & parts_.sharded;
    if (sharded == 0 || !IsInner(axes)) continue;
    if (from_seconds_ + costs_->AllToAllSeconds(axes, 0, from_elements_) > limit_) continue;
    for (AxisSet replicated = sharded;; replicated = (replicated - 1) & sharded) {
      if (replicated != axes) {
        const double seconds = costs_->AllToAllSeconds(axes, replicated, from_elements_);
        // What splits as in the target cannot move to there.
        const AxisSet target = axes & ~replicated & goal_.sharded & ~AxisSet{coarse_.settled};
        for (AxisSet settled = target;; settled = (settled - 1) & target) {
          if (CanSettle(axes, settled) &&
              MayPay(seconds, axes, After(axes, settled, axes & ~replicated & ~settled))) {
            AddAllToAll(axes, replicated, settled, seconds);
          }
          if (settled == 0) break;
        }
      }
      if (replicated == 0) break;
    }
  }
}

void Search::AddAllToAll(AxisSet axes, AxisSet replicated, AxisSet settled, double seconds) {
  ForEachArrangement(axes, settled, axes & ~replicated & ~settled, [&] {
    for (int dim = 0; dim < num_dims_; ++dim) {
      // Where the outermost of the splits stays, the same is done by fewer axes.
      const int kept = num_kept_[dim];
      if (parts_.num_splits[dim] > kept && made_.num_splits[dim] > kept &&
          parts_.splits[dim][kept] == made_.splits[dim][kept]) {
        return;
      }
    }
    if (costs_->Fits(from_elements_, ElementsOf(made_))) Relax(axes, seconds);
  });
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
  AddSlices();
  AddMakePartials();
  AddAllGathers();
  AddAllReduces();
  AddReduceScatters();
  AddAllToAlls();
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

std::vector<PlanState> Search::Run() {
  const double least = coarse_search_.Run();
  expanded_ = 0;
  found_ = -1;
  if (least == kInfinite) return {};
  double limit = least * kRounding;
  RunWithin(limit);
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
  static thread_local Search search;
  search.Start(source, target, costs);
  return search.Run();
}

}  // namespace shardmesh::internal
