// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/coarse_search.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace shardmesh::internal {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

AxisSet SplitsOf(const PlanParts& parts, int dim) {
  AxisSet splits = 0;
  for (int depth = 0; depth < parts.num_splits[dim]; ++depth)
    splits |= 1u << parts.splits[dim][depth];
  return splits;
}

uint8_t Bits(AxisSet set) { return static_cast<uint8_t>(set); }

}  // namespace

void CoarseSearch::Start(const PlanState& source, const PlanState& target, const CostModel& costs) {
  costs_ = &costs;
  num_dims_ = costs.shape().size();
  source_parts_ = PlanParts(source, costs.real_axes());
  target_parts_ = PlanParts(target, costs.real_axes());
  op_ = target_parts_.partial != 0   ? target.PartialOp(std::countr_zero(target_parts_.partial))
        : source_parts_.partial != 0 ? source.PartialOp(std::countr_zero(source_parts_.partial))
                                     : ReduceOp::kSum;
  foreign_op_ =
      source_parts_.partial != 0 ? source.PartialOp(std::countr_zero(source_parts_.partial)) : op_;
  has_foreign_ = foreign_op_ != op_;
  target_ = {.partial = Bits(target_parts_.partial), .settled = Bits(target_parts_.sharded)};
  source_ = Of(source_parts_, source);
  FillSets(source_parts_, target_parts_);
  nodes_.Clear();
  queue_.clear();
  steps_.clear();
  const int index = NodeOf(target_);
  nodes_[index].rest = 0;
  queue_.push_back({nodes_[index].before, nodes_[index].before, index});
}

CoarseState CoarseSearch::Of(const PlanParts& parts, const PlanState& state) const {
  CoarseState coarse;
  const bool is_foreign = has_foreign_ && parts.partial != 0 &&
                          state.PartialOp(std::countr_zero(parts.partial)) == foreign_op_;
  (is_foreign ? coarse.foreign : coarse.partial) = Bits(parts.partial);
  for (int dim = 0; dim < num_dims_; ++dim) {
    const int count = parts.num_splits[dim];
    if (count == 0) continue;
    const auto& splits = parts.splits[dim];
    const auto same = [&](const PlanParts& other) {
      const int most = std::min<int>(count, other.num_splits[dim]);
      int depth = 0;
      while (depth < most && splits[depth] == other.splits[dim][depth]) ++depth;
      return depth;
    };
    const int settled = same(target_parts_), original = same(source_parts_);
    for (int depth = 0; depth < count; ++depth) {
      uint8_t& set = depth < settled    ? coarse.settled
                     : depth < original ? coarse.original
                                        : coarse.moved;
      set |= Bits(1u << splits[depth]);
    }
  }
  return coarse;
}

void CoarseSearch::FillSets(const PlanParts& source, const PlanParts& target) {
  // By axis: what must be settled, or original, with it, and what must not be original.
  std::array<AxisSet, MeshShape::kMaxAxes> outside{}, blocked{}, original{}, needed{};
  for (int dim = 0; dim < num_dims_; ++dim) {
    source_splits_[dim] = SplitsOf(source, dim);
    target_splits_[dim] = SplitsOf(target, dim);
    AxisSet around = 0;
    for (int depth = 0; depth < target.num_splits[dim]; ++depth) {
      const int axis = target.splits[dim][depth];
      outside[axis] = around;
      if (!Has(source_.settled, axis)) blocked[axis] = source_splits_[dim] & source_.original;
      around |= 1u << axis;
    }
    around = 0;
    for (int depth = 0; depth < source.num_splits[dim]; ++depth) {
      const int axis = source.splits[dim][depth];
      original[axis] = around & source_.original;
      needed[axis] = around & source_.settled;
      around |= 1u << axis;
    }
  }
  const auto num_sets = AxisSet{1} << costs_->mesh().num_axes();
  for (AxisSet set = 0; set < num_sets; ++set) {
    source_dims_[set] = target_dims_[set] = 0;
    for (int dim = 0; dim < num_dims_; ++dim) {
      if ((source_splits_[dim] & set) != 0) source_dims_[set] |= Bits(1u << dim);
      if ((target_splits_[dim] & set) != 0) target_dims_[set] |= Bits(1u << dim);
    }
  }
  settled_sets_[0] = {.is_valid = true, .blocked = 0};
  original_sets_[0] = {.is_valid = true, .needed = 0};
  for (AxisSet set = 1; set < num_sets; ++set) {
    const int axis = std::countr_zero(set);
    const AxisSet rest = set & (set - 1);
    // All rules are about single axes: those of `rest` hold where the set is valid without `axis`,
    // but they may need `axis`. So they are looked at one by one.
    bool is_settled = (set & ~target_.settled) == 0, is_original = (set & ~source_.original) == 0;
    for (AxisSet each = set; each != 0; each &= each - 1) {
      is_settled = is_settled && (outside[std::countr_zero(each)] & ~set) == 0;
      is_original = is_original && (original[std::countr_zero(each)] & ~set) == 0;
    }
    settled_sets_[set] = {is_settled, settled_sets_[rest].blocked | blocked[axis]};
    original_sets_[set] = {is_original, original_sets_[rest].needed | needed[axis]};
  }
}

int64_t CoarseSearch::Elements(const CoarseState& state) const {
  int64_t elements = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    elements *= costs_->Extent(
        dim, (state.settled & target_splits_[dim]) | (state.original & source_splits_[dim]));
  }
  const int64_t parts = costs_->GroupSize(state.moved);
  return (elements + parts - 1) / parts;
}

double CoarseSearch::MinBefore(const CoarseState& state) const {
  const AxisSet source_partial = source_.any_partial();
  const AxisSet kept_partial =
      (source_.partial & state.partial) | (source_.foreign & state.foreign);
  const AxisSet sharded = state.sharded();
  Work work;
  work.all_partial = source_partial;
  work.all_sharded = source_.sharded();
  work.sharded = work.all_sharded & ~(state.original | (source_.settled & state.settled));
  work.scattered = source_partial & sharded;
  work.reduced = source_partial & ~kept_partial & ~sharded;
  const AxisSet made = state.any_partial() & ~kept_partial;
  const AxisSet moved = work.sharded | work.reduced | work.scattered;
  return costs_->MinSeconds(work, sharded, state.any_partial()) +
         kStepSeconds * ((made != 0 ? 1 : 0) + (moved != 0 ? 1 : 0)) +
         kAxisSeconds * (costs_->NumAxes(made) + costs_->NumAxes(moved));
}

int CoarseSearch::NodeOf(const CoarseState& state) {
  if (!IsValid(state)) return -1;
  const int found = nodes_.Find(state);
  if (found >= 0) return found;
  return nodes_.AddFound({state, kInfinite, MinBefore(state), Elements(state), false});
}

void CoarseSearch::Relax(int index, AxisSet axes, double seconds) {
  Node& node = nodes_[index];
  const double rest = to_rest_ + seconds + Charge(axes);
  steps_.push_back({rest, axes, to_index_, node.first_step});
  node.first_step = static_cast<int>(steps_.size()) - 1;
  if (rest >= node.rest) return;
  node.rest = rest;
  node.is_closed = false;
  queue_.push_back({rest + node.before, node.before, index});
  std::push_heap(queue_.begin(), queue_.end());
}

void CoarseSearch::AddSlices() {
  const AxisSet sliced = to_.settled | to_.moved;
  for (AxisSet axes = sliced; axes != 0; axes = (axes - 1) & sliced) {
    const int from = NodeOf(to_.Without(axes));
    if (from < 0 || !costs_->Fits(nodes_[from].elements, to_elements_)) continue;
    const AxisSet staying = to_.moved & ~axes;
    if (staying != 0 && !HasRoom(target_dims_[to_.settled & axes])) {
      const double seconds = costs_->AllToAllSeconds(axes | staying, 0, nodes_[from].elements);
      Relax(from, axes | staying, seconds);
      continue;
    }
    double seconds = costs_->CopySeconds(to_elements_);
    // An all-to-all that takes moved splits along may be cheaper where links are fast.
    if (staying != 0)
      seconds = std::min(seconds, costs_->AllToAllSeconds(axes, 0, nodes_[from].elements));
    Relax(from, axes, seconds);
  }
}

void CoarseSearch::AddMakePartials() {
  const AxisSet partial = to_.any_partial();
  if (partial == 0 || !costs_->Fits(to_elements_, to_elements_)) return;
  const double seconds = costs_->CopySeconds(to_elements_);
  for (AxisSet axes = partial; axes != 0; axes = (axes - 1) & partial)
    Relax(NodeOf(to_.Without(axes)), axes, seconds);
}

void CoarseSearch::AddReductions() {
  const auto add = [&](AxisSet axes, double seconds) {
    CoarseState before = to_.Without(axes);
    for (const bool is_foreign : {false, true}) {
      if (is_foreign ? !has_foreign_ || to_.partial != 0 : to_.foreign != 0) continue;
      CoarseState from = before;
      (is_foreign ? from.foreign : from.partial) |= Bits(axes);
      const int index = NodeOf(from);
      if (index >= 0 && costs_->Fits(nodes_[index].elements, to_elements_))
        Relax(index, axes, seconds);
    }
  };
  for (AxisSet axes = to_replicated_; axes != 0; axes = (axes - 1) & to_replicated_)
    add(axes, costs_->AllReduceSeconds(axes, to_elements_));
  const AxisSet scattered = to_.settled | to_.moved;
  for (AxisSet axes = scattered; axes != 0; axes = (axes - 1) & scattered) {
    if ((to_.moved & ~axes) == 0 || HasRoom(target_dims_[to_.settled & axes]))
      add(axes, costs_->ReduceScatterSeconds(axes, to_elements_));
  }
}

void CoarseSearch::AddMoves() {
  // What each axis may have been before, one axis after the other. What is Partial or original
  // afterwards was it before, too.
  const AxisSet free = costs_->real_axes() & ~(to_.any_partial() | to_.original);
  befores_.assign(1, {to_, 0});
  for (AxisSet rest = free; rest != 0; rest &= rest - 1) {
    const int axis = std::countr_zero(rest);
    const uint8_t bit = Bits(1u << axis);
    const size_t count = befores_.size();
    const auto add = [&](CoarseState value) {
      for (size_t i = 0; i < count; ++i) {
        const uint64_t others = befores_[i].state.Without(bit).Word();
        befores_.push_back(
            {std::bit_cast<CoarseState>(others | value.Word()), befores_[i].changed | bit});
      }
    };
    if (!Has(to_replicated_, axis)) add({});
    if (!Has(to_.settled, axis) && Has(target_.settled, axis)) add({.settled = bit});
    if (Has(source_.original, axis)) add({.original = bit});
    // A move from anywhere to anywhere changes nothing here, and costs no less than none.
    if (!Has(to_.moved, axis)) add({.moved = bit});
  }
  for (const Before& before : befores_) AddMove(before.changed, before.state);
}

void CoarseSearch::AddMove(AxisSet changed, const CoarseState& before) {
  if ((changed & before.sharded()) == 0) return;
  const int from = NodeOf(before);
  if (from < 0) return;
  const int64_t elements = nodes_[from].elements;
  if (!costs_->Fits(elements, to_elements_)) return;
  const AxisSet replicated = changed & to_replicated_;
  const AxisSet staying = before.moved & to_.moved;
  if (staying != 0 && !HasRoom(target_dims_[before.settled ^ to_.settled] |
                               source_dims_[before.original & ~to_.original])) {
    changed |= staying;
  }
  const double seconds = replicated == changed
                             ? costs_->AllGatherSeconds(changed, elements)
                             : costs_->AllToAllSeconds(changed, replicated, elements);
  Relax(from, changed, seconds);
}

void CoarseSearch::Expand(int index) {
  to_index_ = index;
  to_ = nodes_[index].state;
  to_rest_ = nodes_[index].rest;
  to_elements_ = nodes_[index].elements;
  to_replicated_ = costs_->real_axes() & ~to_.sharded() & ~to_.any_partial();
  AddSlices();
  AddMakePartials();
  AddReductions();
  AddMoves();
}

bool CoarseSearch::ExpandTop() {
  const Entry entry = queue_.front();
  std::pop_heap(queue_.begin(), queue_.end());
  queue_.pop_back();
  Node& node = nodes_[entry.node];
  if (node.is_closed || entry.total > node.rest + node.before) return false;
  node.is_closed = true;
  // No cheapest plan comes back to the source.
  if (node.state == source_) return true;
  Expand(entry.node);
  return false;
}

double CoarseSearch::Run() {
  while (!queue_.empty()) {
    if (ExpandTop()) return Find(source_)->rest;
  }
  return kInfinite;
}

void CoarseSearch::Extend(double limit) {
  while (!queue_.empty() && queue_.front().total <= limit) ExpandTop();
}

}  // namespace shardmesh::internal
