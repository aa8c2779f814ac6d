// SPDX-License-Identifier: Apache-2.0
//
// Propagate and AllowedChoices of rule.h: the search over what each mesh axis does.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/rule.h"

namespace shardmesh {
namespace {

constexpr int kMaxAxes = MeshShape::kMaxAxes;

int DimOf(const Rule::FactorOfDim& dims, int factor) {
  auto found = std::find(dims.begin(), dims.end(), factor);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

/// Those of sums first.
std::vector<Rule::Passage> Passages(const Rule& rule) {
  std::vector<Rule::Passage> passages;
  for (const uint32_t set : rule.linear) passages.push_back({set, ReduceOp::kSum, ReduceOp::kSum});
  passages.insert(passages.end(), rule.passages.begin(), rule.passages.end());
  return passages;
}

/// What one mesh axis does.
struct Choice {
  enum class Kind { kShard, kPass, kReplicate };
  Kind kind = Kind::kReplicate;
  int index = 0;          // The factor, or the index in Passages.
  int64_t moved = 0;      // Elements of the operands that do not stay as they are on the axis.
  bool stays = true;      // No operand moves.
  int output_shards = 0;  // Results that it shards.
  absl::InlinedVector<Placement, 4> inputs;
  /// For each operand: which of the placements that the choices of the axis give it.
  absl::InlinedVector<uint8_t, 4> which_inputs;
};
using Choices = std::array<std::vector<Choice>, kMaxAxes>;

/// A choice for each axis, and what is known about it before its layouts are made.
struct Combination {
  std::array<uint8_t, kMaxAxes> chosen{};
  int order = 0;
  double bound = 0;   // What all moves cost at least.
  int64_t moved = 0;  // Elements of operands, once per axis on which they do not stay.
};

/// The lower bounds of one operand's moves, by the placements that it is moved to; those that are
/// not known yet are negative.
struct BoundTable {
  std::array<int, kMaxAxes> strides{};
  std::vector<double> bounds;
};

class Propagator {
 public:
  Propagator(std::string_view op, const Rule& rule, std::span<const Layout> inputs,
             std::span<const Dims> output_shapes, const MovePrice& price, const MoveBound& bound)
      : op_(op),
        rule_(rule),
        passages_(Passages(rule)),
        inputs_(inputs),
        output_shapes_(output_shapes),
        price_(price),
        bound_(bound),
        mesh_(Validate()),
        num_axes_(mesh_.num_axes()) {
    FindChoices();
    FindAlike();
  }

  Propagation Run() {
    // If every axis has a choice without moves, no other choice is cheaper.
    bool can_stay = true;
    for (int axis = 0; axis < num_axes_; ++axis) {
      can_stay = can_stay && std::any_of(choices_[axis].begin(), choices_[axis].end(),
                                         [](const Choice& choice) { return choice.stays; });
    }
    if (can_stay) Search(/*only_staying=*/true);
    if (!can_stay || best_.has_moves || !found_) Search(/*only_staying=*/false);
    if (!found_) {
      ThrowInvalid(op_, ": no choice of layouts fits rule \"", rule_.ToString(), "\"");
    }
    return std::move(best_);
  }

  std::vector<Propagation> List() {
    std::vector<Propagation> all;
    for (const Combination& combination : Combinations(/*only_staying=*/false)) {
      found_ = false;
      Evaluate(combination);
      if (found_) all.push_back(std::move(best_));
    }
    std::stable_sort(all.begin(), all.end(), [](const Propagation& a, const Propagation& b) {
      return a.seconds < b.seconds;
    });
    return all;
  }

 private:
  const MeshShape& Validate() {
    if (inputs_.empty() || inputs_.size() != rule_.inputs.size() ||
        output_shapes_.size() != rule_.outputs.size()) {
      ThrowInvalid(op_, ": ", inputs_.size(), " operands and ", output_shapes_.size(),
                   " results do not fit rule \"", rule_.ToString(), "\"");
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!(inputs_[i].mesh() == inputs_[0].mesh())) {
        ThrowInvalid(op_, ": operands are on different meshes: ", inputs_[0].ToString(), " and ",
                     inputs_[i].ToString());
      }
      if (inputs_[i].global_shape().size() != static_cast<int>(rule_.inputs[i].size())) {
        ThrowInvalid(op_, ": operand ", i, " ", inputs_[i].ToString(), " has not the ",
                     rule_.inputs[i].size(), " dims of rule \"", rule_.ToString(), "\"");
      }
    }
    return inputs_[0].mesh();
  }

  // Choices that can be cheapest: those that match the current placement of some operand, and
  // replicate.
  void FindChoices() {
    for (int axis = 0; axis < num_axes_; ++axis) {
      if (mesh_.size(axis) > 1) {
        for (size_t factor = 0; factor < rule_.factors.size(); ++factor) {
          if (rule_.factors[factor].whole) continue;
          bool plausible = false;
          for (size_t i = 0; i < inputs_.size(); ++i) {
            plausible |= !inputs_[i].placement(axis).IsReplicate() &&
                         DimOf(rule_.inputs[i], static_cast<int>(factor)) >= 0;
          }
          if (plausible) AddChoice(axis, Choice::Kind::kShard, static_cast<int>(factor));
        }
        for (size_t p = 0; p < passages_.size(); ++p) {
          bool plausible = false;
          for (size_t i = 0; i < inputs_.size(); ++i) {
            plausible |= ((passages_[p].operands >> i) & 1u) != 0 &&
                         inputs_[i].placement(axis) == Partial(passages_[p].from);
          }
          if (plausible) AddChoice(axis, Choice::Kind::kPass, static_cast<int>(p));
        }
      }
      AddChoice(axis, Choice::Kind::kReplicate, 0);
    }
    bounds_.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      int size = 1;
      for (int axis = 0; axis < num_axes_; ++axis) {
        bounds_[i].strides[axis] = size;
        size *= NumberPlacements(axis, i);
      }
      bounds_[i].bounds.assign(bound_ ? size : 0, -1.0);
    }
  }

  void AddChoice(int axis, Choice::Kind kind, int index) {
    Choice choice;
    choice.kind = kind;
    choice.index = index;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Placement &before = inputs_[i].placement(axis), after = InputPlacement(choice, i);
      choice.inputs.push_back(after);
      if (mesh_.size(axis) == 1 || before == after) continue;
      choice.stays = false;
      if (!before.IsReplicate()) choice.moved += inputs_[i].global_shape().NumElements();
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i)
      choice.output_shards += OutputPlacement(choice, i).IsShard() ? 1 : 0;
    if (choices_[axis].size() > 0xff)
      ThrowInvalid(op_, ": too many choices by rule \"", rule_.ToString(), "\"");
    choices_[axis].push_back(std::move(choice));
  }

  /// How many placements the choices of an axis give an operand; fills in which of them.
  int NumberPlacements(int axis, size_t input) {
    absl::InlinedVector<Placement, 8> seen;
    for (Choice& choice : choices_[axis]) {
      const auto found = std::find(seen.begin(), seen.end(), choice.inputs[input]);
      choice.which_inputs.push_back(static_cast<uint8_t>(found - seen.begin()));
      if (found == seen.end()) seen.push_back(choice.inputs[input]);
    }
    return static_cast<int>(seen.size());
  }

  /// Operands of one layout that all choices treat alike are moved to the same layout. Their prices
  /// are asked for one after the other, the most of a kind first: where they cost more than their
  /// bound, others need not be planned.
  void FindAlike() {
    absl::InlinedVector<int, 8> num_alike(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      size_t first = 0;
      while (first < i && !IsAlike(first, i)) ++first;
      first_alike_.push_back(static_cast<int>(first));
      ++num_alike[first];
      price_order_.push_back(static_cast<int>(i));
    }
    const auto key = [&](int i) {
      return std::make_tuple(-num_alike[first_alike_[i]], first_alike_[i], i);
    };
    std::sort(price_order_.begin(), price_order_.end(),
              [&](int a, int b) { return key(a) < key(b); });
  }
  bool IsAlike(size_t a, size_t b) const {
    if (inputs_[a] != inputs_[b] || rule_.inputs[a] != rule_.inputs[b]) return false;
    return std::all_of(passages_.begin(), passages_.end(), [&](const Rule::Passage& passage) {
      return ((passage.operands >> a) & 1u) == ((passage.operands >> b) & 1u);
    });
  }

  Placement InputPlacement(const Choice& choice, size_t input) const {
    switch (choice.kind) {
      case Choice::Kind::kShard: {
        const int dim = DimOf(rule_.inputs[input], choice.index);
        return dim < 0 ? Replicate() : Shard(dim);
      }
      case Choice::Kind::kPass: {
        const Rule::Passage& passage = passages_[choice.index];
        return ((passage.operands >> input) & 1u) != 0 ? Partial(passage.from) : Replicate();
      }
      case Choice::Kind::kReplicate:
        break;
    }
    return Replicate();
  }

  Placement OutputPlacement(const Choice& choice, size_t output) const {
    switch (choice.kind) {
      case Choice::Kind::kShard: {
        const int dim = DimOf(rule_.outputs[output], choice.index);
        return dim < 0 ? Partial(rule_.reduction) : Shard(dim);
      }
      case Choice::Kind::kPass:
        return Partial(passages_[choice.index].to);
      case Choice::Kind::kReplicate:
        break;
    }
    return Replicate();
  }

  // By their bounds.
  std::vector<Combination> Combinations(bool only_staying) {
    std::vector<Combination> combinations(1), longer;
    for (int axis = 0; axis < num_axes_; ++axis) {
      const std::vector<Choice>& choices = choices_[axis];
      longer.clear();
      longer.reserve(combinations.size() * choices.size());
      for (const Combination& combination : combinations) {
        for (size_t i = 0; i < choices.size(); ++i) {
          if (only_staying && !choices[i].stays) continue;
          longer.push_back(combination);
          longer.back().chosen[axis] = static_cast<uint8_t>(i);
          longer.back().moved += choices[i].moved;
        }
      }
      std::swap(combinations, longer);
    }
    int order = 0;
    for (Combination& combination : combinations) {
      combination.order = order++;
      for (size_t i = 0; i < inputs_.size(); ++i) combination.bound += Bound(combination, i);
    }
    std::sort(combinations.begin(), combinations.end(),
              [](const Combination& a, const Combination& b) {
                return std::tie(a.bound, a.moved, a.order) < std::tie(b.bound, b.moved, b.order);
              });
    return combinations;
  }

  // Tries all combinations, those first that seem to cost least, so that few others are priced.
  void Search(bool only_staying) {
    // What the first search has found comes before anything equal of the second.
    if (found_) best_order_ = -1;
    for (const Combination& combination : Combinations(only_staying)) {
      if (found_ && combination.bound > Limit()) break;
      Evaluate(combination);
    }
  }

  const Choice& Chosen(const Combination& combination, int axis) const {
    return choices_[axis][combination.chosen[axis]];
  }

  /// The axes that shard `factor`, as bits.
  uint32_t AxesOf(const Combination& combination, int factor) const {
    uint32_t axes = 0;
    for (int axis = 0; axis < num_axes_; ++axis) {
      const Choice& choice = Chosen(combination, axis);
      if (mesh_.size(axis) > 1 && choice.kind == Choice::Kind::kShard && choice.index == factor)
        axes |= 1u << axis;
    }
    return axes;
  }

  /// Appends the axes that shard `factor`, outermost first: in the order of an operand that exactly
  /// these axes split, if there is one, else in mesh order.
  void AppendSplitOrder(uint32_t axes, int factor, AxisList& order) const {
    for (size_t i = 0; i < inputs_.size() && std::popcount(axes) > 1; ++i) {
      const int dim = DimOf(rule_.inputs[i], factor);
      if (dim < 0) continue;
      const AxisList splits = RealSplits(inputs_[i], dim);
      uint32_t set = 0;
      for (const int axis : splits) set |= 1u << axis;
      if (set != axes) continue;
      for (const int axis : splits) order.push_back(axis);
      return;
    }
    for (int axis = 0; axis < num_axes_; ++axis) {
      if (((axes >> axis) & 1u) != 0) order.push_back(axis);
    }
  }

  // The axes of more than one rank that split `dim`.
  AxisList RealSplits(const Layout& layout, int dim) const {
    AxisList axes;
    for (int axis : layout.SplitAxes(dim)) {
      if (mesh_.size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }

  bool Divides(int factor, uint32_t axes) const {
    int64_t shards = 1;
    for (int axis = 0; axis < num_axes_; ++axis) {
      if (((axes >> axis) & 1u) != 0) shards *= mesh_.size(axis);
    }
    return std::all_of(rule_.factors[factor].must_divide.begin(),
                       rule_.factors[factor].must_divide.end(),
                       [&](int64_t extent) { return extent % shards == 0; });
  }

  // `current` itself if only axes of size one would change.
  Layout Target(const Layout& current, const Placements& wanted, const AxisList& order) const {
    bool same = true;
    for (int axis = 0; axis < num_axes_; ++axis)
      same &= mesh_.size(axis) == 1 || current.placement(axis) == wanted[axis];
    // In the order of the splits of its dims, which is one for all of them.
    for (int dim = 0; same && dim < current.global_shape().size(); ++dim) {
      AxisList splits;
      for (int axis : order) {
        if (wanted[axis].IsShard(dim)) splits.push_back(axis);
      }
      same &= RealSplits(current, dim) == splits;
    }
    return same ? current : Layout::Make(mesh_, wanted, current.global_shape(), order);
  }

  // The axes that shard factors, factor by factor. Nothing if a factor cannot be shared so.
  std::optional<AxisList> FactorOrder(const Combination& combination) const {
    AxisList order;
    for (size_t i = 0; i < rule_.factors.size(); ++i) {
      const auto factor = static_cast<int>(i);
      const uint32_t axes = AxesOf(combination, factor);
      if (axes != 0 && !Divides(factor, axes)) return std::nullopt;
      AppendSplitOrder(axes, factor, order);
    }
    return order;
  }

  // A layout cannot have different Partial ops.
  bool MixesOps(const Combination& combination) const {
    const auto mixes = [&](const auto& placement_of) {
      std::optional<ReduceOp> op;
      for (int axis = 0; axis < num_axes_; ++axis) {
        const Placement placement = placement_of(Chosen(combination, axis));
        if (!placement.IsPartial()) continue;
        if (op && *op != placement.op()) return true;
        op = placement.op();
      }
      return false;
    };
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (mixes([&](const Choice& choice) { return choice.inputs[i]; })) return true;
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      if (mixes([&](const Choice& choice) { return OutputPlacement(choice, i); })) return true;
    }
    return false;
  }

  Placements Wanted(const Combination& combination, size_t input) const {
    Placements wanted(num_axes_);
    for (int axis = 0; axis < num_axes_; ++axis)
      wanted[axis] = Chosen(combination, axis).inputs[input];
    return wanted;
  }

  // A lower bound of the price of an operand's move; the same for many combinations.
  double Bound(const Combination& combination, size_t input) {
    if (!bound_) return 0;
    BoundTable& table = bounds_[input];
    int index = 0;
    for (int axis = 0; axis < num_axes_; ++axis)
      index += table.strides[axis] * Chosen(combination, axis).which_inputs[input];
    double& known = table.bounds[index];
    if (known < 0) {
      const Placements wanted = Wanted(combination, input);
      known = bound_(inputs_[input], {wanted.data(), wanted.size()}, static_cast<int>(input));
    }
    return known;
  }

  // What a combination may cost; bounds and prices are sums that may round differently.
  double Limit() const { return best_.seconds * (1 + 1e-9); }

  void Evaluate(const Combination& combination) {
    double rest = combination.bound;  // At least, of the operands that have no price yet.
    const std::optional<AxisList> order = FactorOrder(combination);
    if (!order || MixesOps(combination)) return;
    Propagation candidate;
    candidate.inputs.resize(inputs_.size());
    absl::InlinedVector<double, 8> seconds(inputs_.size());
    double total = 0;
    for (const int i : price_order_) {
      const int first = first_alike_[i];
      if (first < i) {
        candidate.inputs[i] = candidate.inputs[first];
      } else {
        const Placements wanted = Wanted(combination, i);
        candidate.inputs[i] = Target(inputs_[i], wanted, ShardingAxes(*order, wanted));
      }
      rest -= Bound(combination, i);
      if (candidate.inputs[i] == inputs_[i]) continue;
      candidate.has_moves = true;
      seconds[i] = price_(inputs_[i], candidate.inputs[i], i);
      total += seconds[i];
      if (found_ && total + rest > Limit()) return;
    }
    // In the order of the operands, so that sums of equal prices are equal.
    for (const double price : seconds) candidate.seconds += price;
    int sharded = 0;
    for (int axis = 0; axis < num_axes_; ++axis) sharded += Chosen(combination, axis).output_shards;
    const auto rank = [](double seconds, int sharded, int order) {
      return std::make_tuple(seconds, -sharded, order);
    };
    if (found_ && rank(candidate.seconds, sharded, combination.order) >=
                      rank(best_.seconds, best_sharded_, best_order_)) {
      return;
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      Placements made(num_axes_);
      for (int axis = 0; axis < num_axes_; ++axis)
        made[axis] = OutputPlacement(Chosen(combination, axis), i);
      candidate.outputs.push_back(
          Layout::Make(mesh_, made, output_shapes_[i], ShardingAxes(*order, made)));
    }
    best_ = std::move(candidate);
    best_sharded_ = sharded;
    best_order_ = combination.order;
    found_ = true;
  }

  static AxisList ShardingAxes(const AxisList& order, const Placements& placements) {
    AxisList axes;
    for (int axis : order) {
      if (placements[axis].IsShard()) axes.push_back(axis);
    }
    return axes;
  }

  const std::string op_;
  const Rule& rule_;
  const std::vector<Rule::Passage> passages_;
  const std::span<const Layout> inputs_;
  const std::span<const Dims> output_shapes_;
  const MovePrice& price_;
  const MoveBound& bound_;
  const MeshShape& mesh_;
  const int num_axes_;
  Choices choices_;
  std::vector<BoundTable> bounds_;                         // One per operand.
  absl::InlinedVector<int, 8> first_alike_, price_order_;  // Operands.
  Propagation best_;
  int best_sharded_ = 0;
  int best_order_ = 0;
  bool found_ = false;
};

}  // namespace

Propagation Propagate(std::string_view op, const Rule& rule, std::span<const Layout> inputs,
                      std::span<const Dims> output_shapes, const MovePrice& price,
                      const MoveBound& bound) {
  return Propagator(op, rule, inputs, output_shapes, price, bound).Run();
}

std::vector<Propagation> AllowedChoices(std::string_view op, const Rule& rule,
                                        std::span<const Layout> inputs,
                                        std::span<const Dims> output_shapes,
                                        const MovePrice& price) {
  return Propagator(op, rule, inputs, output_shapes, price, {}).List();
}

}  // namespace shardmesh
