// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/rule.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Rule Run() {
    std::vector<std::string> clauses = absl::StrSplit(text_, ';');
    std::vector<std::string> sides = absl::StrSplit(clauses[0], "->");
    if (sides.size() != 2) Fail("expected exactly one '->'");
    rule_.inputs = Tensors(sides[0], /*may_add=*/true);
    rule_.outputs = Tensors(sides[1], /*may_add=*/false);
    for (size_t i = 1; i < clauses.size(); ++i) Clause(clauses[i]);
    return std::move(rule_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) {
    ThrowInvalid("sharding rule \"", text_, "\": ", parts...);
  }

  int FactorIndex(const std::string& name, bool may_add) {
    for (size_t i = 0; i < rule_.factors.size(); ++i) {
      if (rule_.factors[i].name == name) return static_cast<int>(i);
    }
    if (!may_add) Fail("no operand has factor '", name, "'");
    rule_.factors.push_back({name, false, {}});
    return static_cast<int>(rule_.factors.size()) - 1;
  }

  std::vector<Rule::FactorOfDim> Tensors(const std::string& side, bool may_add) {
    std::vector<Rule::FactorOfDim> tensors;
    for (const std::string& tensor : std::vector<std::string>(absl::StrSplit(side, ','))) {
      Rule::FactorOfDim dims;
      for (const std::string& name :
           std::vector<std::string>(absl::StrSplit(tensor, ' ', absl::SkipEmpty()))) {
        const int factor = name == "." ? Rule::kNotShardable : FactorIndex(name, may_add);
        // Sharding such a factor would shard two dims of one tensor along one axis.
        if (factor != Rule::kNotShardable &&
            std::find(dims.begin(), dims.end(), factor) != dims.end())
          Fail("factor '", name, "' stands twice in one tensor");
        dims.push_back(factor);
      }
      tensors.push_back(dims);
    }
    return tensors;
  }

  void Clause(const std::string& clause) {
    std::vector<std::string> words = absl::StrSplit(clause, ' ', absl::SkipEmpty());
    if (words.empty()) return;
    if (words[0] == "whole") {
      for (size_t i = 1; i < words.size(); ++i)
        rule_.factors[FactorIndex(words[i], false)].whole = true;
    } else if (words[0] == "linear" && words.size() > 1) {
      rule_.linear.push_back(Set(std::span(words).subspan(1)));
    } else if (words[0] == "pass" && words.size() > 2) {
      if (words[1] == "all") {
        rule_.PassAll(Set(std::span(words).subspan(2)));
        return;
      }
      const bool changes = !absl::ascii_isdigit(static_cast<unsigned char>(words[2][0]));
      if (changes && words.size() == 3) Fail("unknown clause '", clause, "'");
      rule_.Pass(Reduction(words[1]), Reduction(words[changes ? 2 : 1]),
                 Set(std::span(words).subspan(changes ? 3 : 2)));
    } else if (words[0] == "reduce" && words.size() == 2) {
      rule_.reduction = Reduction(words[1]);
    } else {
      Fail("unknown clause '", clause, "'");
    }
  }

  uint32_t Set(std::span<const std::string> words) {
    uint32_t set = 0;
    for (const std::string& word : words) {
      size_t operand = 0;
      if (!absl::SimpleAtoi(word, &operand) || operand >= rule_.inputs.size())
        Fail("'", word, "' is not an operand");
      set |= 1u << operand;
    }
    return set;
  }

  ReduceOp Reduction(const std::string& word) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (word == Name(op)) return op;
    }
    Fail("unknown reduction '", word, "'");
  }

  std::string text_;
  Rule rule_;
};

std::string TensorToString(const Rule& rule, const Rule::FactorOfDim& dims) {
  return absl::StrJoin(dims, " ", [&](std::string* out, int factor) {
    absl::StrAppend(out, factor == Rule::kNotShardable ? "." : rule.factors[factor].name);
  });
}

// The choice for one mesh axis.
struct Choice {
  enum class Kind { kShard, kPass, kReplicate };
  Kind kind;
  int index;  // The factor, or the index in Passages.
};

// Those of sums first.
std::vector<Rule::Passage> Passages(const Rule& rule) {
  std::vector<Rule::Passage> passages;
  for (const uint32_t set : rule.linear) passages.push_back({set, ReduceOp::kSum, ReduceOp::kSum});
  passages.insert(passages.end(), rule.passages.begin(), rule.passages.end());
  return passages;
}

int DimOf(const Rule::FactorOfDim& dims, int factor) {
  auto found = std::find(dims.begin(), dims.end(), factor);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

// For each operand a number per combination of placements; -1 if it is not known yet.
class BoundTable {
 public:
  explicit BoundTable(size_t num_inputs) : known_(num_inputs) {}
  double& At(size_t input, const Placements& placements) {
    uint64_t code = 0;
    for (const Placement& placement : placements) {
      const int kind = placement.IsShard() ? 1 + placement.dim() : placement.IsPartial() ? 15 : 0;
      code = code * 16 + static_cast<uint64_t>(kind);
    }
    return known_[input].try_emplace(code, -1.0).first->second;
  }

 private:
  std::vector<absl::flat_hash_map<uint64_t, double>> known_;
};

// The search over the choices of all mesh axes.
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
        bounds_(inputs.size()) {}

  Propagation Run() {
    // If every axis has a choice without moves, no other choice is cheaper.
    std::vector<std::vector<Choice>> still(mesh_.num_axes()), all(mesh_.num_axes());
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      all[axis] = Candidates(axis);
      for (const Choice& choice : all[axis]) {
        if (MovesNothing(choice, axis)) still[axis].push_back(choice);
      }
    }
    const bool can_stay =
        std::all_of(still.begin(), still.end(), [](const auto& list) { return !list.empty(); });
    if (can_stay) Search(still);
    if (!can_stay || best_.has_moves || !found_) Search(all);
    if (!found_) {
      ThrowInvalid(op_, ": no choice of layouts fits rule \"", rule_.ToString(), "\"");
    }
    return std::move(best_);
  }

  std::vector<Propagation> List() {
    std::vector<std::vector<Choice>> candidates;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) candidates.push_back(Candidates(axis));
    std::vector<Propagation> all;
    for (const Combination& combination : Combinations(candidates)) {
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
  std::vector<Choice> Candidates(int axis) const {
    std::vector<Choice> choices;
    if (mesh_.size(axis) > 1) {
      for (size_t factor = 0; factor < rule_.factors.size(); ++factor) {
        if (rule_.factors[factor].whole) continue;
        bool plausible = false;
        for (size_t i = 0; i < inputs_.size(); ++i) {
          plausible |=
              !inputs_[i].placement(axis).IsReplicate() && DimOf(rule_.inputs[i], factor) >= 0;
        }
        if (plausible) choices.push_back({Choice::Kind::kShard, static_cast<int>(factor)});
      }
      for (size_t p = 0; p < passages_.size(); ++p) {
        bool plausible = false;
        for (size_t i = 0; i < inputs_.size(); ++i) {
          plausible |= ((passages_[p].operands >> i) & 1u) != 0 &&
                       inputs_[i].placement(axis) == Partial(passages_[p].from);
        }
        if (plausible) choices.push_back({Choice::Kind::kPass, static_cast<int>(p)});
      }
    }
    choices.push_back({Choice::Kind::kReplicate, 0});
    return choices;
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

  bool MovesNothing(const Choice& choice, int axis) const {
    if (mesh_.size(axis) == 1) return true;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!(inputs_[i].placement(axis) == InputPlacement(choice, i))) return false;
    }
    return true;
  }

  // One choice per axis, and what is known about it before its layouts are made.
  struct Combination {
    std::vector<Choice> chosen;
    double bound = 0;   // What all moves cost at least.
    int64_t moved = 0;  // Elements of operands, once per axis on which they do not stay.
    int order = 0;
  };

  // By their bounds.
  std::vector<Combination> Combinations(const std::vector<std::vector<Choice>>& candidates) {
    std::vector<Combination> combinations = {{std::vector<Choice>(mesh_.num_axes())}};
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      std::vector<int64_t> moved;
      for (const Choice& choice : candidates[axis]) moved.push_back(MovedElements(choice, axis));
      std::vector<Combination> longer;
      longer.reserve(combinations.size() * candidates[axis].size());
      for (const Combination& combination : combinations) {
        for (size_t i = 0; i < candidates[axis].size(); ++i) {
          longer.push_back(combination);
          longer.back().chosen[axis] = candidates[axis][i];
          longer.back().moved += moved[i];
        }
      }
      combinations = std::move(longer);
    }
    int order = 0;
    for (Combination& combination : combinations) {
      combination.order = order++;
      for (size_t i = 0; i < inputs_.size(); ++i)
        combination.bound += Bound(Wanted(combination.chosen, i), i);
    }
    std::sort(combinations.begin(), combinations.end(),
              [](const Combination& a, const Combination& b) {
                return std::tie(a.bound, a.moved, a.order) < std::tie(b.bound, b.moved, b.order);
              });
    return combinations;
  }

  // Tries all combinations, those first that seem to cost least, so that few others are priced.
  void Search(const std::vector<std::vector<Choice>>& candidates) {
    // What the first search has found comes before anything equal of the second.
    if (found_) best_order_ = -1;
    for (const Combination& combination : Combinations(candidates)) {
      if (found_ && combination.bound > Limit()) break;
      Evaluate(combination);
    }
  }

  int64_t MovedElements(const Choice& choice, int axis) const {
    if (mesh_.size(axis) == 1) return 0;
    int64_t moved = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Placement& before = inputs_[i].placement(axis);
      if (!before.IsReplicate() && before != InputPlacement(choice, i))
        moved += inputs_[i].global_shape().NumElements();
    }
    return moved;
  }

  // The axes that shard `factor`, outermost first: in the order of an operand that exactly these
  // axes split, if there is one, else in mesh order.
  std::vector<int> SplitOrder(const std::vector<Choice>& chosen, int factor) const {
    std::vector<int> axes;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.size(axis) > 1 && chosen[axis].kind == Choice::Kind::kShard &&
          chosen[axis].index == factor) {
        axes.push_back(axis);
      }
    }
    if (axes.size() < 2) return axes;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const int dim = DimOf(rule_.inputs[i], factor);
      if (dim < 0) continue;
      const AxisList splits = RealSplits(inputs_[i], dim);
      const std::vector<int> order(splits.begin(), splits.end());
      std::vector<int> sorted = order;
      std::sort(sorted.begin(), sorted.end());
      if (sorted == axes) return order;
    }
    return axes;
  }

  // The axes of more than one rank that split `dim`.
  AxisList RealSplits(const Layout& layout, int dim) const {
    AxisList axes;
    for (int axis : layout.SplitAxes(dim)) {
      if (mesh_.size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }

  bool Divides(int factor, const std::vector<int>& axes) const {
    int64_t shards = 1;
    for (int axis : axes) shards *= mesh_.size(axis);
    return std::all_of(rule_.factors[factor].must_divide.begin(),
                       rule_.factors[factor].must_divide.end(),
                       [&](int64_t extent) { return extent % shards == 0; });
  }

  // `current` itself if only axes of size one would change.
  Layout Target(const Layout& current, const Placements& wanted, const AxisList& order) const {
    bool same = true;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      same &= mesh_.size(axis) == 1 || current.placement(axis) == wanted[axis];
    }
    const Layout target = Layout::Make(mesh_, wanted, current.global_shape(), order);
    for (int dim = 0; same && dim < current.global_shape().size(); ++dim) {
      same &= RealSplits(current, dim) == target.SplitAxes(dim);
    }
    return same ? current : target;
  }

  // The axes that shard factors, factor by factor. Nothing if a factor cannot be shared so.
  std::optional<AxisList> FactorOrder(const std::vector<Choice>& chosen) const {
    AxisList order;
    for (size_t factor = 0; factor < rule_.factors.size(); ++factor) {
      const std::vector<int> axes = SplitOrder(chosen, static_cast<int>(factor));
      if (!axes.empty() && !Divides(static_cast<int>(factor), axes)) return std::nullopt;
      order.insert(order.end(), axes.begin(), axes.end());
    }
    return order;
  }

  // A layout cannot have different Partial ops.
  bool MixesOps(const std::vector<Choice>& chosen) const {
    const auto mixes = [&](const auto& placement_of) {
      std::optional<ReduceOp> op;
      for (const Choice& choice : chosen) {
        const Placement placement = placement_of(choice);
        if (!placement.IsPartial()) continue;
        if (op && *op != placement.op()) return true;
        op = placement.op();
      }
      return false;
    };
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (mixes([&](const Choice& choice) { return InputPlacement(choice, i); })) return true;
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      if (mixes([&](const Choice& choice) { return OutputPlacement(choice, i); })) return true;
    }
    return false;
  }

  int NumSharded(const std::vector<Choice>& chosen) const {
    int sharded = 0;
    for (const Choice& choice : chosen) {
      for (size_t i = 0; i < rule_.outputs.size(); ++i)
        sharded += OutputPlacement(choice, i).IsShard() ? 1 : 0;
    }
    return sharded;
  }

  Placements Wanted(const std::vector<Choice>& chosen, size_t input) const {
    Placements wanted(mesh_.num_axes());
    for (int axis = 0; axis < mesh_.num_axes(); ++axis)
      wanted[axis] = InputPlacement(chosen[axis], input);
    return wanted;
  }

  // A lower bound of the price of an operand's move; the same for many combinations.
  double Bound(const Placements& wanted, size_t input) {
    if (!bound_) return 0;
    double& known = bounds_.At(input, wanted);
    if (known < 0) {
      known = bound_(inputs_[input], {wanted.data(), wanted.size()}, static_cast<int>(input));
    }
    return known;
  }

  // What a combination may cost; bounds and prices are sums that may round differently.
  double Limit() const { return best_.seconds * (1 + 1e-9); }

  void Evaluate(const Combination& combination) {
    const std::vector<Choice>& chosen = combination.chosen;
    double rest = combination.bound;  // At least, of the operands that have no price yet.
    const std::optional<AxisList> order = FactorOrder(chosen);
    if (!order || MixesOps(chosen)) return;
    Propagation candidate;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Placements wanted = Wanted(chosen, i);
      candidate.inputs.push_back(Target(inputs_[i], wanted, ShardingAxes(*order, wanted)));
      rest -= Bound(wanted, i);
      if (candidate.inputs[i] == inputs_[i]) continue;
      candidate.has_moves = true;
      candidate.seconds += price_(inputs_[i], candidate.inputs[i], static_cast<int>(i));
      if (found_ && candidate.seconds + rest > Limit()) return;
    }
    const int sharded = NumSharded(chosen);
    const auto rank = [](double seconds, int sharded, int order) {
      return std::make_tuple(seconds, -sharded, order);
    };
    if (found_ && rank(candidate.seconds, sharded, combination.order) >=
                      rank(best_.seconds, best_sharded_, best_order_)) {
      return;
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      Placements made(mesh_.num_axes());
      for (int axis = 0; axis < mesh_.num_axes(); ++axis)
        made[axis] = OutputPlacement(chosen[axis], i);
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

  std::string op_;
  const Rule& rule_;
  const std::vector<Rule::Passage> passages_;
  std::span<const Layout> inputs_;
  std::span<const Dims> output_shapes_;
  const MovePrice& price_;
  const MoveBound& bound_;
  const MeshShape& mesh_;
  BoundTable bounds_;
  Propagation best_;
  int best_sharded_ = 0;
  int best_order_ = 0;
  bool found_ = false;
};

}  // namespace

Rule Rule::Parse(std::string_view text) { return Parser(text).Run(); }

Rule& Rule::PassAll(uint32_t set) {
  linear.push_back(set);
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) Pass(op, set);
  return *this;
}

Rule& Rule::Pass(ReduceOp from, ReduceOp to, uint32_t set) {
  if (from == ReduceOp::kSum && to == ReduceOp::kSum) {
    linear.push_back(set);
  } else {
    passages.push_back({set, from, to});
  }
  return *this;
}

std::string Rule::ToString() const {
  const auto side = [&](const std::vector<FactorOfDim>& tensors) {
    return absl::StrJoin(tensors, ", ", [&](std::string* out, const FactorOfDim& dims) {
      absl::StrAppend(out, TensorToString(*this, dims));
    });
  };
  std::string text = absl::StrCat(side(inputs), " -> ", side(outputs));
  std::string whole;
  for (const Factor& factor : factors) {
    if (factor.whole) absl::StrAppend(&whole, " ", factor.name);
  }
  if (!whole.empty()) absl::StrAppend(&text, "; whole", whole);
  const auto append = [&](std::string_view clause, uint32_t set) {
    absl::StrAppend(&text, "; ", absl::string_view(clause.data(), clause.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (((set >> i) & 1u) != 0) absl::StrAppend(&text, " ", i);
    }
  };
  // A set through which all reductions pass.
  const auto passes_all = [&](uint32_t set) {
    int others = 0;
    for (const Passage& passage : passages)
      others += passage.operands == set && passage.from == passage.to ? 1 : 0;
    return others == 3 && std::find(linear.begin(), linear.end(), set) != linear.end();
  };
  for (const uint32_t set : linear) append(passes_all(set) ? "pass all" : "linear", set);
  for (const Passage& passage : passages) {
    if (passage.from == passage.to && passes_all(passage.operands)) continue;
    std::string clause = absl::StrCat("pass ", std::string(Name(passage.from)));
    if (passage.to != passage.from) absl::StrAppend(&clause, " ", std::string(Name(passage.to)));
    append(clause, passage.operands);
  }
  if (reduction != ReduceOp::kSum) {
    absl::StrAppend(&text, "; reduce ", std::string(Name(reduction)));
  }
  return text;
}

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
