// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/plan_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "shardmesh/base/check.h"

namespace shardmesh::internal {
namespace {

constexpr int kMaxAxes = MeshShape::kMaxAxes;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// More than the rounding of a sum of costs.
constexpr double kRounding = 1 + 1e-9;

/// A state taken apart.
struct Parts {
  AxisSet replicated = 0;
  AxisSet partial = 0;
  AxisSet sharded = 0;
  std::array<uint8_t, Dims::kMaxRank> num_splits{};
  std::array<std::array<uint8_t, kMaxAxes>, Dims::kMaxRank> splits;  // Outermost first.

  Parts(const PlanState& state, AxisSet axes) {
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      if (!Has(axes, axis)) continue;
      if (state.IsReplicate(axis)) replicated |= 1u << axis;
      if (state.IsPartial(axis)) partial |= 1u << axis;
      if (!state.IsShard(axis)) continue;
      sharded |= 1u << axis;
      ++num_splits[state.ShardDim(axis)];
      splits[state.ShardDim(axis)][state.Depth(axis)] = static_cast<uint8_t>(axis);
    }
  }
};

/// The nodes of a search, found by state.
class NodeTable {
 public:
  struct Node {
    PlanState state;
    double seconds;  // From the source, with the charge of each step.
    double rest;     // At least, to the target.
    int parent;
  };

  NodeTable() : slots_(256, -1) { nodes_.reserve(128); }

  Node& operator[](int index) { return nodes_[index]; }
  int size() const { return static_cast<int>(nodes_.size()); }

  /// The index of the node of `state`, -1 if there is none; it may be added next.
  int Find(const PlanState& state) {
    slot_ = SlotOf(state);
    return slots_[slot_];
  }
  int AddFound(const Node& node) {
    slots_[slot_] = size();
    nodes_.push_back(node);
    if (nodes_.size() * 2 > slots_.size()) Grow();
    return size() - 1;
  }

 private:
  size_t SlotOf(const PlanState& state) const {
    size_t slot = (state.Word() * 0x9e3779b97f4a7c15u) >> 32;
    while (true) {
      slot &= slots_.size() - 1;
      if (slots_[slot] < 0 || nodes_[slots_[slot]].state == state) return slot;
      ++slot;
    }
  }
  void Grow() {
    slots_.assign(slots_.size() * 4, -1);
    for (int i = 0; i < size(); ++i) slots_[SlotOf(nodes_[i].state)] = i;
  }

  std::vector<int> slots_;
  std::vector<Node> nodes_;
  size_t slot_ = 0;
};

class Search {
 public:
  Search(const PlanState& source, const PlanState& target, const CostModel& costs)
      : costs_(costs),
        axes_(costs.real_axes()),
        num_dims_(costs.shape().size()),
        source_(source),
        target_(target),
        goal_(target, axes_) {
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      for (const PlanState* state : {&source_, &target_}) {
        if (Has(axes_, axis) && state->IsPartial(axis)) ops_ |= BitOf(state->PartialOp(axis));
      }
    }
  }

  std::vector<PlanState> Run();

 private:
  struct Entry {
    double total;
    double rest;
    int node;
    bool operator<(const Entry& other) const {  // The top of the heap is the least.
      // Among totals that are nearly equal, the one that is nearest to the target: there are many
      // where axes or dims are alike.
      return std::make_tuple(static_cast<float>(total), rest, node) >
             std::make_tuple(static_cast<float>(other.total), other.rest, other.node);
    }
  };

  static uint32_t BitOf(ReduceOp op) { return 1u << static_cast<int>(op); }
  Work WorkOf(const Parts& parts, const PlanState& state) const;
  /// What is left to do after a step takes `axes` from where they are, of which it shards
  /// `sharded`.
  Work WorkAfter(AxisSet axes, AxisSet sharded) const {
    return {(work_.sharded & ~axes) | (sharded & ~goal_.sharded), work_.reduced & ~axes,
            work_.scattered & ~axes, work_.all_partial & ~axes,
            (work_.all_sharded & ~axes) | sharded};
  }
  /// Whether a step of at least `seconds`, with at least `work` after it, can be part of a plan as
  /// cheap as the best so far.
  bool MayPay(double seconds, const Work& work) const {
    const double left = best_ - (from_seconds_ + seconds + kStepSeconds);
    return left > 0 && MinRest(work, left / kRounding - 1e-7) < left;
  }

  /// Lowers best_ to the cost of some plain plans.
  void TryPlainPlans();
  void TryPlainPlan(AxisSet sliced, bool scatters);
  void Expand(int index);
  void AddSlices();
  void AddMakePartials();
  void AddAllGathers();
  void AddAllReduces();
  void AddReduceScatters();
  void AddAllToAlls();
  void AddAllToAll(AxisSet axes, AxisSet replicated, double seconds);
  /// Calls `fn` with every state in which the splits of `leaving` have gone from `from_`, and
  /// `axes` split any dims, in any order inside what is left.
  template <typename Fn>
  void ForEachArrangement(AxisSet leaving, AxisSet axes, const Fn& fn);
  template <typename Fn>
  void Arrange(AxisSet axes, const Fn& fn);
  /// Whether only axes of the set split a dim inside one of them.
  bool IsInner(AxisSet axes) const {
    for (AxisSet rest = axes & parts_.sharded; rest != 0; rest &= rest - 1) {
      if ((inside_[std::countr_zero(rest)] & ~axes) != 0) return false;
    }
    return true;
  }
  int64_t ElementsOf(const Parts& parts) const;
  double Charge(AxisSet axes) const { return kStepSeconds + kAxisSeconds * costs_.NumAxes(axes); }
  /// A lower bound of what is left, with the charges of its steps.
  double MinRest(const Work& work, double enough = 0) const {
    const AxisSet made = goal_.partial & ~(work.all_partial & ~work.reduced);
    const AxisSet moved = work.sharded | work.reduced | work.scattered;
    return costs_.MinSeconds(work, goal_.sharded, goal_.partial, enough) +
           kStepSeconds * ((made != 0 ? 1 : 0) + (moved != 0 ? 1 : 0)) +
           kAxisSeconds * (costs_.NumAxes(made) + costs_.NumAxes(moved));
  }
  /// Notes the way to `to` by a step over `axes` from the state that is expanded.
  void Relax(const Parts& parts, const PlanState& to, AxisSet axes, double seconds);
  std::vector<PlanState> PathTo(int index);

  const CostModel& costs_;
  const AxisSet axes_;
  const int num_dims_;
  const PlanState source_, target_;
  const Parts goal_;
  uint32_t ops_ = 0;
  NodeTable nodes_;
  std::vector<Entry> queue_;
  double best_ = kInfinite;  // Of the plans found.
  int widest_dim_ = 0;

  // The state that is expanded.
  int from_index_ = 0;
  PlanState from_ = source_;
  Parts parts_ = Parts(source_, axes_);
  std::array<AxisSet, kMaxAxes> inside_;  // The splits inside that of an axis.
  Work work_;
  double from_seconds_ = 0;
  int64_t from_elements_ = 0;

  // The arrangement that is made.
  Parts made_ = parts_;
  PlanState made_state_ = source_;
  std::array<uint8_t, Dims::kMaxRank> num_kept_{};
};

Work Search::WorkOf(const Parts& parts, const PlanState& state) const {
  Work work;
  work.all_partial = parts.partial;
  work.all_sharded = parts.sharded;
  for (AxisSet rest = parts.partial; rest != 0; rest &= rest - 1) {
    const int axis = std::countr_zero(rest);
    if (Has(goal_.sharded, axis)) {
      work.scattered |= 1u << axis;
    } else if (!target_.IsPartial(axis) || target_.PartialOp(axis) != state.PartialOp(axis)) {
      work.reduced |= 1u << axis;
    }
  }
  // A split stays if all splits outside it are as in the target, and none otherwise.
  for (int dim = 0; dim < num_dims_; ++dim) {
    const int count = parts.num_splits[dim];
    int depth = 0;
    while (depth < count && depth < goal_.num_splits[dim] &&
           parts.splits[dim][depth] == goal_.splits[dim][depth]) {
      ++depth;
    }
    for (; depth < count; ++depth) work.sharded |= 1u << parts.splits[dim][depth];
  }
  return work;
}

int64_t Search::ElementsOf(const Parts& parts) const {
  int64_t elements = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    AxisSet splits = 0;
    for (int depth = 0; depth < parts.num_splits[dim]; ++depth)
      splits |= 1u << parts.splits[dim][depth];
    elements *= costs_.Extent(dim, splits);
  }
  return elements;
}

template <typename Fn>
void Search::Arrange(AxisSet axes, const Fn& fn) {
  if (axes == 0) {
    for (int dim = 0; dim < num_dims_; ++dim) {
      for (int depth = num_kept_[dim]; depth < made_.num_splits[dim]; ++depth)
        made_state_.SetShard(made_.splits[dim][depth], dim, depth);
    }
    fn();
    return;
  }
  const auto axis = static_cast<uint8_t>(std::countr_zero(axes));
  for (int dim = 0; dim < num_dims_; ++dim) {
    auto& splits = made_.splits[dim];
    uint8_t& count = made_.num_splits[dim];
    // At each depth, from the innermost outwards to the splits that are kept.
    int depth = count++;
    splits[depth] = axis;
    Arrange(axes & (axes - 1), fn);
    for (; depth > num_kept_[dim]; --depth) {
      std::swap(splits[depth - 1], splits[depth]);
      Arrange(axes & (axes - 1), fn);
    }
    --count;
    for (; depth < count; ++depth) splits[depth] = splits[depth + 1];
  }
}

template <typename Fn>
void Search::ForEachArrangement(AxisSet leaving, AxisSet axes, const Fn& fn) {
  made_ = parts_;
  made_state_ = from_;
  for (int dim = 0; dim < num_dims_; ++dim) {
    uint8_t& count = made_.num_splits[dim];
    while (count > 0 && Has(leaving, made_.splits[dim][count - 1])) --count;
  }
  num_kept_ = made_.num_splits;
  for (AxisSet rest = leaving; rest != 0; rest &= rest - 1)
    made_state_.SetReplicate(std::countr_zero(rest));
  made_.sharded = (made_.sharded & ~leaving) | axes;
  made_.partial &= ~axes;
  made_.replicated = axes_ & ~made_.sharded & ~made_.partial;
  Arrange(axes, fn);
}

void Search::Relax(const Parts& parts, const PlanState& to, AxisSet axes, double seconds) {
  const double total = from_seconds_ + seconds + Charge(axes);
  int found = nodes_.Find(to);
  if (found >= 0) {
    NodeTable::Node& node = nodes_[found];
    if (node.seconds <= total) return;
    node.seconds = total;
    node.parent = from_index_;
  } else {
    const double rest = to == target_ ? 0 : MinRest(WorkOf(parts, to));
    if (total + rest >= best_) return;
    found = nodes_.AddFound({to, total, rest, from_index_});
  }
  if (to == target_) best_ = std::min(best_, total);
  queue_.push_back({total + nodes_[found].rest, nodes_[found].rest, found});
  std::push_heap(queue_.begin(), queue_.end());
}

void Search::AddSlices() {
  for (AxisSet axes = parts_.replicated; axes != 0; axes = (axes - 1) & parts_.replicated) {
    const double least = costs_.CopySeconds(from_elements_ / costs_.GroupSize(axes));
    if (!MayPay(least, WorkAfter(axes, axes))) continue;
    ForEachArrangement(0, axes, [&] {
      const int64_t elements = ElementsOf(made_);
      if (costs_.Fits(from_elements_, elements))
        Relax(made_, made_state_, axes, costs_.CopySeconds(elements));
    });
  }
}

void Search::AddMakePartials() {
  if (!costs_.Fits(from_elements_, from_elements_)) return;
  const double seconds = costs_.CopySeconds(from_elements_);
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
      Relax(made_, made_state_, axes, seconds);
    }
  }
}

void Search::AddAllGathers() {
  for (AxisSet axes = parts_.sharded; axes != 0; axes = (axes - 1) & parts_.sharded) {
    if (!IsInner(axes)) continue;
    const double seconds = costs_.AllGatherSeconds(axes, from_elements_);
    if (!MayPay(seconds, WorkAfter(axes, 0))) continue;
    ForEachArrangement(axes, 0, [&] {
      if (costs_.Fits(from_elements_, ElementsOf(made_))) Relax(made_, made_state_, axes, seconds);
    });
  }
}

void Search::AddAllReduces() {
  if (!costs_.Fits(from_elements_, from_elements_)) return;
  for (AxisSet axes = parts_.partial; axes != 0; axes = (axes - 1) & parts_.partial) {
    const double seconds = costs_.AllReduceSeconds(axes, from_elements_);
    if (!MayPay(seconds, WorkAfter(axes, 0))) continue;
    made_ = parts_;
    made_state_ = from_;
    made_.partial &= ~axes;
    made_.replicated |= axes;
    for (AxisSet rest = axes; rest != 0; rest &= rest - 1)
      made_state_.SetReplicate(std::countr_zero(rest));
    Relax(made_, made_state_, axes, seconds);
  }
}

void Search::AddReduceScatters() {
  for (AxisSet axes = parts_.partial; axes != 0; axes = (axes - 1) & parts_.partial) {
    const double least = costs_.ReduceScatterSeconds(axes, from_elements_ / costs_.GroupSize(axes));
    if (!MayPay(least, WorkAfter(axes, axes))) continue;
    ForEachArrangement(0, axes, [&] {
      const int64_t elements = ElementsOf(made_);
      if (!costs_.Fits(from_elements_, elements)) return;
      Relax(made_, made_state_, axes, costs_.ReduceScatterSeconds(axes, elements));
    });
  }
}

void Search::AddAllToAlls() {
  const AxisSet movable = parts_.sharded | parts_.replicated;
  for (AxisSet axes = movable; axes != 0; axes = (axes - 1) & movable) {
    const AxisSet sharded = axes & parts_.sharded;
    if (sharded == 0 || !IsInner(axes)) continue;
    for (AxisSet replicated = sharded;; replicated = (replicated - 1) & sharded) {
      if (replicated != axes) {
        const double seconds = costs_.AllToAllSeconds(axes, replicated, from_elements_);
        if (MayPay(seconds, WorkAfter(axes, axes & ~replicated)))
          AddAllToAll(axes, replicated, seconds);
      }
      if (replicated == 0) break;
    }
  }
}

void Search::AddAllToAll(AxisSet axes, AxisSet replicated, double seconds) {
  ForEachArrangement(axes & parts_.sharded, axes & ~replicated, [&] {
    for (int dim = 0; dim < num_dims_; ++dim) {
      // Where the outermost of the splits stays, the same is done by fewer axes.
      const int kept = num_kept_[dim];
      if (parts_.num_splits[dim] > kept && made_.num_splits[dim] > kept &&
          parts_.splits[dim][kept] == made_.splits[dim][kept]) {
        return;
      }
    }
    if (costs_.Fits(from_elements_, ElementsOf(made_))) Relax(made_, made_state_, axes, seconds);
  });
}

void Search::Expand(int index) {
  from_index_ = index;
  from_ = nodes_[index].state;
  from_seconds_ = nodes_[index].seconds;
  parts_ = Parts(from_, axes_);
  from_elements_ = ElementsOf(parts_);
  work_ = WorkOf(parts_, from_);
  for (int dim = 0; dim < num_dims_; ++dim) {
    AxisSet inside = 0;
    for (int depth = parts_.num_splits[dim]; depth-- > 0;) {
      inside_[parts_.splits[dim][depth]] = inside;
      inside |= 1u << parts_.splits[dim][depth];
    }
  }
  AddSlices();
  AddMakePartials();
  AddAllGathers();
  AddAllReduces();
  AddReduceScatters();
  AddAllToAlls();
}

/// Slice `sliced`, scatter or all-reduce what is Partial, exchange, and make Partial.
void Search::TryPlainPlan(AxisSet sliced, bool scatters) {
  PlanState state = source_;
  double total = 0;
  int64_t elements = from_elements_;
  std::array<uint8_t, Dims::kMaxRank> num_splits = parts_.num_splits;
  const auto step_to = [&](const PlanState& to) {
    if (to == state) return;
    const AxisSet axes = SetOf(ChangedAxes(state, to));
    const int64_t after = costs_.Elements(to);
    if (!costs_.Fits(elements, after)) total = kInfinite;
    total += costs_.Seconds(StepKindOf(axes, state, to), axes, state, to) + Charge(axes);
    state = to;
    elements = after;
  };
  const auto shard = [&](AxisSet axes) {
    PlanState to = state;
    // The target's splits in its order; others split the first dim of the largest extent.
    for (int dim = 0; dim < num_dims_; ++dim) {
      for (int depth = 0; depth < goal_.num_splits[dim]; ++depth) {
        const int axis = goal_.splits[dim][depth];
        if (Has(axes, axis)) to.SetShard(axis, dim, num_splits[dim]++);
      }
    }
    for (AxisSet rest = axes & ~goal_.sharded; rest != 0; rest &= rest - 1)
      to.SetShard(std::countr_zero(rest), widest_dim_, num_splits[widest_dim_]++);
    step_to(to);
  };
  if (num_dims_ > 0 && sliced != 0) shard(sliced);
  const AxisSet scattered = work_.scattered | (scatters ? work_.reduced : 0);
  if (scattered != 0 && num_dims_ > 0) shard(scattered);
  PlanState to = state;
  for (AxisSet rest = work_.reduced & ~scattered; rest != 0; rest &= rest - 1)
    to.SetReplicate(std::countr_zero(rest));
  step_to(to);
  to = target_;
  const AxisSet made = goal_.partial & ~(work_.all_partial & ~work_.reduced);
  for (AxisSet rest = made; rest != 0; rest &= rest - 1) to.SetReplicate(std::countr_zero(rest));
  step_to(to);
  step_to(target_);
  // The search has to find a way of the same cost, which may differ by rounding.
  best_ = std::min(best_, total * kRounding);
}

void Search::TryPlainPlans() {
  parts_ = Parts(source_, axes_);
  work_ = WorkOf(parts_, source_);
  from_elements_ = ElementsOf(parts_);
  for (int dim = 1; dim < num_dims_; ++dim) {
    if (costs_.shape()[dim] > costs_.shape()[widest_dim_]) widest_dim_ = dim;
  }
  const AxisSet useful = parts_.replicated & goal_.sharded;
  for (AxisSet sliced : {AxisSet{0}, useful, parts_.replicated & ~goal_.sharded}) {
    TryPlainPlan(sliced, /*scatters=*/true);
    if (work_.reduced != 0) TryPlainPlan(sliced, /*scatters=*/false);
  }
}

std::vector<PlanState> Search::PathTo(int index) {
  std::vector<PlanState> path;
  for (; index >= 0; index = nodes_[index].parent) path.push_back(nodes_[index].state);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<PlanState> Search::Run() {
  TryPlainPlans();
  nodes_.Find(source_);
  queue_.push_back({0, 0, nodes_.AddFound({source_, 0, 0, -1})});
  for (int expanded = 0; !queue_.empty() && expanded < kMaxExpanded;) {
    const Entry entry = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end());
    queue_.pop_back();
    const NodeTable::Node& node = nodes_[entry.node];
    // Older and dearer ways, and those that the best plan has overtaken.
    if (entry.total > node.seconds + node.rest || entry.total >= best_) continue;
    Expand(entry.node);
    ++expanded;
  }
  const int found = nodes_.Find(target_);
  return found >= 0 ? PathTo(found) : std::vector<PlanState>();
}

}  // namespace

std::vector<PlanState> FindStates(const PlanState& source, const PlanState& target,
                                  const CostModel& costs) {
  if (source == target) return {source};
  return Search(source, target, costs).Run();
}

}  // namespace shardmesh::internal
