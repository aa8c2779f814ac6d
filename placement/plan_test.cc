// SPDX-License-Identifier: Apache-2.0
//
// Which steps a plan takes and what they cost; that plans are right is proved in
// plan_simulation_test.cc.
#include "shardmesh/placement/plan.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

const MeshShape kMesh = {{"dp", 2}, {"tp", 4}};

std::string MessageOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

Layout Make(std::initializer_list<Placement> placements, const Dims& shape = {60, 44, 36}) {
  return Layout::Make(kMesh, placements, shape);
}

/// FSDP after TP: tp splits dim 0, dp each piece.
Layout TpThenDp(const Dims& shape = {60, 44, 36}) {
  return Layout::Make(kMesh, {Shard(0), Shard(0)}, shape, {1, 0});
}

/// "kind axes -> placements" of each step.
std::vector<std::string> StepsOf(const Plan& plan) {
  std::vector<std::string> texts;
  for (const Step& step : plan.steps) {
    std::string names;
    for (const int axis : step.axes)
      absl::StrAppend(&names, names.empty() ? "" : "+", step.from.mesh().axis(axis).name);
    texts.push_back(absl::StrCat(std::string(Name(step.kind)), " ", names, " -> ",
                                 step.to.PlacementsToString()));
  }
  return texts;
}

std::vector<std::string> StepsOf(const Layout& source, const Layout& target) {
  return StepsOf(MakePlan(source, target));
}

using Texts = std::vector<std::string>;

/// Shapes from one element to large: what is the right sequence must not hang on latency against
/// bandwidth.
std::vector<Dims> Sizes() {
  return {{1, 1, 1}, {3, 5, 2}, {7, 11, 13}, {512, 512, 64}, {1 << 16, 1 << 14, 64}};
}

/// Those in which all boxes are even.
std::vector<Dims> EvenSizes() { return {{8, 8, 8}, {512, 512, 64}, {1 << 16, 1 << 14, 64}}; }

TEST(MakePlan, OneAxisTakesOneStep) {
  const MeshShape mesh = {{"x", 3}};
  struct Row {
    Placement source, target;
    std::string want;
  };
  for (const Row& row :
       std::vector<Row>{{Shard(0), Replicate(), "all_gather x -> [R]"},
                        {Replicate(), Shard(1), "slice x -> [S(1)]"},
                        {Partial(), Replicate(), "all_reduce x -> [R]"},
                        {Partial(), Shard(0), "reduce_scatter x -> [S(0)]"},
                        {Shard(0), Shard(1), "all_to_all x -> [S(1)]"},
                        {Replicate(), Partial(), "make_partial x -> [P(sum)]"},
                        {Partial(ReduceOp::kMax), Replicate(), "all_reduce x -> [R]"},
                        {Partial(ReduceOp::kMax), Shard(1), "reduce_scatter x -> [S(1)]"},
                        {Replicate(), Partial(ReduceOp::kMin), "make_partial x -> [P(min)]"}}) {
    for (const Dims& shape : Sizes()) {
      const Layout source = Layout::Make(mesh, {row.source}, shape),
                   target = Layout::Make(mesh, {row.target}, shape);
      EXPECT_EQ(StepsOf(source, target), Texts{row.want}) << source;
      EXPECT_TRUE(MakePlan(source, source).steps.empty());
    }
  }
}

TEST(MakePlan, ShardToPartialAndBetweenOpsGoesThroughReplicate) {
  const Dims small = {6, 4, 3};
  const auto make = [&](Placement dp, Placement tp) { return Make({dp, tp}, small); };
  EXPECT_EQ(StepsOf(make(Replicate(), Shard(0)), make(Replicate(), Partial())),
            (Texts{"all_gather tp -> [R, R]", "make_partial tp -> [R, P(sum)]"}));
  EXPECT_EQ(StepsOf(make(Replicate(), Partial(ReduceOp::kMax)), make(Replicate(), Partial())),
            (Texts{"all_reduce tp -> [R, R]", "make_partial tp -> [R, P(sum)]"}));
  EXPECT_EQ(StepsOf(make(Replicate(), Partial(ReduceOp::kMax)), make(Partial(), Replicate())),
            (Texts{"all_reduce tp -> [R, R]", "make_partial dp -> [P(sum), R]"}));
}

TEST(MakePlan, ReplicasShareTheWorkOfALargeTensor) {
  // Each of the two rows of ranks reduces half of what both have to reduce.
  EXPECT_EQ(StepsOf(Make({Replicate(), Partial()}), Make({Replicate(), Replicate()})),
            (Texts{"slice dp -> [S(0), P(sum)]", "all_reduce tp -> [S(0), R]",
                   "all_gather dp -> [R, R]"}));
  // New summands are made where the box is small.
  EXPECT_EQ(StepsOf(Make({Replicate(), Partial(ReduceOp::kMax)}), Make({Replicate(), Partial()})),
            (Texts{"slice dp -> [S(0), P(max)]", "all_reduce tp -> [S(0), R]",
                   "make_partial tp -> [S(0), P(sum)]", "all_gather dp -> [R, P(sum)]"}));
}

TEST(MakePlan, CheaperPlansThatASearchWithoutDetoursMisses) {
  const MeshShape mesh = {{"a", 5}, {"b", 3}};
  const auto make = [&](Placement a, Placement b, const Dims& shape) {
    return Layout::Make(mesh, {a, b}, shape);
  };
  const Dims square = {1024, 1024}, thin = {4096, 3, 64};
  EXPECT_EQ(StepsOf(make(Partial(), Replicate(), square), make(Replicate(), Shard(1), square)),
            (Texts{"slice b -> [P(sum), S(1)]", "all_reduce a -> [R, S(1)]"}));
  // 3 columns over 15 ranks: one gather is sized for 15, of which 12 are empty.
  EXPECT_EQ(StepsOf(make(Shard(1), Shard(1), thin), make(Replicate(), Replicate(), thin)),
            (Texts{"all_to_all a+b -> [S(0), S(1)]", "all_gather a+b -> [R, R]"}));
}

TEST(MakePlan, WhatIsReplicatedIsSlicedWhateverTheLinks) {
  // A copy costs more than the fast link here, but nothing has to be sent.
  const PlanOptions options = {.links = {{5e-6, 1e9}, {1e-6, 1e12}}};
  EXPECT_EQ(
      StepsOf(MakePlan(Make({Replicate(), Replicate()}), Make({Shard(0), Shard(1)}), options)),
      Texts{"slice dp+tp -> [S(0), S(1)]"});
}

TEST(MakePlan, SlowAxisReducesWhatTheFastOneHasScattered) {
  const Dims shape = {512, 512, 64};
  for (const bool by_mesh : {false, true}) {
    const LinkCost slow = {20e-6, 1e9}, fast = {2e-6, 1e11};
    const MeshShape mesh = by_mesh ? MeshShape{{"dp", 2, slow}, {"tp", 4, fast}} : kMesh;
    PlanOptions options;
    if (!by_mesh) options.links = {slow, fast};
    EXPECT_EQ(StepsOf(MakePlan(Layout::Make(mesh, {Partial(), Partial()}, shape),
                               Layout::Replicated(mesh, shape), options)),
              (Texts{"reduce_scatter tp -> [P(sum), S(0)]", "all_reduce dp -> [R, S(0)]",
                     "all_gather tp -> [R, R]"}));
  }
}

TEST(MakePlan, CapOnPeakBytesIsKept) {
  const Dims shape = {1024, 1024};
  const Layout source = Make({Shard(0), Shard(1)}, shape),
               target = Make({Shard(1), Shard(0)}, shape);
  const Plan free = MakePlan(Make({Shard(0), Partial()}, shape), Make({Shard(0), Shard(1)}, shape));
  EXPECT_EQ(free.peak_bytes, 4 * 1024 * (512 + 128));
  PlanOptions options;
  for (options.max_peak_bytes = 8 << 20; *options.max_peak_bytes >= 1 << 20;
       *options.max_peak_bytes /= 2) {
    const Plan plan = MakePlan(source, target, options);
    EXPECT_LE(plan.peak_bytes, *options.max_peak_bytes);
  }
  options.max_peak_bytes = (1 << 20) - 1;
  EXPECT_EQ(MessageOf([&] { MakePlan(source, target, options); }),
            "no plan from [1024,1024] [S(0), S(1)] @ [dp=2, tp=4] to [1024,1024] [S(1), S(0)] @ "
            "[dp=2, tp=4] has a peak of 1048575 bytes per rank or less");
}

TEST(MakePlan, MoveOfTheInnerShardIsOneAllToAllOnItsAxis) {
  // Seen elsewhere: two all-gathers.
  for (const Dims& shape : Sizes()) {
    EXPECT_EQ(StepsOf(Make({Shard(1), Shard(1)}, shape), Make({Shard(1), Shard(2)}, shape)),
              Texts{"all_to_all tp -> [S(1), S(2)]"});
  }
}

TEST(MakePlan, NegativeSpellingOfADimTakesNoStep) {
  EXPECT_TRUE(MakePlan(Layout::Make(kMesh, {Replicate(), Shard(1)}, {6, 5}),
                       Layout::Make(kMesh, {Replicate(), Shard(-1)}, {6, 5}))
                  .steps.empty());
}

TEST(MakePlan, ReducesOverBothAxesScatteringFirst) {
  for (const Dims& shape : EvenSizes()) {
    EXPECT_EQ(StepsOf(Make({Partial(), Partial()}, shape), Make({Shard(0), Replicate()}, shape)),
              (Texts{"reduce_scatter dp -> [S(0), P(sum)]", "all_reduce tp -> [S(0), R]"}));
    EXPECT_EQ(StepsOf(Make({Partial(), Partial()}, shape), Make({Replicate(), Shard(1)}, shape)),
              (Texts{"reduce_scatter tp -> [P(sum), S(1)]", "all_reduce dp -> [R, S(1)]"}));
  }
}

TEST(MakePlan, NeighboursOfOneKindAreOneCollective) {
  for (const Dims& shape : EvenSizes()) {
    const Layout whole = Make({Replicate(), Replicate()}, shape);
    EXPECT_EQ(StepsOf(TpThenDp(shape), whole), Texts{"all_gather dp+tp -> [R, R]"});
    EXPECT_EQ(StepsOf(Make({Shard(0), Shard(2)}, shape), whole),
              Texts{"all_gather dp+tp -> [R, R]"});
    EXPECT_EQ(StepsOf(Make({Partial(), Partial()}, shape), whole),
              Texts{"all_reduce dp+tp -> [R, R]"});
    EXPECT_EQ(StepsOf(Make({Partial(), Partial()}, shape), Make({Shard(1), Shard(1)}, shape)),
              Texts{"reduce_scatter dp+tp -> [S(1), S(1)]"});
    EXPECT_EQ(StepsOf(whole, Make({Shard(1), Shard(2)}, shape)),
              Texts{"slice dp+tp -> [S(1), S(2)]"});
    EXPECT_EQ(StepsOf(whole, Make({Partial(), Partial()}, shape)),
              Texts{"make_partial dp+tp -> [P(sum), P(sum)]"});
  }
}

TEST(MakePlan, FullyShardedParameterGathersAndItsGradientScattersOnDpAlone) {
  for (const Dims& shape : Sizes()) {
    const Layout tp = Make({Replicate(), Shard(0)}, shape);
    EXPECT_EQ(StepsOf(TpThenDp(shape), tp), Texts{"all_gather dp -> [R, S(0)]"});
    EXPECT_EQ(StepsOf(Make({Partial(), Shard(0)}, shape), TpThenDp(shape)),
              Texts{"reduce_scatter dp -> [S(0)/1, S(0)/0]"});
    EXPECT_EQ(StepsOf(tp, TpThenDp(shape)), Texts{"slice dp -> [S(0)/1, S(0)/0]"});
  }
}

TEST(MakePlan, ChangeOfSplitOrderIsOneAllToAll) {
  for (const Dims& shape : Sizes()) {
    EXPECT_EQ(StepsOf(TpThenDp(shape), Make({Shard(0), Shard(0)}, shape)),
              Texts{"all_to_all dp+tp -> [S(0), S(0)]"});
  }
}

TEST(MakePlan, ShardMovesToAnotherAxisWithoutGatheringTheWhole) {
  const Plan plan = MakePlan(Make({Shard(0), Replicate()}), Make({Replicate(), Shard(0)}));
  // 60 rows do not divide by 8, 44 columns do by 4.
  EXPECT_EQ(StepsOf(plan), (Texts{"slice tp -> [S(0), S(1)]", "all_to_all dp+tp -> [R, S(0)]"}));
  const Plan gather = MakePlan(Make({Shard(0), Replicate()}), Make({Replicate(), Replicate()}));
  EXPECT_LT(plan.bytes_sent, gather.bytes_sent);
}

TEST(MakePlan, NothingIsSlicedThatTheTargetHoldsWhole) {
  // A slice is cheap, but not free: a replica stays where it is.
  EXPECT_EQ(StepsOf(Make({Shard(0), Shard(1)}), Make({Shard(0), Replicate()})),
            Texts{"all_gather tp -> [S(0), R]"});
  EXPECT_EQ(StepsOf(Make({Shard(0), Replicate()}), Make({Shard(1), Replicate()})),
            Texts{"all_to_all dp -> [S(1), R]"});
  EXPECT_EQ(StepsOf(Make({Partial(), Replicate()}), Make({Replicate(), Replicate()})),
            Texts{"all_reduce dp -> [R, R]"});
}

TEST(MakePlan, EmptyTensorTakesAsFewStepsAsAFullOne) {
  const Dims empty = {0, 5, 3};
  EXPECT_EQ(StepsOf(Make({Partial(), Replicate()}, empty), Make({Replicate(), Replicate()}, empty)),
            Texts{"all_reduce dp -> [R, R]"});
  EXPECT_EQ(StepsOf(Make({Shard(1), Shard(1)}, empty), Make({Shard(1), Shard(2)}, empty)),
            Texts{"all_to_all tp -> [S(1), S(2)]"});
}

TEST(MakePlan, AxesOfSizeOneCommunicateNothing) {
  const MeshShape mesh = {{"dp_replicate", 1}, {"dp", 3}, {"tp", 1}};
  const auto make = [&](Placement r, Placement dp, Placement tp) {
    return Layout::Make(mesh, {r, dp, tp}, {7, 5});
  };
  EXPECT_EQ(StepsOf(make(Partial(), Partial(), Shard(0)), make(Replicate(), Shard(0), Replicate())),
            Texts{"reduce_scatter dp -> [R, S(0), R]"});
  const Plan relabel =
      MakePlan(make(Partial(), Shard(0), Shard(0)), make(Replicate(), Shard(0), Shard(1)));
  EXPECT_EQ(StepsOf(relabel), Texts{"slice dp_replicate+tp -> [R, S(0), S(1)]"});
  EXPECT_EQ(relabel.bytes_sent, 0);
  // A split of size one inside another does not keep it from being gathered.
  EXPECT_EQ(
      StepsOf(make(Replicate(), Shard(0), Shard(0)), make(Replicate(), Replicate(), Shard(0))),
      Texts{"all_gather dp -> [R, R, S(0)]"});
}

TEST(MakePlan, BytesFollowTheFormulasOfUnevenBoxes) {
  const MeshShape mesh = {{"x", 4}};
  const auto make = [&](Placement placement) { return Layout::Make(mesh, {placement}, {5, 3}); };
  struct Row {
    Placement source, target;
    int64_t elements, peak_elements;
  };
  // Rank 0 holds 2 of the 5 rows.
  for (const Row& row : std::vector<Row>{
           {Shard(0), Replicate(), 3 * 6, 6 + 15},          // (p - 1) x own
           {Partial(), Shard(0), 15 - 6, 15 + 6},           // whole - own
           {Partial(), Replicate(), (15 - 4) + 3 * 4, 30},  // chunk: ceil(15 / 4)
           {Shard(0), Shard(1), 6 - 2, 6 + 5},  // own box less the part in the first column
           {Replicate(), Shard(0), 0, 15 + 6}}) {
    const Plan plan = MakePlan(make(row.source), make(row.target), {.element_bytes = 2});
    EXPECT_EQ(plan.bytes_sent, 2 * row.elements) << plan;
    EXPECT_EQ(plan.peak_bytes, 2 * row.peak_elements) << plan;
  }
}

TEST(MakePlan, BytesOfEvenCollectivesAreTheTextbookFractions) {
  const Dims shape = {24, 16, 8};  // Too small for replicas to share the work.
  const auto make = [&](Placement dp, Placement tp) { return Make({dp, tp}, shape); };
  const Layout whole = make(Replicate(), Replicate());
  const int64_t bytes = whole.global_shape().NumElements() * 4;
  EXPECT_EQ(MakePlan(make(Replicate(), Shard(0)), whole).bytes_sent, bytes * 3 / 4);
  EXPECT_EQ(MakePlan(make(Replicate(), Partial()), make(Replicate(), Shard(0))).bytes_sent,
            bytes * 3 / 4);
  EXPECT_EQ(MakePlan(make(Replicate(), Partial()), whole).bytes_sent, bytes * 6 / 4);
  EXPECT_EQ(MakePlan(make(Replicate(), Shard(0)), make(Replicate(), Shard(1))).bytes_sent,
            bytes / 4 * 3 / 4);
  EXPECT_EQ(MakePlan(make(Partial(), Partial()), whole).bytes_sent, bytes * 14 / 8);
}

TEST(MakePlan, BytesDoNotEndAtThoseOfAnInt) {
  // 2^31 bytes of f32, the first number that an int does not hold, and far more.
  const MeshShape mesh = {{"x", 2}};
  for (const int64_t n : {int64_t{1} << 29, (int64_t{1} << 29) + 1, int64_t{1} << 40}) {
    const auto make = [&](Placement placement) { return Layout::Make(mesh, {placement}, {n}); };
    const int64_t own = (n + 1) / 2;
    EXPECT_EQ(make(Shard(0)).LocalBox({1}), (Box{{own}, {n}}));
    const Plan scatter = MakePlan(make(Partial()), make(Shard(0)));
    EXPECT_EQ(scatter.bytes_sent, 4 * (n - own)) << scatter;
    EXPECT_EQ(scatter.peak_bytes, 4 * (n + own)) << scatter;
    EXPECT_EQ(MakePlan(make(Shard(0)), make(Replicate())).bytes_sent, 4 * own);
    EXPECT_EQ(MakePlan(make(Partial()), make(Replicate())).bytes_sent, 4 * n);
  }
}

TEST(MakePlan, SlowLinksAreNotMergedWithFastOnes) {
  // Gathered apart, the slow axis carries one part in four of the result; merged, all of it would
  // go at its pace.
  PlanOptions options;
  options.links = {{.latency_seconds = 5e-6, .bytes_per_second = 1e9},
                   {.latency_seconds = 1e-6, .bytes_per_second = 1e11}};
  const Layout source = Make({Shard(1), Shard(0)}, {512, 512, 64});
  const Layout target = Make({Replicate(), Replicate()}, {512, 512, 64});
  EXPECT_EQ(StepsOf(MakePlan(source, target, options)),
            (Texts{"all_gather dp -> [R, S(0)]", "all_gather tp -> [R, R]"}));
  options.links = {options.links[0], options.links[0]};
  EXPECT_EQ(StepsOf(MakePlan(source, target, options)), Texts{"all_gather dp+tp -> [R, R]"});
}

TEST(MakePlan, InnerSplitMovesToAnotherDimWhereThatSparesTheSlowLink) {
  // From [S(0), S(0)] the inner split, tp, is gathered first, and the slow dp then carries four
  // times as much.
  PlanOptions options;
  options.links = {{.latency_seconds = 5e-6, .bytes_per_second = 1e9},
                   {.latency_seconds = 1e-6, .bytes_per_second = 1e11}};
  const Dims shape = {512, 512, 64};
  const Plan plan =
      MakePlan(Make({Shard(0), Shard(0)}, shape), Make({Replicate(), Replicate()}, shape), options);
  EXPECT_EQ(StepsOf(plan), (Texts{"all_to_all tp -> [S(0), S(1)]", "all_gather dp -> [R, S(1)]",
                                  "all_gather tp -> [R, R]"}));
}

TEST(MakePlan, EqualCostsGoToFewerSteps) {
  // The two ways cost the same but for the rounding of their sums.
  const MeshShape mesh = {{"a", 2}, {"b", 3}, {"c", 4}};
  const Layout source = Layout::Make(mesh, {Shard(0), Shard(0), Shard(1)}, {960, 720});
  const Layout target = Layout::Make(mesh, {Shard(0), Shard(0), Replicate()}, {960, 720}, {1, 0});
  EXPECT_EQ(StepsOf(source, target), Texts{"all_to_all a+b+c -> [S(0)/1, S(0)/0, R]"});
}

TEST(MakePlan, AllAxesBecomePartialInOneStepAtTheEnd) {
  EXPECT_EQ(StepsOf(Make({Shard(0), Shard(1)}), Make({Partial(), Partial()})),
            (Texts{"all_gather dp+tp -> [R, R]", "make_partial dp+tp -> [P(sum), P(sum)]"}));
  EXPECT_EQ(StepsOf(Make({Partial(), Shard(1)}), Make({Partial(), Partial()})),
            (Texts{"all_gather tp -> [P(sum), R]", "make_partial tp -> [P(sum), P(sum)]"}));
}

TEST(MakePlan, SameArgumentsGiveTheSamePlan) {
  const Layout source = Make({Partial(), Shard(0)}), target = Make({Shard(0), Shard(1)});
  EXPECT_EQ(MakePlan(source, target).Explain(), MakePlan(source, target).Explain());
}

TEST(MakePlan, MeshOfSixteenThousandRanksIsPlannedAtOnce) {
  const MeshShape mesh = {{"pod", 4}, {"dp", 32}, {"cp", 8}, {"tp", 16}};
  const Dims shape = {16384, 8192, 4096};
  const auto start = std::chrono::steady_clock::now();
  const Plan plan =
      MakePlan(Layout::Make(mesh, {Partial(), Partial(), Shard(0), Shard(1)}, shape),
               Layout::Make(mesh, {Replicate(), Shard(2), Shard(0), Shard(1)}, shape));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(StepsOf(plan), (Texts{"reduce_scatter dp -> [P(sum), S(2), S(0), S(1)]",
                                  "all_reduce pod -> [R, S(2), S(0), S(1)]"}));
  EXPECT_LT(seconds.count(), 0.5);  // Listing ranks or boxes would take longer.
}

TEST(MakePlan, MisfitsAreRefusedNamingBothLayouts) {
  EXPECT_EQ(MessageOf([] {
              MakePlan(Make({Shard(0), Replicate()}, {7}), Make({Shard(0), Replicate()}, {5}));
            }),
            "no plan from [7] [S(0), R] @ [dp=2, tp=4] to [5] [S(0), R] @ [dp=2, tp=4]: mesh and "
            "global shape must be equal");
  EXPECT_EQ(MessageOf([] {
              MakePlan(Layout::Replicated({{"x", 2}}, {7}), Layout::Replicated({{"y", 2}}, {7}));
            }),
            "no plan from [7] [R] @ [x=2] to [7] [R] @ [y=2]: mesh and global shape must be equal");
  EXPECT_EQ(MessageOf([] {
              MakePlan(Layout(), Layout::Replicated({{"y", 2}}, {7}));
            }),
            "no plan from (no layout) to [7] [R] @ [y=2]");
  EXPECT_EQ(MessageOf([] {
              MakePlan(TpThenDp(), Make({Replicate(), Replicate()}), {.links = {LinkCost()}});
            }),
            "plan options have 1 links, the mesh [dp=2, tp=4] has 2 axes");
  EXPECT_EQ(MessageOf([] {
              MakePlan(TpThenDp(), Make({Replicate(), Replicate()}), {.element_bytes = 0});
            }),
            "plan options: element bytes and bandwidths must be positive, latencies not negative");
}

TEST(Explain, ShowsLayoutsStepsBytesCostAndPeak) {
  const Plan plan =
      MakePlan(Make({Partial(), Partial()}, {512, 64}), Make({Shard(0), Replicate()}, {512, 64}));
  EXPECT_EQ(plan.Explain(),
            "from [512,64] [P(sum), P(sum)] @ [dp=2, tp=4]\n"
            "to   [512,64] [S(0), R] @ [dp=2, tp=4]\n"
            "  1. reduce_scatter dp  [P(sum), P(sum)] -> [S(0), P(sum)]         65536 bytes        "
            "11.6 us\n"
            "  2. all_reduce     tp  [S(0), P(sum)] -> [S(0), R]                98304 bytes        "
            "29.8 us\n"
            "total 2 steps, 163840 bytes sent per rank, 41.4 us, peak 196608 bytes\n");
  EXPECT_EQ(MakePlan(plan.target, plan.target).Explain(),
            "from [512,64] [S(0), R] @ [dp=2, tp=4]\n"
            "to   [512,64] [S(0), R] @ [dp=2, tp=4]\n"
            "total 0 steps, 0 bytes sent per rank, 0.0 us, peak 0 bytes\n");
}

}  // namespace
}  // namespace shardmesh
