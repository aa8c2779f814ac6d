// SPDX-License-Identifier: Apache-2.0
//
// The planner against brute force: every pair of layouts of small meshes, equal and unequal links,
// with and without a cap on peak bytes.
//
//   plan_exact_test                a sample of the pairs, in less than a minute
//   plan_exact_test --exhaustive   all of them
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/testing/plan_oracle.h"

namespace shardmesh {
namespace {

using shardmesh::testing::PlanOracle;

bool is_exhaustive = false;

/// True for about one in `stride` values of `pair`, spread over all of them.
bool IsSampled(uint64_t pair, uint64_t stride) {
  return is_exhaustive || (pair * 0x9e3779b97f4a7c15u >> 20) % stride == 0;
}

std::vector<std::vector<LinkCost>> Links(const MeshShape& mesh) {
  std::vector<LinkCost> no_latency, slow_first, slow_last, like_copies;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const bool is_first = axis == 0, is_last = axis + 1 == mesh.num_axes();
    no_latency.push_back({0, axis % 2 == 0 ? 1e6 : 1e9});
    // The fast ones are faster than a local copy.
    slow_first.push_back(is_first ? LinkCost{20e-6, 1e9} : LinkCost{1e-6, 1e11});
    like_copies.push_back({1e-6, PlanOptions().local_bytes_per_second});
    slow_last.push_back(is_last ? LinkCost{50e-6, 2e9} : LinkCost{3e-6, 3e10});
  }
  return {{}, no_latency, slow_first, slow_last, like_copies};
}

/// The number of pairs checked.
int64_t CheckAllPairs(const MeshShape& mesh, const Dims& shape, const std::vector<ReduceOp>& ops,
                      const PlanOptions& options, uint64_t stride) {
  const PlanOracle oracle(mesh, shape, ops, options);
  const std::vector<Layout>& layouts = oracle.layouts();
  const size_t count = layouts.size();
  int64_t checked = 0;
  for (size_t source = 0; source < count; ++source) {
    std::vector<double> costs;
    for (size_t target = 0; target < count; ++target) {
      if (source == target || !IsSampled(source * count + target, stride)) continue;
      if (costs.empty()) costs = oracle.Costs(static_cast<int>(source));
      const double want = costs[target];
      ++checked;
      if (want == std::numeric_limits<double>::infinity()) {
        EXPECT_FALSE(Catch([&] { MakePlan(layouts[source], layouts[target], options); }).ok());
        continue;
      }
      const Plan plan = MakePlan(layouts[source], layouts[target], options);
      const double got = plan.seconds + PlanOracle::Charge(plan);
      EXPECT_NEAR(got, want, 1e-10 * want) << plan;
      if (options.max_peak_bytes) {
        EXPECT_LE(plan.peak_bytes, *options.max_peak_bytes) << plan;
      }
      const Placements& placements = layouts[target].placements();
      const double bound =
          MinSeconds(layouts[source], {placements.data(), placements.size()}, options);
      EXPECT_LE(bound, plan.seconds * (1 + 1e-9)) << plan;
      if (::testing::Test::HasFailure()) return checked;
    }
  }
  return checked;
}

void CheckMesh(const MeshShape& mesh, const std::vector<Dims>& shapes,
               const std::vector<ReduceOp>& ops, uint64_t stride) {
  int64_t checked = 0;
  for (const Dims& shape : shapes) {
    for (const std::vector<LinkCost>& links : Links(mesh)) {
      PlanOptions options = {.links = links};
      checked += CheckAllPairs(mesh, shape, ops, options, stride);
      // From what few plans keep to what most do.
      for (const int64_t part : {1, 3}) {
        options.max_peak_bytes = shape.NumElements() * options.element_bytes * part / 2;
        checked += CheckAllPairs(mesh, shape, ops, options, 4 * stride);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
  std::printf("%s: %lld pairs\n", mesh.ToString().c_str(), static_cast<long long>(checked));
}

const std::vector<Dims>& Shapes() {
  static const auto* const shapes = new std::vector<Dims>{
      {},     {7},          {1024},    {5, 3},        {1, 4},
      {0, 3}, {1024, 1024}, {2, 3, 4}, {4096, 3, 64}, {512, 512, 64},
  };
  return *shapes;
}

TEST(PlanExact, OneAxis) {
  for (const int size : {2, 3, 5})
    CheckMesh({{"a", size}}, Shapes(), {ReduceOp::kSum, ReduceOp::kMax}, 1);
}

TEST(PlanExact, TwoAxes) {
  for (const MeshShape& mesh : {MeshShape{{"a", 2}, {"b", 2}}, MeshShape{{"a", 3}, {"b", 2}},
                                MeshShape{{"a", 5}, {"b", 3}}})
    CheckMesh(mesh, Shapes(), {ReduceOp::kSum}, 1);
}

TEST(PlanExact, TwoOpsOnTwoAxes) {
  CheckMesh({{"a", 3}, {"b", 2}}, Shapes(), {ReduceOp::kSum, ReduceOp::kMax}, 2);
}

TEST(PlanExact, WithoutPartial) { CheckMesh({{"a", 3}, {"b", 2}}, Shapes(), {}, 2); }

TEST(PlanExact, TwoByTwoByTwo) {
  CheckMesh({{"a", 2}, {"b", 2}, {"c", 2}}, Shapes(), {ReduceOp::kSum}, 40);
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i)
    shardmesh::is_exhaustive |= std::string_view(argv[i]) == "--exhaustive";
  return RUN_ALL_TESTS();
}
