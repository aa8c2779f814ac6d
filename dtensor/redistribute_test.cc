// SPDX-License-Identifier: Apache-2.0
//
// Every layout of a tensor into every other, on the ranks of a process: the value bit for bit, its
// gradient, and where the gradient arrives.
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

struct Pair {
  Layout from, to;
  Layout other;  // Any.
};

std::vector<Pair> Pairs(const MeshShape& mesh, const Dims& shape,
                        const std::vector<ReduceOp>& partials, int limit) {
  const std::vector<Layout> layouts = AllLayouts(mesh, shape, partials);
  const auto count = static_cast<int64_t>(layouts.size());
  Random random(count);
  std::vector<Pair> pairs;
  if (count * count <= limit) {
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) pairs.push_back({from, to, {}});
    }
  } else {
    for (int i = 0; i < limit; ++i)
      pairs.push_back({layouts[random.Below(count)], layouts[random.Below(count)], {}});
  }
  for (Pair& pair : pairs) pair.other = layouts[random.Below(count)];
  return pairs;
}

// All pairs in one world: `move` says what to do with each, and `expected` what must come out.
void CheckPairs(const MeshShape& mesh_shape, const std::vector<Pair>& pairs,
                const GlobalValue& expected,
                const std::function<DTensor(const DeviceMesh&, const Pair&)>& move) {
  std::deque<Pieces> results(pairs.size());
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(pairs[i].from.ToString(), " -> ", pairs[i].to.ToString()));
      results[i].Put(move(mesh, pairs[i]));
    }
  });
  for (size_t i = 0; i < pairs.size(); ++i)
    ASSERT_TRUE(results[i].AreOf(expected, 0)) << pairs[i].from << " -> " << pairs[i].to;
}

const std::vector<MeshShape>& Meshes() {
  // Links without latency make plans of small tensors take the detours of large ones.
  const LinkCost fast = {0, 1e9}, slow = {0, 1e6};
  static const auto* meshes =
      new std::vector<MeshShape>{{{"x", 2}},
                                 {{"x", 3}},
                                 {{"x", 4}},
                                 {{"x", 2}, {"y", 2}},
                                 {{"x", 3}, {"y", 2}},
                                 {{"x", 2}, {"y", 1}, {"z", 2}},
                                 {{"x", 3, slow}, {"y", 2, fast}},
                                 {{"x", 2, fast}, {"y", 2, slow}, {"z", 2, fast}}};
  return *meshes;
}

const std::vector<ReduceOp> kAllOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin,
                                       ReduceOp::kProduct};

TEST(Redistribute, KeepsTheValueBetweenAnyTwoLayouts) {
  Random random(1);
  for (const MeshShape& mesh : Meshes()) {
    for (const Dims& shape : std::vector<Dims>{{5, 10}, {7}, {1, 3}, {0, 2}, {}, {2, 3, 5}}) {
      const GlobalValue value = RandomAwayFromZero(shape, random, 0.25, 3);
      CheckPairs(mesh, Pairs(mesh, shape, kAllOps, 220), value,
                 [&](const DeviceMesh& m, const Pair& pair) {
                   const DTensor y = Redistribute(Place(m, pair.from, value), pair.to);
                   EXPECT_EQ(y.layout(), pair.to);
                   return y;
                 });
    }
  }
}

TEST(Redistribute, KeepsTheValueOfEveryDType) {
  Random random(2);
  const MeshShape mesh = {{"x", 3}, {"y", 2}};
  for (DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kBool}) {
    // Small integers are exact in all of them.
    GlobalValue value = RandomIntegers({5, 4}, random, -9, 10, dtype);
    if (dtype == DType::kBool) value = RandomBools({5, 4}, random);
    // Large summands do not fit half precision, and bools are not reduced.
    const bool splits = dtype == DType::kF32 || dtype == DType::kI32 || dtype == DType::kI64;
    const std::vector<ReduceOp> partials = splits ? kAllOps : std::vector<ReduceOp>();
    CheckPairs(mesh, Pairs(mesh, value.shape, partials, 150), value,
               [&](const DeviceMesh& m, const Pair& pair) {
                 return Redistribute(Place(m, pair.from, value), pair.to);
               });
  }
}

TEST(Redistribute, ThereAndBackIsTheSameBits) {
  Random random(3);
  const MeshShape mesh = {{"x", 3}, {"y", 2}};
  const GlobalValue value = RandomGlobal({7, 5}, random);
  CheckPairs(mesh, Pairs(mesh, value.shape, {}, 200), value,
             [&](const DeviceMesh& m, const Pair& pair) {
               const DTensor x = Place(m, pair.from, value);
               const DTensor back = Redistribute(Redistribute(x, pair.to), pair.from);
               EXPECT_EQ(back.local().ToVector<double>(), x.local().ToVector<double>());
               return back;
             });
}

TEST(Redistribute, DeliversTheGradientInTheLayoutOfItsInput) {
  Random random(4);
  for (const MeshShape& mesh : Meshes()) {
    const GlobalValue value = RandomGlobal({5, 3}, random), upstream = RandomGlobal({5, 3}, random);
    CheckPairs(mesh, Pairs(mesh, value.shape, {ReduceOp::kSum}, 150), upstream,
               [&](const DeviceMesh& m, const Pair& pair) {
                 const DTensor leaf = Place(m, pair.from, value).SetRequiresGrad();
                 // Not a leaf, so that the gradient is seen as Redistribute delivers it.
                 const DTensor x = WithBackwardCallback(leaf, [] {});
                 Layout arrived;
                 DTensor(x).RegisterGradHook([&](const DTensor& grad) {
                   arrived = grad.layout();
                   return grad;
                 });
                 const DTensor y = Redistribute(x, pair.to);
                 Backward(y, Place(m, pair.other, upstream));
                 EXPECT_EQ(arrived, pair.from.PartialAsReplicate());
                 return leaf.grad();
               });
  }
}

TEST(Redistribute, OfAStridedLocalTensorIsRight) {
  // Seen elsewhere: collectives of columns of a matrix, right only where all elements are equal.
  Random random(5);
  const MeshShape mesh = {{"x", 2}, {"y", 2}};
  const GlobalValue value = RandomGlobal({3, 4, 5}, random);
  CheckPairs(mesh, Pairs(mesh, value.shape, kAllOps, 250), value,
             [&](const DeviceMesh& m, const Pair& pair) {
               const DTensor whole = Place(m, pair.from, value);
               // The same local values, laid out in memory back to front.
               const Tensor strided =
                   ops::Clone(m.context(), whole.local().Transpose(0, 2)).Transpose(0, 2);
               return Redistribute(DTensor(m, pair.from, strided), pair.to);
             });
}

TEST(FullTensor, IsTheWholeOnEveryRankFromAnyLayout) {
  Random random(6);
  for (const MeshShape& mesh_shape : Meshes()) {
    const GlobalValue value = RandomAwayFromZero({5, 7}, random, 0.5, 3);
    OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
      for (const Layout& layout : AllLayouts(mesh_shape, value.shape, kAllOps)) {
        const Tensor full = FullTensor(Place(mesh, layout, value));
        EXPECT_EQ(full.shape(), value.shape);
        EXPECT_EQ(full.ToVector<double>(), value.values) << layout;
      }
    });
  }
}

TEST(Distribute, GivesEachRankItsBoxAndKeepsPartialOnCoordinateZero) {
  Random random(7);
  for (const MeshShape& mesh_shape : Meshes()) {
    for (const Dims& shape : std::vector<Dims>{{5, 7}, {1}, {0, 3}, {}}) {
      const GlobalValue value = RandomGlobal(shape, random);
      OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
        const Tensor full = WholeTensor(mesh.context(), value);
        for (const Layout& layout : AllLayouts(mesh_shape, shape)) {
          const std::vector<Placement> placements(layout.placements().begin(),
                                                  layout.placements().end());
          const DTensor x = Distribute(mesh, full, placements);
          bool holds = true;
          for (int axis = 0; axis < layout.num_axes(); ++axis)
            holds &= !layout.placement(axis).IsPartial() || mesh.coord()[axis] == 0;
          std::vector<double> expected = BoxOf(value, x.LocalBox());
          if (!holds) expected.assign(expected.size(), 0.0);
          EXPECT_EQ(x.local().ToVector<double>(), expected) << x;
          EXPECT_NE(x.local().storage(), full.storage()) << x;
        }
      });
    }
  }
}

TEST(Distribute, RefusesALayoutThatDoesNotFit) {
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    const Tensor full = ops::Full(mesh.context(), {5, 3}, DType::kF32, 1);
    EXPECT_NE(ErrorOf([&] { Distribute(mesh, full, {Shard(2)}); }).find("[5,3]"),
              std::string::npos);
    EXPECT_NE(ErrorOf([&] {
                Distribute(mesh, full, {Shard(0), Replicate()});
              }).find("x=2"),
              std::string::npos);
    const DTensor x = Distribute(mesh, full, {Shard(0)});
    EXPECT_NE(ErrorOf([&] {
                Redistribute(x, Layout::Make(mesh.shape(), {Shard(0)}, {5, 4}));
              }).find("[5,4]"),
              std::string::npos);
    EXPECT_NE(ErrorOf([&] {
                Redistribute(x, Layout::Make({{"y", 2}}, {Shard(0)}, {5, 3}));
              }).find("y=2"),
              std::string::npos);
  });
}

TEST(FromBoxes, IsGivenTheGlobalIndicesOfTheBox) {
  OnMesh({{"x", 3}, {"y", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = FromBoxes(
        mesh, {7, 5}, DType::kI64, {Shard(0), Shard(1)}, [](const Box& box, Tensor& local) {
          ASSERT_EQ(local.shape(), box.Extents());
          int64_t* const out = local.mutable_data<int64_t>();
          for (int64_t i = box.begin[0]; i < box.end[0]; ++i) {
            for (int64_t j = box.begin[1]; j < box.end[1]; ++j)
              out[(i - box.begin[0]) * local.dim(1) + j - box.begin[1]] = i * 5 + j;
          }
        });
    std::vector<int64_t> expected(35);
    for (int64_t i = 0; i < 35; ++i) expected[i] = i;
    EXPECT_EQ(FullTensor(x).ToVector<int64_t>(), expected);
    EXPECT_NE(
        ErrorOf([&] {
          FromBoxes(mesh, {7}, DType::kF32, {Partial(), Replicate()}, [](const Box&, Tensor&) {});
        }).find("Partial"),
        std::string::npos);
  });
}

}  // namespace
}  // namespace shardmesh::testing
