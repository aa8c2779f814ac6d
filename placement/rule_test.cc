// SPDX-License-Identifier: Apache-2.0
//
// The text form of rules, the choices that they allow on one axis (the table of rule.h), and that
// Propagate takes the cheapest of all combinations.
#include "shardmesh/placement/rule.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

// ---- text ---------------------------------------------------------------------------------------

TEST(Rule, ReadsAndPrintsItsText) {
  for (const char* text :
       {"b m k, b k n -> b m n; linear 0; linear 1", "i j, i j -> i j; linear 0 1", "i j -> i",
        "i j -> i; reduce max", "b s -> b s; whole s", "v h, b s -> b s h; linear 0", "i j -> i .",
        "i -> i, i", "a b c d -> a b c d; whole b d; linear 0; reduce min", "i . -> i",
        "i, i -> i; linear 0; pass max 0 1; pass min max 1", "i j -> j i; pass all 0",
        "i, i, i -> i; linear 0; pass all 1 2; pass product 0; reduce max"}) {
    const Rule rule = Rule::Parse(text);
    EXPECT_EQ(rule.ToString(), text);
    EXPECT_EQ(Rule::Parse(rule.ToString()).ToString(), text);
  }
  // Blanks do not matter, and scalars have no factors.
  EXPECT_EQ(Rule::Parse("  i   j ->i;whole  j ; linear 0").ToString(),
            "i j -> i; whole j; linear 0");
  EXPECT_EQ(Rule::Parse("i, -> i; linear 0 1").inputs[1].size(), 0u);
  EXPECT_EQ(Rule::Parse("i j ->").outputs[0].size(), 0u);
}

TEST(Rule, NamesWhatIsWrongInItsText) {
  struct Row {
    const char* text;
    const char* what;
  };
  for (const Row& row : std::vector<Row>{{"i j", "'->'"},
                                         {"i -> j -> k", "'->'"},
                                         {"i -> i; whole k", "'k'"},
                                         {"i -> i; linear 1", "'1'"},
                                         {"i -> i; linear x", "'x'"},
                                         {"i -> i; linear -1", "'-1'"},
                                         {"i -> i; pass max 1", "'1'"},
                                         {"i -> i; pass mean 0", "'mean'"},
                                         {"i -> i; pass max mean 0", "'mean'"},
                                         {"i -> i; pass max", "pass max"},
                                         {"i -> i; pass max min", "pass max min"},
                                         {"i -> i; pass all x", "'x'"},
                                         {"i -> i; reduce mean", "'mean'"},
                                         {"i -> i; reduce", "reduce"},
                                         {"i -> i; fast", "fast"},
                                         // A result cannot have a factor that no operand has.
                                         {"i -> i j", "'j'"},
                                         // Sharding it would shard two dims of one tensor.
                                         {"i i -> i", "'i'"},
                                         {"i -> i; linear", "linear"}}) {
    EXPECT_THAT(ErrorOf([&] { Rule::Parse(row.text); }),
                AllOf(HasSubstr(row.what), HasSubstr(row.text)))
        << row.text;
  }
}

// ---- choices on one axis ------------------------------------------------------------------------

double MoveSeconds(const Layout& from, const Layout& to, int) { return MakePlan(from, to).seconds; }

double MinMoveSeconds(const Layout& from, std::span<const Placement> to, int) {
  return MinSeconds(from, to);
}

// Shapes in which factor number f has extent `extents[f]` and a whole dim 7.
std::vector<Dims> ShapesOf(const std::vector<Rule::FactorOfDim>& tensors,
                           const std::vector<int64_t>& extents) {
  std::vector<Dims> shapes;
  for (const Rule::FactorOfDim& tensor : tensors) {
    shapes.emplace_back();
    for (const int factor : tensor)
      shapes.back().push_back(factor == Rule::kNotShardable ? 7 : extents[factor]);
  }
  return shapes;
}

struct Problem {
  Problem(std::string_view text, const MeshShape& mesh, std::vector<int64_t> factor_extents = {})
      : rule(Rule::Parse(text)), mesh(mesh), extents(std::move(factor_extents)) {
    while (extents.size() < rule.factors.size()) extents.push_back(12);
    output_shapes = ShapesOf(rule.outputs, extents);
  }
  std::vector<Layout> Layouts(const std::vector<std::vector<Placement>>& placements) const {
    const std::vector<Dims> shapes = ShapesOf(rule.inputs, extents);
    std::vector<Layout> layouts;
    for (size_t i = 0; i < shapes.size(); ++i)
      layouts.push_back(Layout::Make(mesh, std::span<const Placement>(placements[i]), shapes[i]));
    return layouts;
  }
  Propagation Solve(const std::vector<Layout>& inputs) const {
    const Propagation result = Propagate("op", rule, inputs, output_shapes, MoveSeconds);
    // Bounds spare prices and change nothing.
    const Propagation bounded =
        Propagate("op", rule, inputs, output_shapes, MoveSeconds, MinMoveSeconds);
    EXPECT_EQ(bounded.inputs, result.inputs);
    EXPECT_EQ(bounded.outputs, result.outputs);
    EXPECT_EQ(bounded.seconds, result.seconds);
    return result;
  }

  Rule rule;
  MeshShape mesh;
  std::vector<int64_t> extents;
  std::vector<Dims> output_shapes;
};

TEST(Propagate, FollowsTheTableOnOneAxis) {
  struct Row {
    const char* rule;
    std::vector<Placement> given, inputs, outputs;
  };
  const Placement R = Replicate(), P = Partial();
  const Placement M = Partial(ReduceOp::kMax);
  const char* const matmul = "m k, k n -> m n; linear 0; linear 1";
  const char* const add = "i j, i j -> i j; linear 0 1";
  const char* const exp = "i j -> i j";
  for (const Row& row : std::vector<Row>{
           // A shared factor, factors of one operand, the summed one.
           {matmul, {Shard(0), R}, {Shard(0), R}, {Shard(0)}},
           {matmul, {R, Shard(1)}, {R, Shard(1)}, {Shard(1)}},
           {matmul, {Shard(1), Shard(0)}, {Shard(1), Shard(0)}, {P}},
           // A Partial passes where the other is whole.
           {matmul, {P, R}, {P, R}, {P}},
           {matmul, {R, P}, {R, P}, {P}},
           {matmul, {R, R}, {R, R}, {R}},
           {add, {Shard(0), Shard(0)}, {Shard(0), Shard(0)}, {Shard(0)}},
           {add, {P, P}, {P, P}, {P}},
           // R -> P and R -> S cost nothing.
           {add, {P, R}, {P, P}, {P}},
           {add, {R, Shard(1)}, {Shard(1), Shard(1)}, {Shard(1)}},
           // What is not linear takes values: reduce-scatter is cheaper than all-reduce.
           {exp, {Shard(1)}, {Shard(1)}, {Shard(1)}},
           {exp, {R}, {R}, {R}},
           {exp, {P}, {Shard(0)}, {Shard(0)}},
           {exp, {M}, {Shard(0)}, {Shard(0)}},
           // A Partial maximum is no sum.
           {add, {M, M}, {Shard(0), Shard(0)}, {Shard(0)}},
           // A factor that must be whole, or that a whole dim hides.
           {"i j -> i j; whole j", {Shard(1)}, {Shard(0)}, {Shard(0)}},
           {"i . -> i", {Shard(1)}, {Shard(0)}, {Shard(0)}},
           {". -> .", {Shard(0)}, {R}, {R}},
           // Results that lack the factor are reduced, as the rule says how.
           {"i j -> i", {Shard(1)}, {Shard(1)}, {P}},
           {"i j -> i; reduce max", {Shard(1)}, {Shard(1)}, {M}},
           {"i j -> i; reduce max", {Shard(0)}, {Shard(0)}, {Shard(0)}},
           {"i j -> i j, i", {Shard(1)}, {Shard(1)}, {Shard(1), P}},
           {"v h, b -> b h; linear 0", {Shard(0), R}, {Shard(0), R}, {P}},
           {"v h, b -> b h; linear 0", {R, Shard(0)}, {R, Shard(0)}, {Shard(0)}},
       }) {
    const Problem problem(row.rule, {{"x", 2}});
    std::vector<std::vector<Placement>> given;
    for (const Placement& p : row.given) given.push_back({p});
    const std::vector<Layout> layouts = problem.Layouts(given);
    const Propagation result = problem.Solve(layouts);
    bool moves = false;
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      EXPECT_EQ(result.inputs[i].placement(0), row.inputs[i])
          << row.rule << " operand " << i << " " << layouts[i];
      moves |= !(result.inputs[i] == layouts[i]);
    }
    for (size_t i = 0; i < row.outputs.size(); ++i) {
      EXPECT_EQ(result.outputs[i].placement(0), row.outputs[i])
          << row.rule << " result " << i << " " << layouts[0];
      EXPECT_EQ(result.outputs[i].global_shape(), problem.output_shapes[i]);
    }
    EXPECT_EQ(result.has_moves, moves) << row.rule;
  }
}

TEST(Propagate, ShardsAFactorOnlyWhereItDivides) {
  for (const int64_t heads : {2, 3, 4, 6}) {
    Problem problem("b h d, b k d -> b h d; linear 1", {{"tp", 2}}, {5, heads, 4, heads});
    // Query and key heads are one factor, as in attention.
    problem.rule.inputs[1][1] = 1;
    problem.rule.factors[1].must_divide = {heads};
    const Propagation result = problem.Solve(problem.Layouts({{Shard(1)}, {Shard(1)}}));
    EXPECT_EQ(result.has_moves, heads % 2 != 0) << heads;
    EXPECT_EQ(result.outputs[0].placement(0).IsShard(1), heads % 2 == 0) << heads;
  }
  // Two axes cut it together.
  Problem problem("h d -> h d", {{"a", 2}, {"b", 2}}, {6, 4});
  problem.rule.factors[0].must_divide = {6};
  EXPECT_TRUE(problem.Solve(problem.Layouts({{Shard(0), Shard(0)}})).has_moves);
  EXPECT_FALSE(problem.Solve(problem.Layouts({{Shard(0), Replicate()}})).has_moves);
}

TEST(Propagate, KeepsTheSplitOrderOfItsOperands) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  const Rule rule = Rule::Parse("n k -> n k");
  const Layout tp_first = Layout::Make(mesh, {Shard(0), Shard(0)}, {7, 5}, {1, 0});
  const Layout inputs[] = {tp_first};
  const Dims shapes[] = {{7, 5}};
  const Propagation result = Propagate("exp", rule, inputs, shapes, MoveSeconds);
  EXPECT_FALSE(result.has_moves);
  EXPECT_EQ(result.outputs[0], tp_first);
  // Of two orders the first operand's; the other one moves.
  const Layout pair[] = {tp_first, Layout::Make(mesh, {Shard(0), Shard(0)}, {7, 5})};
  const Propagation sum =
      Propagate("add", Rule::Parse("n k, n k -> n k; linear 0 1"), pair, shapes, MoveSeconds);
  EXPECT_EQ(sum.inputs[0], sum.inputs[1]);
  EXPECT_EQ(sum.outputs[0], sum.inputs[0]);
}

TEST(Propagate, AxesOfOneRankMoveNothing) {
  const Problem problem("i j -> i j; whole j", {{"one", 1}, {"x", 2}});
  for (const Placement& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
    const std::vector<Layout> layouts = problem.Layouts({{p, Shard(0)}});
    const Propagation result = problem.Solve(layouts);
    EXPECT_FALSE(result.has_moves) << p;
    EXPECT_EQ(result.inputs[0], layouts[0]);
    EXPECT_EQ(result.outputs[0].placement(0), Replicate()) << p;
    EXPECT_EQ(result.outputs[0].placement(1), Shard(0)) << p;
  }
}

TEST(Propagate, RefusesWhatDoesNotFitTheRule) {
  const Problem problem("i j, i j -> i j", {{"x", 2}});
  std::vector<Layout> layouts = problem.Layouts({{Shard(0)}, {Shard(0)}});
  layouts[1] = Layout::Make({{"y", 2}}, {Shard(0)}, {12, 12});
  EXPECT_THAT(ErrorOf([&] { problem.Solve(layouts); }),
              AllOf(HasSubstr("op"), HasSubstr("x=2"), HasSubstr("y=2")));
  layouts[1] = Layout::Make(problem.mesh, {Shard(0)}, {12});
  EXPECT_THAT(ErrorOf([&] { problem.Solve(layouts); }), AllOf(HasSubstr("op"), HasSubstr("[12]")));
  layouts.pop_back();
  EXPECT_THAT(ErrorOf([&] { problem.Solve(layouts); }), HasSubstr("1 operands"));
}

// ---- against brute force ------------------------------------------------------------------------

// One choice of the table: factor f, linear set l, or nothing.
struct Choice {
  int factor = -1;
  int set = -1;
};

class BruteForce {
 public:
  BruteForce(const Problem& problem, const std::vector<Layout>& inputs)
      : problem_(problem), inputs_(inputs) {
    choices_.resize(problem.mesh.num_axes());
    Search(0);
  }
  double cheapest() const { return cheapest_; }

 private:
  int DimOf(size_t operand, int factor) const {
    const Rule::FactorOfDim& dims = problem_.rule.inputs[operand];
    const auto found = std::find(dims.begin(), dims.end(), factor);
    return factor < 0 || found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
  }

  Placement Input(const Choice& choice, size_t operand) const {
    if (choice.set >= 0)
      return (problem_.rule.linear[choice.set] >> operand & 1) != 0 ? Partial() : Replicate();
    const int dim = DimOf(operand, choice.factor);
    return dim < 0 ? Replicate() : Shard(dim);
  }

  bool MayShard(int axis, int factor) const {
    bool may = false;
    for (size_t i = 0; i < inputs_.size(); ++i)
      may |= DimOf(i, factor) >= 0 && !inputs_[i].placement(axis).IsReplicate();
    return may && !problem_.rule.factors[factor].whole;
  }

  void Search(int axis) {
    const Rule& rule = problem_.rule;
    if (axis == problem_.mesh.num_axes()) {
      Price();
      return;
    }
    choices_[axis] = {};
    Search(axis + 1);
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      choices_[axis] = {f, -1};
      if (MayShard(axis, f)) Search(axis + 1);
    }
    for (int l = 0; l < static_cast<int>(rule.linear.size()); ++l) {
      choices_[axis] = {-1, l};
      Search(axis + 1);
    }
  }

  // The order in which axes {0, 1} split `factor`, if both do.
  std::vector<int> Order() const {
    std::vector<int> order;
    for (int axis = 0; axis < problem_.mesh.num_axes(); ++axis) order.push_back(axis);
    if (order.size() < 2 || choices_[0].factor != choices_[1].factor) return order;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const int dim = DimOf(i, choices_[0].factor);
      if (dim < 0 || inputs_[i].SplitAxes(dim).size() != order.size()) continue;
      return {inputs_[i].SplitAxes(dim).begin(), inputs_[i].SplitAxes(dim).end()};
    }
    return order;
  }

  void Price() {
    double seconds = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      std::vector<Placement> wanted;
      for (const Choice& choice : choices_) wanted.push_back(Input(choice, i));
      std::vector<int> order;
      for (const int axis : Order()) {
        if (wanted[axis].IsShard()) order.push_back(axis);
      }
      const Layout target = Layout::Make(problem_.mesh, wanted, inputs_[i].global_shape(), order);
      seconds += MoveSeconds(inputs_[i], target, 0);
    }
    cheapest_ = std::min(cheapest_, seconds);
  }

  const Problem& problem_;
  const std::vector<Layout>& inputs_;
  std::vector<Choice> choices_;
  double cheapest_ = std::numeric_limits<double>::infinity();
};

TEST(Propagate, IsAsCheapAsTheCheapestOfAllChoices) {
  uint64_t state = 1;
  const auto below = [&](uint64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state >> 33) % bound);
  };
  for (const char* text :
       {"m k, k n -> m n; linear 0; linear 1", "i j, i j -> i j; linear 0 1", "i j, i j -> i j",
        "i j -> i; linear 0", "i j -> i j; whole j", "b s, v h -> b s h; linear 1",
        "i j, i j, i j -> i j; linear 1 2", "b h s d, b h t d, b h t e -> b h s e; whole s t d e",
        "i j -> j i; linear 0", "b k, k -> b k, b; whole k"}) {
    for (const MeshShape& mesh : {MeshShape{{"x", 2}}, MeshShape{{"x", 4}},
                                  MeshShape{{"x", 2}, {"y", 2}}, MeshShape{{"x", 3}, {"y", 2}}}) {
      for (int sample = 0; sample < 30; ++sample) {
        std::vector<int64_t> extents;
        for (int f = 0; f < 6; ++f)
          extents.push_back(std::vector<int64_t>{1, 6, 64, 5, 1024}[below(5)]);
        const Problem problem(text, mesh, extents);
        std::vector<Layout> inputs;
        for (const Dims& shape : ShapesOf(problem.rule.inputs, problem.extents)) {
          std::vector<Placement> placements;
          for (int axis = 0; axis < mesh.num_axes(); ++axis) {
            const int pick = below(static_cast<uint64_t>(shape.size() + 2));
            placements.push_back(pick == 0 ? Replicate() : pick == 1 ? Partial() : Shard(pick - 2));
          }
          std::vector<int> order;
          for (int axis = 0; axis < mesh.num_axes(); ++axis) {
            if (placements[axis].IsShard()) order.push_back(axis);
          }
          if (below(2) == 0) std::reverse(order.begin(), order.end());
          inputs.push_back(
              Layout::Make(mesh, std::span<const Placement>(placements), shape, order));
        }
        const Propagation result = problem.Solve(inputs);
        std::string given;
        for (const Layout& layout : inputs) absl::StrAppend(&given, layout.ToString(), " ");
        EXPECT_NEAR(result.seconds, BruteForce(problem, inputs).cheapest(), 1e-12)
            << text << ": " << given;
      }
    }
  }
}

TEST(Propagate, IsAFunctionOfItsArgumentsAlone) {
  const Problem problem("m k, k n -> m n; linear 0; linear 1", {{"x", 2}, {"y", 2}});
  const std::vector<Layout> layouts =
      problem.Layouts({{Shard(1), Partial()}, {Shard(0), Shard(1)}});
  const Propagation first = problem.Solve(layouts);
  for (int i = 0; i < 10; ++i) {
    const Propagation again = problem.Solve(layouts);
    EXPECT_EQ(again.inputs, first.inputs);
    EXPECT_EQ(again.outputs, first.outputs);
    EXPECT_EQ(again.seconds, first.seconds);
  }
}

}  // namespace
}  // namespace shardmesh
