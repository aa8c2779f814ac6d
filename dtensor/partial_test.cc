// SPDX-License-Identifier: Apache-2.0
//
// Values that exist only as parts: what may pass through, and what must be summed first. Recipes of
// faults seen in systems like this one.
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::ElementsAre;

const MeshShape kTwo = {{"x", 2}};

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

GlobalValue Range(const Dims& shape) {
  GlobalValue value{shape};
  for (int64_t i = 0; i < shape.NumElements(); ++i) value.values.push_back(static_cast<double>(i));
  return value;
}

TEST(Partial, AScalarIsAddedOnce) {
  // Seen elsewhere: once a rank, 65.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor s = Sum(Place(mesh, {Shard(0)}, Range({10, 1})));
    ASSERT_EQ(s.layout().placement(0), Partial());
    EXPECT_EQ(Item(s + 10.0), 55);
    EXPECT_EQ(Item(s - 10.0), 35);
    EXPECT_EQ(Item(s + Full(mesh, {}, DType::kF64, 10, {Replicate()})), 55);
    EXPECT_EQ(Item(Full(mesh, {}, DType::kF64, 10, {Replicate()}) - s), -35);
    EXPECT_EQ(Item(s * 2.0), 90);
    EXPECT_EQ(Item(s / 2.0), 22.5);
    EXPECT_EQ(Item(Maximum(s, 30.0)), 45);
    EXPECT_EQ(Item(Full(mesh, {}, DType::kF64, 90, {Replicate()}) / s), 2);
    EXPECT_EQ(Item(s * s), 45 * 45);
  });
}

TEST(Partial, TheEpsilonOfANormIsAddedToTheNorm) {
  // Seen elsewhere: to each rank's part of it, 6.4031.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor grads = Place(mesh, {Shard(0)}, {{2}, DType::kF64, {3, 4}});
    const DTensor norm = Sqrt(Sum(Square(grads)));
    EXPECT_EQ(Item(norm + 1.0), 6);
    EXPECT_EQ(Item(Sqrt(Sum(Square(grads)) + 11.0)), 6);
  });
}

TEST(Partial, TheValueOfANormIsThatOfTheWhole) {
  // Seen elsewhere: the local value, 5.6569.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor ones = Full(mesh, {8, 8}, DType::kF64, 1, {Shard(0)});
    EXPECT_EQ(Item(Sqrt(Sum(Square(ones)))), 8);
    EXPECT_EQ(Item(Sum(Square(ones))), 64);
    EXPECT_EQ(Item(Max(Mul(ones, static_cast<double>(1)))), 1);
  });
}

TEST(Partial, FromReplicateAndBackKeepsEveryBit) {
  // Seen elsewhere: divided by the number of ranks.
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    const Tensor tenth = Tensor::FromValues<float>(mesh.context(), {3}, {0.1f, -0.0f, 1e-38f});
    const DTensor x = Distribute(mesh, tenth, {Replicate()});
    const DTensor partial = Redistribute(x, {Partial()});
    const Tensor back = Redistribute(partial, {Replicate()}).local();
    EXPECT_EQ(std::memcmp(back.data<float>(), tenth.data<float>(), 3 * sizeof(float)), 0);
    if (mesh.coord()[0] > 0) {
      EXPECT_THAT(partial.local().ToVector<float>(), ElementsAre(0, 0, 0));
    }
  });
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const int64_t large = (int64_t{1} << 62) + 7;
    const Tensor seven = Tensor::FromValues<int64_t>(mesh.context(), {2}, {7, large});
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const DTensor partial = Redistribute(Distribute(mesh, seven, {Replicate()}), {Partial(op)});
      EXPECT_THAT(Redistribute(partial, {Replicate()}).local().ToVector<int64_t>(),
                  ElementsAre(7, large));
    }
  });
}

TEST(Partial, OnTwoAxesIsReducedOverBoth) {
  // Seen elsewhere: one all-reduce dropped, and replicas that differ.
  const MeshShape mesh_shape = {{"a", 2}, {"b", 2}};
  Pieces pieces;
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const double factor = 10 * mesh.coord()[0] + mesh.coord()[1] + 1;
    const Tensor local = Tensor::FromValues<double>(mesh.context(), {2}, {factor, 2 * factor});
    const DTensor x = FromLocal(mesh, local, {2}, {Partial(), Partial()});
    pieces.Put(Redistribute(x, {Shard(0), Replicate()}));
    EXPECT_THAT(Whole(x), ElementsAre(26, 52));
  });
  EXPECT_TRUE(pieces.AreOf({{2}, DType::kF64, {26, 52}}, 0));
}

TEST(Partial, OfTwoKindsMeetOnlyThroughValues) {
  const MeshShape mesh_shape = {{"a", 2}, {"b", 2}};
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const GlobalValue value = Range({4, 4});
    const DTensor max = Max(Place(mesh, {Shard(0), Shard(1)}, value), {0});  // P(max) on a.
    EXPECT_EQ(max.layout().placement(0), Partial(ReduceOp::kMax));
    const DTensor sum = Sum(Place(mesh, {Shard(0), Shard(1)}, value), {0});
    EXPECT_THAT(Whole(max + sum), ElementsAre(36, 41, 46, 51));
    EXPECT_THAT(Whole(Sum(max)), ElementsAre(54));
    EXPECT_THAT(Whole(Max(sum)), ElementsAre(36));
    EXPECT_THAT(Whole(Concat({max, sum}, 0)), ElementsAre(12, 13, 14, 15, 24, 28, 32, 36));
    EXPECT_THAT(Whole(Neg(max)),
                ElementsAre(-12, -13, -14, -15));  // Not the maximum of negated parts.
    EXPECT_THAT(Whole(Mul(max, -1.0)), ElementsAre(-12, -13, -14, -15));
  });
}

TEST(Partial, IsCastAfterTheSum) {
  // 1.75 + 1.5 is 3, not 1 + 1.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const double part = mesh.coord()[0] == 0 ? 1.75 : 1.5;
    const DTensor sum =
        FromLocal(mesh, ops::Full(mesh.context(), {}, DType::kF64, part), {}, {Partial()});
    EXPECT_EQ(Item(Cast(sum, DType::kI64)), 3);
    const int64_t count = mesh.coord()[0] == 0 ? 5 : -5;
    const DTensor none =
        FromLocal(mesh, Tensor::FromValues<int64_t>(mesh.context(), {}, {count}), {}, {Partial()});
    EXPECT_EQ(Item(Cast(none, DType::kBool)), 0);
    EXPECT_EQ(Item(Cast(none + 7.0, DType::kF64)), 7);
  });
}

TEST(Partial, TheBiasOfARowParallelLinearIsAddedOnce) {
  // Seen elsewhere: higher by one bias.
  const GlobalValue x = {{2, 4}, DType::kF64, {1, 2, 3, 4, 5, 6, 7, 8}};
  const GlobalValue w = {{3, 4}, DType::kF64, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const GlobalValue bias = {{3}, DType::kF64, {100, 200, 300}};
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor y = Linear(Place(mesh, {Shard(1)}, x), Place(mesh, {Shard(1)}, w),
                             Place(mesh, {Replicate()}, bias));
    EXPECT_THAT(Whole(y), ElementsAre(130, 270, 410, 170, 374, 578));
  });
}

}  // namespace
}  // namespace shardmesh::testing
