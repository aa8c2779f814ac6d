// SPDX-License-Identifier: Apache-2.0
//
// Entering and leaving the global view, and what becomes of gradients on the way.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const MeshShape kTwo = {{"x", 2}};
const MeshShape kFour = {{"x", 4}};

Tensor Local(const DeviceMesh& mesh, const Dims& shape, double value) {
  return ops::Full(mesh.context(), shape, DType::kF64, value);
}

// ---- FromLocal ----------------------------------------------------------------------------------

TEST(FromLocal, TakesUnevenBoxesOfAGlobalShape) {
  // Seen elsewhere: the global size guessed as local x ranks, 12 on some ranks and 4 on another.
  const GlobalValue whole = Values({10, 2}, 1);
  OnMesh(kFour, [&](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(kFour, {Shard(0)}, whole.shape);
    const Tensor local = LocalPart(mesh.context(), layout, mesh.coord(), whole);
    EXPECT_EQ(local.dim(0), mesh.coord()[0] == 3 ? 1 : 3);
    const DTensor x = FromLocal(mesh, local, {10, 2}, {Shard(0)});
    EXPECT_EQ(x.shape(), (Dims{10, 2}));
    EXPECT_EQ(x.local().storage(), local.storage());
    EXPECT_EQ(FullTensor(x).ToVector<double>(), whole.values);
  });
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor x =
        FromLocal(mesh, Local(mesh, {mesh.coord()[0] == 0 ? 3 : 2}, 1.5), {5}, {Shard(0)});
    EXPECT_EQ(x.shape(), Dims{5});
    EXPECT_EQ(Item(Sum(x)), 7.5);
  });
}

TEST(FromLocal, RefusesOnEveryRankAGlobalShapeThatTheBoxesDoNotFit) {
  OnMesh(kFour, [&](const DeviceMesh& mesh) {
    const Tensor local = Local(mesh, {mesh.coord()[0] == 3 ? 1 : 3, 2}, 1);
    EXPECT_THAT(ErrorOf([&] {
                  FromLocal(mesh, local, {12, 2}, {Shard(0)});
                }),
                AllOf(HasSubstr("rank 3"), HasSubstr("[1,2]"), HasSubstr("[3,2]"),
                      HasSubstr("f64[12,2] [S(0)]")));
    // The ranks' guesses differ.
    EXPECT_THAT(ErrorOf([&] {
                  FromLocal(mesh, local, {4 * local.dim(0), 2}, {Shard(0)});
                }),
                HasSubstr("ranks 0 and 3"));
    // All caught it at the same point, and go on.
    EXPECT_EQ(Item(Sum(FromLocal(mesh, local, {10, 2}, {Shard(0)}))), 20);
  });
}

TEST(FromLocal, RefusesUnevenShardsThatAreNotChunks) {
  // Seen elsewhere: accepted, and gathered in a scrambled order.
  OnMesh(kFour, [&](const DeviceMesh& mesh) {
    const Tensor local = Local(mesh, {2, 2 + mesh.coord()[0]}, 1);
    EXPECT_THAT(
        ErrorOf([&] {
          FromLocal(mesh, local, {2, 14}, {Shard(1)});
        }),
        AllOf(HasSubstr("f64[2,14] [S(1)]"), HasSubstr("rank 0 passed [2,2] instead of [2,4]"),
              HasSubstr("rank 1 passed [2,3] instead of [2,4]"), Not(HasSubstr("rank 2")),
              HasSubstr("rank 3 passed [2,5] instead of [2,2]")));
  });
}

TEST(FromLocal, RefusesRanksThatDisagreeInOtherWays) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const bool first = mesh.coord()[0] == 0;
    const DType dtype = first ? DType::kF32 : DType::kF64;
    EXPECT_THAT(ErrorOf([&] {
                  FromLocal(mesh, ops::Zeros(mesh.context(), {3}, dtype), {3}, {Replicate()});
                }),
                AllOf(HasSubstr("ranks 0 and 1"), HasSubstr(std::string(Name(dtype)))));
    EXPECT_THAT(ErrorOf([&] {
                  FromLocal(mesh, Local(mesh, {3}, 1), {3}, {first ? Replicate() : Partial()});
                }),
                HasSubstr("different dtypes, global shapes or placements"));
    EXPECT_THAT(ErrorOf([&] {
                  FromLocal(mesh, Local(mesh, first ? Dims{3} : Dims{1, 3}, 1), {3}, {Replicate()});
                }),
                AllOf(HasSubstr("rank 1"), HasSubstr("[1,3]")));
  });
}

TEST(FromLocal, OfPartialValuesIsTheirSum) {
  OnMesh(kFour, [&](const DeviceMesh& mesh) {
    const DTensor x = FromLocal(mesh, Local(mesh, {3}, 1 + mesh.coord()[0]), {3}, {Partial()});
    EXPECT_EQ(FullTensor(x).ToVector<double>(), std::vector<double>(3, 10));
  });
}

// ---- ToLocal ------------------------------------------------------------------------------------

TEST(ToLocal, SharesStorageAndFeedsTheGradientBack) {
  const GlobalValue x = Values({5, 3}, 2), g = Values({5, 3}, 3);
  for (const bool at_leaf : {true, false}) {
    OnMesh(kTwo, [&](const DeviceMesh& mesh) {
      const DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
      const DTensor y = at_leaf ? leaf : Mul(leaf, 2.0);
      const LocalValue local = ToLocal(y, {LocalGradient::kReplicated});
      EXPECT_EQ(local.value.storage(), y.local().storage());
      local.Backward(LocalPart(mesh.context(), y.layout(), mesh.coord(), g));
      std::vector<double> expected = g.values;
      for (double& v : expected) v *= at_leaf ? 1 : 2;
      EXPECT_EQ(FullTensor(leaf.grad()).ToVector<double>(), expected);
    });
  }
}

TEST(ToLocal, TheCallerSaysWhatTheGradientOfAReplicatedValueIs) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const double mine = mesh.coord()[0] == 0 ? 3 : 5;
    const auto gradient = [&](LocalGradient kind, double value) {
      const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 4)).SetRequiresGrad();
      ToLocal(Mul(leaf, 2.0), {kind}).Backward(Local(mesh, {3}, value));
      return leaf.grad().local().ToVector<double>();
    };
    // Each rank did other work with the value: a sum. All did the same: as it is.
    EXPECT_THAT(gradient(LocalGradient::kPartialSum, mine), ElementsAre(16, 16, 16));
    EXPECT_THAT(gradient(LocalGradient::kReplicated, 3), ElementsAre(6, 6, 6));
  });
}

TEST(ToLocal, OfAParameterKeepsTheReductionOverTheOtherAxisExactlyOnce) {
  // A norm's weight, sharded by FSDP and replicated over tp, on two halves of a sequence.
  const MeshShape mesh_shape = {{"dp", 2}, {"tp", 2}};
  const GlobalValue weight = Values({6}, 5), sequence = Values({4, 6}, 6);
  std::vector<double> expected(6, 0.0);
  for (int64_t i = 0; i < 24; ++i) expected[i % 6] += sequence.values[i];
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0), Replicate()}, weight).SetRequiresGrad();
    const DTensor gathered = Redistribute(leaf, {Replicate(), Replicate()});
    const LocalValue local =
        ToLocal(gathered, {LocalGradient::kPartialSum, LocalGradient::kPartialSum});
    // Each rank has one row of four; d/dw sum(row * w) is the row.
    const int row = mesh.coord()[0] * 2 + mesh.coord()[1];
    const std::vector<double> values(sequence.values.begin() + row * 6,
                                     sequence.values.begin() + row * 6 + 6);
    const Tensor grad =
        Tensor::FromValues<double>(mesh.context(), {6}, std::span<const double>(values));
    const CommTrace trace(mesh);
    local.Backward(grad);
    EXPECT_EQ(trace.Count("tp", "all_reduce"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count("dp", "reduce_scatter"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 2) << trace.ToString();
    EXPECT_EQ(leaf.grad().layout(), leaf.layout());
    EXPECT_TRUE(AreClose(FullTensor(leaf.grad()).ToVector<double>(), expected, 1e-12));
  });
}

TEST(ToLocal, RefusesSummandsAndGradientsThatDoNotFit) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor partial = Place(mesh, {Partial()}, Values({3}, 7));
    EXPECT_THAT(ErrorOf([&] { ToLocal(partial, {LocalGradient::kReplicated}); }),
                AllOf(HasSubstr("f64[3] [P(sum)]"), HasSubstr("redistribute")));
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({5}, 8)).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] { ToLocal(leaf, {}); }), HasSubstr("gradient kinds"));
    EXPECT_THAT(ErrorOf([&] {
                  ToLocal(Exp(leaf), {LocalGradient::kReplicated}).Backward(Local(mesh, {5}, 1));
                }),
                HasSubstr("f64[5]"));
    EXPECT_FALSE(leaf.grad());
  });
}

TEST(ToLocal, OfASumAcrossRanksDoesNotDivideItsGradient) {
  // Local summands -> P -> S(0) -> local, summed: one reduce-scatter, back one all-gather, and a
  // gradient of one.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const CommTrace forward(mesh);
    DTensor x = FromLocal(mesh, Local(mesh, {4, 3}, 1 + mesh.coord()[0]), {4, 3}, {Partial()});
    x.SetRequiresGrad();
    const DTensor y = Redistribute(x, {Shard(0)});
    EXPECT_EQ(forward.Count("x", "reduce_scatter"), 1);
    EXPECT_EQ(forward.Count("x", "", "redistribute"), 1);
    const LocalValue local = ToLocal(y, {LocalGradient::kReplicated});
    EXPECT_EQ(local.value.ToVector<double>(), std::vector<double>(6, 3));
    const CommTrace backward(mesh);
    local.Backward(Local(mesh, {2, 3}, 1));
    EXPECT_EQ(backward.Count("x", "all_gather"), 1);
    EXPECT_EQ(backward.Count(), 1);
    EXPECT_EQ(x.grad().layout(), x.layout().PartialAsReplicate());
    EXPECT_EQ(x.grad().local().ToVector<double>(), std::vector<double>(12, 1));
  });
}

}  // namespace
}  // namespace shardmesh::testing
