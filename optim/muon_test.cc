// SPDX-License-Identifier: Apache-2.0
//
// Muon on shards of every kind, and what it communicates. (Its numbers: golden_optim_test.cc.)
#include "shardmesh/optim/muon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/optim/testing/parameters.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh::optim {
namespace {

using testing::ErrorOf;
using ::testing::HasSubstr;
using testing::MakeParameter;
using testing::OnMesh;
using testing::SetGrad;
using testing::ValuesOf;

// Three steps on one matrix; its values after them, on rank 0.
std::vector<double> Trained(const MeshShape& shape, const Layout& layout,
                            const MuonOptions& options) {
  std::vector<double> values;
  OnMesh(shape, [&](const DeviceMesh& mesh) {
    nn::Parameter parameter =
        MakeParameter(mesh, "up.weight", std::vector<Placement>(shape.num_axes(), Replicate()),
                      layout.global_shape(), /*seed=*/1);
    parameter.Place(mesh, layout);
    Muon optimizer({parameter}, options);
    for (int step = 0; step < 3; ++step) {
      SetGrad(parameter, 10 + step);
      optimizer.Step();
    }
    const std::vector<double> full = ValuesOf(parameter);
    if (mesh.coord() == Coord(shape.num_axes(), 0)) values = full;
  });
  return values;
}

TEST(Muon, GivesTheNumbersOfOneRankOnAnyMesh) {
  for (const MuonOptions& options : {MuonOptions{.lr = 0.1},
                                     {.lr = 0.1, .nesterov = false, .ns_steps = 3},
                                     {.lr = 0.1, .match_rms_adamw = true}}) {
    // Tall, wide, square, fewer rows than ranks, one column.
    for (const Dims& shape : {Dims{11, 5}, {5, 7}, {6, 6}, {2, 13}, {7, 1}}) {
      const MeshShape one = {{"dp", 1}};
      const std::vector<double> expected = Trained(one, Layout::Replicated(one, shape), options);
      for (const MeshShape& mesh : {MeshShape{{"dp", 2}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}}) {
        for (const Layout& layout : shardmesh::testing::AllLayouts(mesh, shape, {})) {
          EXPECT_TRUE(shardmesh::testing::AreClose(Trained(mesh, layout, options), expected, 1e-12))
              << layout;
        }
      }
    }
  }
}

// Singular values come near 1 from wherever they are: x x^T is about the identity.
TEST(Muon, MovesByAnOrthogonalMatrix) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const nn::Parameter parameter = MakeParameter(mesh, "w", {Shard(0)}, {3, 8}, /*seed=*/1);
    const std::vector<double> before = ValuesOf(parameter);
    Muon optimizer({parameter}, {.lr = 1, .weight_decay = 0});
    SetGrad(parameter, 2);
    optimizer.Step();
    const std::vector<double> after = ValuesOf(parameter);
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) {
        double product = 0;
        for (int k = 0; k < 8; ++k) {
          product +=
              (after[i * 8 + k] - before[i * 8 + k]) * (after[j * 8 + k] - before[j * 8 + k]);
        }
        EXPECT_NEAR(product, i == j ? 1 : 0, 0.5) << i << "," << j;
      }
    }
  });
}

struct Traffic {
  int64_t count = 0, bytes = 0;
  void Add(const Plan& plan) {
    for (const ::shardmesh::Step& step : plan.steps) {
      count += step.bytes_sent > 0 ? 1 : 0;
      bytes += step.bytes_sent;
    }
  }
};

// What the plans of the moves say: to the longer dim and back, the norm, a product an iteration.
Traffic Planned(const Layout& layout, int iterations) {
  const PlanOptions options = {.element_bytes = 8};
  const Dims& shape = layout.global_shape();
  const int longer = shape[0] > shape[1] ? 0 : 1;
  std::vector<Placement> work(layout.placements().begin(), layout.placements().end());
  std::vector<Placement> sums = work;
  for (size_t axis = 0; axis < work.size(); ++axis) {
    if (!work[axis].IsShard()) continue;
    work[axis] = Shard(longer);
    sums[axis] = Partial();
  }
  Layout target = Layout::Make(layout.mesh(), work, shape);
  if (target.placements() == layout.placements()) target = layout;
  const int64_t least = std::min(shape[0], shape[1]);
  const Layout norm = Layout::Make(layout.mesh(), sums, Dims{});
  const Layout gram = Layout::Make(layout.mesh(), sums, Dims{least, least});
  Traffic traffic;
  traffic.Add(MakePlan(layout, target, options));
  traffic.Add(MakePlan(norm, norm.PartialAsReplicate(), options));
  for (int i = 0; i < iterations; ++i)
    traffic.Add(MakePlan(gram, gram.PartialAsReplicate(), options));
  traffic.Add(MakePlan(target, layout, options));
  return traffic;
}

TEST(Muon, CommunicatesWhatThePlansOfItsProductsSay) {
  const MeshShape shape = {{"dp", 2}, {"tp", 2}};
  const Dims wide = {6, 16}, tall = {16, 6};
  for (const Layout& layout : {
           Layout::Make(shape, {Shard(0), Shard(1)}, wide),          // FullyShard, and rows of tp.
           Layout::Make(shape, {Shard(0), Shard(0)}, wide, {1, 0}),  // And columns of it.
           Layout::Make(shape, {Shard(0), Replicate()}, wide),
           Layout::Make(shape, {Replicate(), Shard(1)}, wide),
           Layout::Make(shape, {Shard(0), Shard(1)}, tall),
           Layout::Make(shape, {Shard(0), Shard(0)}, tall, {1, 0}),
           Layout::Replicated(shape, tall),
       }) {
    const Traffic planned = Planned(layout, /*iterations=*/5);
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      nn::Parameter parameter =
          MakeParameter(mesh, "w", {Replicate(), Replicate()}, layout.global_shape(), /*seed=*/1);
      parameter.Place(mesh, layout);
      Muon optimizer({parameter});
      SetGrad(parameter, 2);
      const CommTrace trace(mesh);
      optimizer.Step();
      EXPECT_EQ(trace.Count(), planned.count) << layout << "\n" << trace.ToString();
      if (mesh.coord() == Coord{0, 0}) {
        EXPECT_EQ(trace.Bytes(), planned.bytes) << layout << "\n" << trace.ToString();
      }
    });
  }
}

// The same in numbers: sharded by rows over both axes, [6, 16] f64 moves to columns (each of four
// ranks has at most 2 x 16 elements and keeps a quarter) and back, and reduces a number and five
// times [6, 6] over all four.
TEST(Muon, ReducesFiveSmallProductsPerMatrix) {
  OnMesh({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    const nn::Parameter parameter =
        MakeParameter(mesh, "w", {Shard(0), Shard(0)}, {6, 16}, /*seed=*/1);
    Muon optimizer({parameter});
    SetGrad(parameter, 2);
    const CommTrace trace(mesh);
    optimizer.Step();
    EXPECT_EQ(trace.Count("", "all_to_all"), 2) << trace.ToString();
    EXPECT_EQ(trace.Count("", "all_reduce"), 6) << trace.ToString();
    EXPECT_EQ(trace.Count(), 8) << trace.ToString();
  });
}

TEST(Muon, RefusesWhatIsNoMatrixByName) {
  nn::Parameter bias({5}, DType::kF32, nn::Init::Constant(0));
  bias.set_name("up.bias");
  EXPECT_EQ(ErrorOf([&] { Muon({bias}); }),
            "Muon: parameter up.bias f32[5] on meta has 1 dims, expected 2; give it to another "
            "optimizer, AdamW for example");
  nn::Parameter kernel({5, 3, 2}, DType::kF32, nn::Init::Constant(0));
  EXPECT_THAT(ErrorOf([&] { Muon({kernel}); }), HasSubstr("has 3 dims"));
  nn::Parameter matrix({5, 3}, DType::kF32, nn::Init::Constant(0));
  EXPECT_EQ(ErrorOf([&] { Muon({matrix}, {.momentum = 1}); }),
            "Muon: momentum is 1, expected 0 to below 1");
  EXPECT_EQ(ErrorOf([&] { Muon({matrix}, {.ns_steps = -1}); }),
            "Muon: ns_steps is -1, expected 0 to below 100");
}

TEST(Muon, TakesAMatrixOfZerosAndAnEmptyOne) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const nn::Parameter parameter = MakeParameter(mesh, "w", {Shard(0)}, {3, 5}, /*seed=*/1);
    const nn::Parameter empty = MakeParameter(mesh, "e", {Shard(0)}, {0, 5}, /*seed=*/1);
    Muon optimizer({parameter, empty}, {.lr = 0.5, .weight_decay = 0});
    const std::vector<double> before = ValuesOf(parameter);
    DTensor leaf = parameter.data();
    leaf.SetGrad(Zeros(mesh, {3, 5}, DType::kF64, {Shard(0)}));
    SetGrad(empty, 1);
    optimizer.Step();
    EXPECT_EQ(ValuesOf(parameter), before);
    EXPECT_EQ(optimizer.states()[1].step, 1);
  });
}

}  // namespace
}  // namespace shardmesh::optim
