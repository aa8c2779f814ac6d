// SPDX-License-Identifier: Apache-2.0
//
// Runs plans on plain vectors, all ranks in one loop, and compares the global value before and
// after: for every pair of layouts of small meshes.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {
namespace {

using Values = std::vector<int64_t>;

int64_t Identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return 0;
    case ReduceOp::kMin:
      return std::numeric_limits<int64_t>::max();
    case ReduceOp::kMax:
      return std::numeric_limits<int64_t>::min();
    case ReduceOp::kProduct:
      return 1;
  }
  return 0;
}

int64_t Reduce(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return 0;
}

/// Row-major values of a box.
struct Local {
  Box box;
  Values values;

  int64_t& At(const Dims& index) {
    int64_t offset = 0;
    for (int d = 0; d < box.num_dims(); ++d)
      offset = offset * (box.end[d] - box.begin[d]) + index[d] - box.begin[d];
    return values[offset];
  }
};

/// Calls `fn` with every index of `box`.
template <typename Fn>
void ForEachIndex(const Box& box, Fn fn) {
  if (box.IsEmpty()) return;
  Dims index = box.begin;
  for (int64_t i = box.NumElements(); i > 0; --i) {
    fn(index);
    for (int d = box.num_dims() - 1; d >= 0 && ++index[d] == box.end[d]; --d)
      index[d] = box.begin[d];
  }
}

/// A tensor on all ranks of a mesh.
struct Tensor {
  Layout layout;
  std::vector<Local> locals;

  const MeshShape& mesh() const { return layout.mesh(); }
  Local& At(const Coord& coord) { return locals[mesh().RankOf(coord)]; }
};

Tensor Allocate(const Layout& layout) {
  Tensor tensor = {layout, {}};
  for (int64_t rank = 0; rank < layout.mesh().NumRanks(); ++rank) {
    const Box box = layout.LocalBox(layout.mesh().CoordOf(rank));
    tensor.locals.push_back({box, Values(box.NumElements())});
  }
  return tensor;
}

/// Position along the Partial axes: which summand of the value a rank holds.
int64_t SummandOf(const Layout& layout, const Coord& coord) {
  int64_t summand = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.placement(axis).IsPartial())
      summand = summand * layout.mesh().size(axis) + coord[axis];
  }
  return summand;
}

/// Random values of both signs that depend on (element, summand) alone, so that replicas agree.
Tensor RandomTensor(const Layout& layout, int seed) {
  Tensor tensor = Allocate(layout);
  const int64_t elements = layout.global_shape().NumElements();
  std::mt19937 random(seed);
  Values values(elements * layout.mesh().NumRanks());
  for (int64_t& value : values) {
    const int64_t drawn = random() % 7;
    value =
        drawn < 3 ? drawn - 3 : drawn - 2;  // -3..-1 and 1..4: products stay small and are never 0.
  }
  for (int64_t rank = 0; rank < layout.mesh().NumRanks(); ++rank) {
    Local& local = tensor.locals[rank];
    const int64_t summand = SummandOf(layout, layout.mesh().CoordOf(rank));
    ForEachIndex(local.box, [&](const Dims& index) {
      int64_t flat = 0;
      for (int d = 0; d < index.size(); ++d) flat = flat * layout.global_shape()[d] + index[d];
      local.At(index) = values[summand * elements + flat];
    });
  }
  return tensor;
}

/// The global value; checks that replicas are equal and that nothing is missing.
Values Reassemble(Tensor& tensor, const std::string& what) {
  const Layout& layout = tensor.layout;
  const int64_t elements = layout.global_shape().NumElements(), ranks = layout.mesh().NumRanks();
  Values summands(elements * ranks);
  std::vector<bool> known(elements * ranks, false);
  int64_t num_summands = 1;
  ReduceOp op = ReduceOp::kSum;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (!layout.placement(axis).IsPartial()) continue;
    num_summands *= layout.mesh().size(axis);
    op = layout.placement(axis).op();
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Local& local = tensor.locals[rank];
    const int64_t summand = SummandOf(layout, layout.mesh().CoordOf(rank));
    ForEachIndex(local.box, [&](const Dims& index) {
      int64_t slot = summand;
      for (int d = 0; d < index.size(); ++d) slot = slot * layout.global_shape()[d] + index[d];
      if (known[slot]) {
        EXPECT_EQ(summands[slot], local.At(index)) << "replicas differ: " << what;
      }
      known[slot] = true;
      summands[slot] = local.At(index);
    });
  }
  Values result(elements, Identity(op));
  for (int64_t slot = 0; slot < elements * num_summands; ++slot) {
    EXPECT_TRUE(known[slot]) << "nobody holds it: " << what;
    result[slot % elements] = Reduce(op, result[slot % elements], summands[slot]);
  }
  return result;
}

/// The reduction over the group of the element at `index`.
int64_t ReduceOverGroup(Tensor& input, const Step& step, const Coord& coord, const Dims& index) {
  const ReduceOp op = step.from.placement(step.axes[0]).op();
  int64_t value = Identity(op);
  for (const Coord& member : GroupCoords(input.mesh(), step.axes, coord)) {
    value = Reduce(op, value, input.At(member).At(index));
  }
  return value;
}

/// What an executor does for one step.
Tensor Execute(const Step& step, Tensor& input) {
  Tensor output = Allocate(step.to);
  for (int64_t rank = 0; rank < input.mesh().NumRanks(); ++rank) {
    const Coord coord = input.mesh().CoordOf(rank);
    Local& own = input.locals[rank];
    Local& result = output.locals[rank];
    switch (step.kind) {
      case StepKind::kSlice:
        EXPECT_TRUE(own.box.Contains(result.box)) << step.from << " -> " << step.to;
        ForEachIndex(result.box, [&](const Dims& index) { result.At(index) = own.At(index); });
        break;
      case StepKind::kMakePartial: {
        EXPECT_EQ(own.box, result.box) << step.from << " -> " << step.to;
        const bool first = std::all_of(step.axes.begin(), step.axes.end(),
                                       [&](int axis) { return coord[axis] == 0; });
        const int64_t identity = Identity(step.to.placement(step.axes[0]).op());
        ForEachIndex(result.box, [&](const Dims& index) {
          result.At(index) = first ? own.At(index) : identity;
        });
        break;
      }
      case StepKind::kAllReduce:
      case StepKind::kReduceScatter:
        for (const Coord& member : GroupCoords(input.mesh(), step.axes, coord)) {
          EXPECT_EQ(input.At(member).box, own.box) << step.from << " -> " << step.to;
        }
        EXPECT_TRUE(own.box.Contains(result.box)) << step.from << " -> " << step.to;
        ForEachIndex(result.box, [&](const Dims& index) {
          result.At(index) = ReduceOverGroup(input, step, coord, index);
        });
        break;
      case StepKind::kAllGather:
      case StepKind::kAllToAll: {
        const std::vector<Coord> members = GroupCoords(input.mesh(), step.axes, coord);
        for (const Transfer& transfer : Transfers(step.from, step.to, step.axes, coord)) {
          if (members[transfer.target] != coord) continue;
          Local& source = input.At(members[transfer.source]);
          ForEachIndex(transfer.box,
                       [&](const Dims& index) { result.At(index) = source.At(index); });
        }
        break;
      }
    }
  }
  return output;
}

/// Elements that rank 0 sends in `step`, counted box by box.
int64_t CountSentElements(const Step& step) {
  const MeshShape& mesh = step.from.mesh();
  const Coord first = mesh.CoordOf(0);
  const int64_t p = static_cast<int64_t>(GroupCoords(mesh, step.axes, first).size());
  const int64_t before = step.from.LocalBox(first).NumElements(),
                after = step.to.LocalBox(first).NumElements();
  switch (step.kind) {
    case StepKind::kSlice:
    case StepKind::kMakePartial:
      return 0;
    case StepKind::kReduceScatter:
      return before - after;
    case StepKind::kAllReduce:
      return (before - (before + p - 1) / p) + (p - 1) * ((before + p - 1) / p);
    case StepKind::kAllGather:
      return (p - 1) * before;
    case StepKind::kAllToAll:
      break;
  }
  int64_t sent = 0;
  for (const Transfer& transfer : Transfers(step.from, step.to, step.axes, first)) {
    if (transfer.source == 0 && transfer.target != 0) sent += transfer.box.NumElements();
  }
  return sent;
}

bool HasReplicas(const Step& step) {
  return std::any_of(step.axes.begin(), step.axes.end(),
                     [&](int axis) { return step.from.placement(axis).IsReplicate(); });
}

/// Checks kind, axes and bytes of a step against the layouts it connects.
void CheckStep(const Step& step, const std::string& what) {
  const MeshShape& mesh = step.from.mesh();
  ASSERT_TRUE(std::is_sorted(step.axes.begin(), step.axes.end())) << what;
  if (std::all_of(step.axes.begin(), step.axes.end(),
                  [&](int axis) { return mesh.size(axis) == 1; })) {
    // No more than new names for what every rank has.
    ASSERT_EQ(step.kind, StepKind::kSlice) << what;
    ASSERT_EQ(step.bytes_sent, 0) << what;
    for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
      ASSERT_EQ(step.from.LocalBox(mesh.CoordOf(rank)), step.to.LocalBox(mesh.CoordOf(rank)))
          << what;
    }
    return;
  }
  for (const int axis : step.axes) {
    ASSERT_GT(mesh.size(axis), 1) << what;
    const Placement& from = step.from.placement(axis);
    const Placement& to = step.to.placement(axis);
    switch (step.kind) {
      case StepKind::kSlice:
        ASSERT_TRUE(from.IsReplicate() && to.IsShard()) << what;
        break;
      case StepKind::kMakePartial:
        ASSERT_TRUE(from.IsReplicate() && to.IsPartial()) << what;
        break;
      case StepKind::kAllGather:
        ASSERT_TRUE(from.IsShard() && to.IsReplicate()) << what;
        break;
      case StepKind::kAllReduce:
        ASSERT_TRUE(from.IsPartial() && to.IsReplicate()) << what;
        break;
      case StepKind::kReduceScatter:
        ASSERT_TRUE(from.IsPartial() && to.IsShard()) << what;
        break;
      case StepKind::kAllToAll:
        ASSERT_FALSE(from.IsPartial() || to.IsPartial()) << what;
        break;
    }
  }
  const int64_t sent = CountSentElements(step) * 4;
  if (step.kind == StepKind::kAllToAll && HasReplicas(step)) {
    ASSERT_GE(step.bytes_sent, sent) << what;
  } else {
    ASSERT_EQ(step.bytes_sent, sent) << what;
  }
}

void CheckPlan(const Layout& source, const Layout& target, int seed,
               const PlanOptions& options = {}) {
  const Plan plan = MakePlan(source, target, options);
  const std::string what = plan.Explain();
  Tensor tensor = RandomTensor(source, seed);
  const Values before = Reassemble(tensor, what);
  int64_t bytes = 0;
  for (const Step& step : plan.steps) {
    ASSERT_EQ(step.from, tensor.layout) << what;
    CheckStep(step, what);
    tensor = Execute(step, tensor);
    bytes += step.bytes_sent;
  }
  ASSERT_EQ(tensor.layout, target) << what;
  ASSERT_EQ(Reassemble(tensor, what), before) << what;
  ASSERT_EQ(plan.bytes_sent, bytes) << what;
  ASSERT_EQ(plan.steps.empty(), source == target) << what;
}

/// Links that differ so much that plans take detours around the slow ones.
PlanOptions UnequalLinks(const MeshShape& mesh) {
  PlanOptions options;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    options.links.push_back({.latency_seconds = 0, .bytes_per_second = axis % 2 == 0 ? 1e6 : 1e9});
  }
  return options;
}

/// Every layout of R, P(op), S(0), .. on each axis, in every split order.
std::vector<Layout> AllLayouts(const MeshShape& mesh, const Dims& shape, ReduceOp op) {
  std::vector<Placement> choices = {Replicate(), Partial(op)};
  for (int dim = 0; dim < shape.size(); ++dim) choices.push_back(Shard(dim));
  size_t codes = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) codes *= choices.size();
  std::vector<Layout> layouts;
  for (size_t code = 0; code < codes; ++code) {
    Placements placements;
    std::vector<int> order;
    size_t rest = code;
    for (int axis = 0; axis < mesh.num_axes(); ++axis, rest /= choices.size()) {
      placements.push_back(choices[rest % choices.size()]);
      if (placements.back().IsShard()) order.push_back(axis);
    }
    do {
      const Layout layout = Layout::Make(mesh, placements, shape, order);
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
        layouts.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return layouts;
}

void CheckAllPairs(const MeshShape& mesh, const Dims& shape, ReduceOp op = ReduceOp::kSum) {
  const std::vector<Layout> layouts = AllLayouts(mesh, shape, op);
  int seed = 1;
  for (const Layout& source : layouts) {
    for (const Layout& target : layouts) {
      CheckPlan(source, target, seed++);
      CheckPlan(source, target, seed++, UnequalLinks(mesh));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(PlanSimulation, AllPairsOnOneAxis) {
  for (const int p : {1, 2, 3, 5}) {
    for (const Dims& shape : {Dims{}, Dims{7}, Dims{5, 3}, Dims{1, 4}, Dims{0, 3}, Dims{2, 3, 4}}) {
      CheckAllPairs({{"x", p}}, shape);
    }
  }
}

TEST(PlanSimulation, AllPairsOnTwoByTwo) {
  for (const Dims& shape : {Dims{5}, Dims{5, 3}, Dims{4, 8}, Dims{1, 1}, Dims{3, 0}}) {
    CheckAllPairs({{"dp", 2}, {"tp", 2}}, shape);
  }
}

TEST(PlanSimulation, AllPairsOnThreeByTwo) {
  for (const Dims& shape : {Dims{7}, Dims{7, 5}, Dims{2, 13}})
    CheckAllPairs({{"dp", 3}, {"tp", 2}}, shape);
}

TEST(PlanSimulation, AllPairsWithAnAxisOfSizeOne) {
  CheckAllPairs({{"dp", 1}, {"tp", 3}}, {5, 4});
  CheckAllPairs({{"dp", 2}, {"tp", 1}}, {5, 4});
  CheckAllPairs({{"dp", 1}, {"tp", 1}}, {5});
}

TEST(PlanSimulation, AllPairsOfEveryReduction) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    CheckAllPairs({{"dp", 2}, {"tp", 3}}, {4, 3}, op);
  }
}

TEST(PlanSimulation, AllPairsOnTwoByTwoByTwo) {
  CheckAllPairs({{"a", 2}, {"b", 2}, {"c", 2}}, {5, 3});
}

TEST(PlanSimulation, SampledPairsOnThreeAxes) {
  std::mt19937 random(5);
  for (const MeshShape& mesh :
       {MeshShape{{"a", 2}, {"b", 2}, {"c", 2}}, MeshShape{{"a", 3}, {"b", 1}, {"c", 2}},
        MeshShape{{"a", 2}, {"b", 3}, {"c", 2}}}) {
    for (const Dims& shape : {Dims{11}, Dims{5, 7}, Dims{3, 2, 5}}) {
      const std::vector<Layout> layouts = AllLayouts(mesh, shape, ReduceOp::kSum);
      for (int sample = 0; sample < 300; ++sample) {
        const Layout& source = layouts[random() % layouts.size()];
        const Layout& target = layouts[random() % layouts.size()];
        CheckPlan(source, target, sample);
        CheckPlan(source, target, sample, UnequalLinks(mesh));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(PlanSimulation, SampledPairsOfUnevenBoxes) {
  const MeshShape mesh = {{"a", 5}, {"b", 3}};
  std::mt19937 random(6);
  for (const Dims& shape : {Dims{16, 3, 4}, Dims{4, 17}}) {
    const std::vector<Layout> layouts = AllLayouts(mesh, shape, ReduceOp::kSum);
    for (int sample = 0; sample < 300; ++sample) {
      const Layout& source = layouts[random() % layouts.size()];
      const Layout& target = layouts[random() % layouts.size()];
      CheckPlan(source, target, sample);
      CheckPlan(source, target, sample, UnequalLinks(mesh));
      if (HasFailure()) return;
    }
  }
}

TEST(PlanSimulation, AllPairsUnderACapOnPeakBytes) {
  const MeshShape mesh = {{"a", 3}, {"b", 2}};
  const Dims shape = {6, 5};
  const std::vector<Layout> layouts = AllLayouts(mesh, shape, ReduceOp::kSum);
  int planned = 0, refused = 0;
  for (PlanOptions options : {PlanOptions(), UnequalLinks(mesh)}) {
    // A third of the tensor in and out.
    options.max_peak_bytes = shape.NumElements() * 4 * 2 / 3;
    for (const Layout& source : layouts) {
      for (const Layout& target : layouts) {
        const auto check = [&] {
          EXPECT_LE(MakePlan(source, target, options).peak_bytes, *options.max_peak_bytes);
          CheckPlan(source, target, planned, options);
        };
        ++(Catch(check).ok() ? planned : refused);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(planned, 200);
  EXPECT_GT(refused, 200);
}

TEST(PlanSimulation, OnePartialOpBecomesAnother) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 3}};
  const auto make = [&](Placement dp, Placement tp) {
    return Layout::Make(mesh, {dp, tp}, {5, 4});
  };
  // The value is the same number before and after: the maximum of one layout is a summand of the
  // other.
  CheckPlan(make(Partial(ReduceOp::kMax), Replicate()), make(Partial(), Replicate()), 1);
  CheckPlan(make(Partial(ReduceOp::kMax), Replicate()), make(Replicate(), Partial()), 2);
  CheckPlan(make(Partial(ReduceOp::kMax), Partial(ReduceOp::kMax)), make(Partial(), Shard(1)), 3);
  CheckPlan(make(Partial(), Shard(0)), make(Shard(0), Partial(ReduceOp::kMin)), 4);
}

TEST(PlanSimulation, UnreducedOnTwoAxesIsReducedOverBoth) {
  // Seen elsewhere: one of the two reductions is dropped; replicas then hold [12,24] and [14,28].
  const MeshShape mesh = {{"a", 2}, {"b", 2}};
  const Layout source = Layout::Make(mesh, {Partial(), Partial()}, {2});
  Tensor tensor = Allocate(source);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Coord coord = mesh.CoordOf(rank);
    const int64_t scale = 10 * coord[0] + coord[1] + 1;
    tensor.locals[rank].values = {scale, 2 * scale};
  }
  const Plan plan = MakePlan(source, Layout::Make(mesh, {Shard(0), Replicate()}, {2}));
  for (const Step& step : plan.steps) tensor = Execute(step, tensor);
  EXPECT_EQ(tensor.At({0, 0}).values, (Values{26}));
  EXPECT_EQ(tensor.At({0, 1}).values, (Values{26}));
  EXPECT_EQ(tensor.At({1, 0}).values, (Values{52}));
  EXPECT_EQ(tensor.At({1, 1}).values, (Values{52}));
}

TEST(PlanSimulation, UnevenShardAndBackKeepsTheShape) {
  // Seen elsewhere: [8,10] on all ranks, padding not stripped.
  const MeshShape mesh = {{"x", 4}};
  const Layout whole = Layout::Replicated(mesh, {5, 10}),
               rows = Layout::Make(mesh, {Shard(0)}, {5, 10});
  const Tensor original = RandomTensor(whole, 3);
  Tensor tensor = original;
  for (const Plan& plan : {MakePlan(whole, rows), MakePlan(rows, whole)}) {
    for (const Step& step : plan.steps) tensor = Execute(step, tensor);
  }
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(tensor.locals[rank].box, Box::Whole({5, 10}));
    EXPECT_EQ(tensor.locals[rank].values, original.locals[rank].values);
  }
}

}  // namespace
}  // namespace shardmesh
