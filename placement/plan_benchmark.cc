// SPDX-License-Identifier: Apache-2.0
//
// What planning costs: cold plans, cached plans, the propagation of an op's layouts, and the
// transfers of one rank.
//
//   bazel run --config=bench //placement:plan_benchmark
//
// Cold plans are between random layouts of bf16 tensors: each axis replicates, is Partial, or
// shards a random dim, in a random split order. `new_partials`: whether the target may be Partial
// where the source is not. `cold_p50_us` and `cold_p99_us` are quantiles over the pairs, in CPU
// time of the thread, so that what else runs on the machine does not count. Each plan is checked to
// lead from its source to its target. `unequal_p99_us` is the same with links of three speeds, for
// which there is no limit. `propagate_p99_us` is the same for Propagate with no plan in its cache;
// operands have random placements, but for those that are alike in practice.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "shardmesh/placement/plan_cache.h"
#include "shardmesh/placement/rule.h"

namespace shardmesh {
namespace {

double CpuMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::abort();
}

double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

const MeshShape& Mesh(int64_t index) {
  static const auto* const meshes =
      new std::vector<MeshShape>{{{"pod", 32}, {"dp", 64}, {"tp", 8}},
                                 {{"a", 4}, {"b", 4}, {"c", 4}, {"d", 4}},
                                 {{"dp", 4}, {"cp", 2}, {"tp", 8}}};
  return (*meshes)[index];
}

Layout RandomLayout(const MeshShape& mesh, const Dims& shape, std::mt19937& random) {
  Placements placements;
  std::vector<int> order;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const int choice = static_cast<int>(random() % (shape.size() + 2)) - 2;
    placements.push_back(choice >= 0 ? Shard(choice) : choice == -1 ? Partial() : Replicate());
    if (choice >= 0) order.push_back(axis);
  }
  std::shuffle(order.begin(), order.end(), random);
  return Layout::Make(mesh, placements, shape, order);
}

struct Pair {
  Layout source, target;
};

std::vector<Pair> RandomPairs(const MeshShape& mesh, const Dims& shape, bool new_partials) {
  std::mt19937 random(1);
  std::vector<Pair> pairs;
  while (pairs.size() < 2000) {
    Pair pair = {RandomLayout(mesh, shape, random), RandomLayout(mesh, shape, random)};
    for (int axis = 0; !new_partials && axis < mesh.num_axes(); ++axis) {
      if (pair.target.placement(axis).IsPartial() && !pair.source.placement(axis).IsPartial())
        pair.target = pair.target.With(axis, Replicate());
    }
    pairs.push_back(pair);
  }
  return pairs;
}

/// Microseconds of each plan.
std::vector<double> TimeColdPlans(benchmark::State& state, const PlanOptions& options) {
  const MeshShape& mesh = Mesh(state.range(0));
  const Dims shape = state.range(1) == 2 ? Dims{4096, 8192} : Dims{16, 4096, 8192};
  const std::vector<Pair> pairs = RandomPairs(mesh, shape, state.range(2) != 0);
  std::vector<double> samples;
  size_t next = 0;
  for (auto unused : state) {
    const Pair& pair = pairs[next++ % pairs.size()];
    const double start = CpuMicroseconds();
    const Plan plan = MakePlan(pair.source, pair.target, options);
    samples.push_back(CpuMicroseconds() - start);
    Layout reached = pair.source;
    for (const Step& step : plan.steps) {
      Require(step.from == reached, plan.Explain());
      reached = step.to;
    }
    Require(reached == pair.target, plan.Explain());
  }
  return samples;
}

void BM_ColdPlan(benchmark::State& state) {
  const std::vector<double> samples = TimeColdPlans(state, {.element_bytes = 2});
  state.counters["cold_p50_us"] = Quantile(samples, 0.5);
  state.counters["cold_p99_us"] = Quantile(samples, 0.99);
}
BENCHMARK(BM_ColdPlan)
    ->ArgNames({"mesh", "dims", "new_partials"})
    ->ArgsProduct({{0, 1}, {2, 3}, {0, 1}})
    ->Iterations(2000);

// Three speeds: between pods, between machines, and inside a machine.
void BM_ColdPlanUnequalLinks(benchmark::State& state) {
  PlanOptions options = {.element_bytes = 2, .links = {{20e-6, 5e9}, {10e-6, 10e9}}};
  options.links.resize(Mesh(state.range(0)).num_axes(), {2e-6, 200e9});
  const std::vector<double> samples = TimeColdPlans(state, options);
  state.counters["unequal_p50_us"] = Quantile(samples, 0.5);
  state.counters["unequal_p99_us"] = Quantile(samples, 0.99);
}
BENCHMARK(BM_ColdPlanUnequalLinks)
    ->ArgNames({"mesh", "dims", "new_partials"})
    ->ArgsProduct({{0, 1}, {2, 3}, {1}})
    ->Iterations(2000);

void BM_CachedPlan(benchmark::State& state) {
  const std::vector<Pair> pairs = RandomPairs(Mesh(0), {4096, 8192}, true);
  PlanCache cache;
  for (const Pair& pair : pairs) cache.Get(pair.source, pair.target, 2);
  const Pair& pair = pairs[0];
  const double start = CpuMicroseconds();
  for (auto unused : state) {
    const auto& entry = cache.Get(pair.source, pair.target, 2);
    benchmark::DoNotOptimize(entry.get());
  }
  state.counters["cached_ns"] =
      (CpuMicroseconds() - start) * 1e3 / static_cast<double>(state.iterations());
}
BENCHMARK(BM_CachedPlan);

struct OpCase {
  const char* name;
  const char* rule;
  std::vector<Dims> inputs;
  std::vector<Dims> outputs;
};

const OpCase& Op(int64_t index) {
  static const auto* const ops = new std::vector<OpCase>{
      {"matmul",
       "m k, k n -> m n; linear 0; linear 1",
       {{4096, 8192}, {8192, 2048}},
       {{4096, 2048}}},
      {"attention",
       "b s h d, b t h d, b t h d -> b s h d; whole s t d",
       {{16, 2048, 32, 128}, {16, 2048, 32, 128}, {16, 2048, 32, 128}},
       {{16, 2048, 32, 128}}},
      {"concat",
       "m ., m ., m ., m ., m ., m ., m ., m . -> m .; linear 0 1 2 3 4 5 6 7",
       std::vector<Dims>(8, Dims{4096, 1024}),
       {{4096, 8192}}},
  };
  return (*ops)[index];
}

void BM_Propagate(benchmark::State& state) {
  const OpCase& op = Op(state.range(0));
  const Rule rule = Rule::Parse(op.rule);
  std::mt19937 random(1);
  std::vector<double> samples;
  for (auto unused : state) {
    std::vector<Layout> inputs;
    for (const Dims& shape : op.inputs) {
      // Keys and values are alike, and the parts of a concat have two layouts between them.
      const size_t count = inputs.size();
      inputs.push_back(count < 2               ? RandomLayout(Mesh(2), shape, random)
                       : op.inputs.size() == 3 ? inputs[1]
                                               : inputs[random() % 2]);
    }
    PlanCache cache;
    const MovePrice price = [&](const Layout& from, const Layout& to, int) {
      return cache.Get(from, to, 2)->plan().seconds;
    };
    const MoveBound bound = [](const Layout& from, std::span<const Placement> to, int) {
      return MinSeconds(from, to, {.element_bytes = 2});
    };
    const double start = CpuMicroseconds();
    const Propagation chosen = Propagate(op.name, rule, inputs, op.outputs, price, bound);
    samples.push_back(CpuMicroseconds() - start);
    if (samples.size() % 64 == 1) {
      const Propagation all = Propagate(op.name, rule, inputs, op.outputs, price);
      Require(chosen.inputs == all.inputs && chosen.outputs == all.outputs, op.name);
    }
  }
  state.SetLabel(op.name);
  state.counters["propagate_p50_us"] = Quantile(samples, 0.5);
  state.counters["propagate_p99_us"] = Quantile(samples, 0.99);
}
BENCHMARK(BM_Propagate)->ArgName("op")->DenseRange(0, 2)->Iterations(1000);

// Rows to columns over all ranks: each sends to, and receives from, every other.
void BM_TransfersOfRank(benchmark::State& state) {
  const MeshShape mesh = {{"x", static_cast<int>(state.range(0))}};
  const Dims shape = {32768, 32768};
  const Layout rows = Layout::Make(mesh, {Shard(0)}, shape),
               columns = Layout::Make(mesh, {Shard(1)}, shape);
  const Coord coord = {mesh.size(0) / 3};
  const double start = CpuMicroseconds();
  for (auto unused : state) {
    const RankTransfers transfers = TransfersOfRank(rows, columns, {0}, coord);
    Require(transfers.sends.size() == static_cast<size_t>(mesh.size(0)) &&
                transfers.receives.size() == transfers.sends.size(),
            "every pair of ranks exchanges a block");
  }
  state.counters["transfers_us"] =
      (CpuMicroseconds() - start) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_TransfersOfRank)->ArgName("ranks")->Arg(64)->Arg(4096)->Arg(16384);

}  // namespace
}  // namespace shardmesh
