// SPDX-License-Identifier: Apache-2.0
//
// Values that exist only as parts: what may pass through, and what must be summed first. Recipes of
// faults seen in systems like this one.
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
using ::testing::NanSensitiveFloatEq;
using ::testing::Pointwise;

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

// Parts of [2, 3] on a rank: mixed signs, an infinity, a zero, and on some rank the identity.
DTensor PartsOf(const DeviceMesh& mesh, DType dtype, ReduceOp op) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double identity = op == ReduceOp::kMax ? -kInfinity : op == ReduceOp::kMin ? kInfinity : 1;
  const double none = IsFloating(dtype) ? identity : 1;
  const std::vector<std::vector<double>> parts = {
      {-1.5, 2.25, 0, none, 3, -7}, {-2.5, 0.75, -4, 5, none, -6.5}, {none, -3, 1, -5, 2.5, none}};
  const Tensor wide = Tensor::FromValues<double>(mesh.context(), {2, 3},
                                                 std::span<const double>(parts[mesh.coord()[0]]));
  return FromLocal(mesh, ops::Cast(mesh.context(), wide, dtype), {2, 3}, {Partial(op)});
}

TEST(Partial, MaximaMinimaAndProductsPassWhereTheOpAllows) {
  constexpr ReduceOp kMax = ReduceOp::kMax, kMin = ReduceOp::kMin, kProduct = ReduceOp::kProduct;
  using Fn = DTensor (*)(const DTensor&);
  struct Row {
    const char* name;
    Fn fn;
    std::vector<std::pair<ReduceOp, ReduceOp>> passes;  // All others are reduced first.
  };
  const std::vector<std::pair<ReduceOp, ReduceOp>> all = {
      {kMax, kMax}, {kMin, kMin}, {kProduct, kProduct}};
  const std::vector<std::pair<ReduceOp, ReduceOp>> rising = {{kMax, kMax}, {kMin, kMin}};
  const std::vector<std::pair<ReduceOp, ReduceOp>> falling = {{kMax, kMin}, {kMin, kMax}};
  const std::vector<Row> rows = {
      {"transpose", [](const DTensor& x) { return Transpose(x, 0, 1); }, all},
      {"permute",
       [](const DTensor& x) {
         return Permute(x, {1, 0});
       },
       all},
      {"reshape", [](const DTensor& x) { return Reshape(x, {6}); }, all},
      {"slice", [](const DTensor& x) { return Slice(x, 1, 1, 2); }, all},
      {"expand",
       [](const DTensor& x) {
         return Expand(x, {2, 2, 3});
       },
       all},
      {"unsqueeze", [](const DTensor& x) { return Unsqueeze(x, 1); }, all},
      {"select", [](const DTensor& x) { return Select(x, 0, 1); }, all},
      {"concat",
       [](const DTensor& x) {
         return Concat({x, x}, 0);
       },
       all},
      {"flip", [](const DTensor& x) { return Flip(x, {1}); }, all},
      {"roll", [](const DTensor& x) { return Roll(x, {1}, {1}); }, all},
      {"padded",
       [](const DTensor& x) {
         return Pad(x, {1, 1});
       },
       {}},
      {"floor", [](const DTensor& x) { return Floor(x); }, rising},
      {"round", [](const DTensor& x) { return Round(x); }, rising},
      {"relu", [](const DTensor& x) { return Relu(x); }, rising},
      {"cast", [](const DTensor& x) { return Cast(x, DType::kBF16); }, rising},
      {"add 1.5", [](const DTensor& x) { return x + 1.5; }, rising},
      {"times 2.5", [](const DTensor& x) { return x * 2.5; }, rising},
      {"over 2.5", [](const DTensor& x) { return x / 2.5; }, rising},
      {"maximum", [](const DTensor& x) { return Maximum(x, 0.5); }, rising},
      {"minimum", [](const DTensor& x) { return Minimum(x, 0.5); }, rising},
      {"neg", [](const DTensor& x) { return Neg(x); }, falling},
      {"times -2.5", [](const DTensor& x) { return x * -2.5; }, falling},
      {"over -2.5", [](const DTensor& x) { return x / -2.5; }, falling},
      // 0 times the identity of a maximum is nan, as is an infinity less an infinity.
      {"times 0", [](const DTensor& x) { return x * 0.0; }, {}},
      {"times 1e-60 (0 in f32)", [](const DTensor& x) { return x * 1e-60; }, {}},
      {"add inf", [](const DTensor& x) { return x + std::numeric_limits<double>::infinity(); }, {}},
      {"exp", [](const DTensor& x) { return Exp(x); }, {}},
      {"sign", [](const DTensor& x) { return Sign(x); }, {}},
      {"max", [](const DTensor& x) { return Max(x, {0}); }, {{kMax, kMax}}},
      {"min", [](const DTensor& x) { return Min(x, {1}); }, {{kMin, kMin}}},
      {"prod", [](const DTensor& x) { return Prod(x, {0}); }, {{kProduct, kProduct}}},
      {"larger of two", [](const DTensor& x) { return Maximum(x, x); }, {{kMax, kMax}}},
      {"smaller of two", [](const DTensor& x) { return Minimum(x, x); }, {{kMin, kMin}}},
      {"product of two", [](const DTensor& x) { return Mul(x, x); }, {{kProduct, kProduct}}},
      {"where",
       [](const DTensor& x) {
         return Where(Full(x.mesh(), {3}, DType::kBool, 1, {Replicate()}), x, x);
       },
       all},
  };
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    for (const Row& row : rows) {
      for (const ReduceOp op : {kMax, kMin, kProduct}) {
        const DTensor x = PartsOf(mesh, DType::kF32, op);
        std::optional<ReduceOp> passed;
        for (const auto& [from, to] : row.passes) {
          if (from == op) passed = to;
        }
        CommTrace trace(mesh);
        const DTensor y = row.fn(x);
        EXPECT_EQ(trace.events().empty(), passed.has_value())
            << row.name << " of " << Partial(op).ToString() << ": " << trace.ToString();
        if (passed) {
          EXPECT_EQ(y.layout().placement(0), Partial(*passed)) << row.name;
        }
        const DTensor expected = row.fn(Redistribute(x, {Replicate()}));
        const auto values = [](const DTensor& z) {
          return FullTensor(Cast(z, DType::kF32)).ToVector<float>();
        };
        EXPECT_THAT(values(y), Pointwise(NanSensitiveFloatEq(), values(expected)))
            << row.name << " of " << Partial(op).ToString();
      }
    }
  });
}

TEST(Partial, IntegersThatMayOverflowAreReducedFirst) {
  // The identity of a maximum is the least integer: one less, or its negative, would be the
  // largest.
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    for (const DType dtype : {DType::kI32, DType::kI64}) {
      const DTensor whole = Place(mesh, {Replicate()}, {{3}, dtype, {-7, 0, 5}});
      for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
        const DTensor x = Redistribute(whole, {Partial(op)});
        EXPECT_THAT(FullTensor(x - 3.0).ToVector<int64_t>(), ElementsAre(-10, -3, 2));
        EXPECT_THAT(FullTensor(x + 3.0).ToVector<int64_t>(), ElementsAre(-4, 3, 8));
        EXPECT_THAT(FullTensor(x * -2.0).ToVector<int64_t>(), ElementsAre(14, 0, -10));
        EXPECT_THAT(FullTensor(Neg(x)).ToVector<int64_t>(), ElementsAre(7, 0, -5));
        EXPECT_THAT(FullTensor(Relu(x)).ToVector<int64_t>(), ElementsAre(0, 0, 5));
        EXPECT_EQ(Relu(x).layout().placement(0), Partial(op));
        EXPECT_THAT(FullTensor(Cast(x, DType::kF32)).ToVector<float>(), ElementsAre(-7, 0, 5));
      }
    }
  });
}

TEST(Partial, OneAllReduceServesAMaximumOverTwoAxes) {
  OnMesh({{"a", 2}, {"b", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0), Shard(1)}, Values({5, 6}, 3));
    CommTrace trace(mesh);
    const DTensor largest = Max(Max(Relu(x), {0}), {0});
    EXPECT_EQ(trace.events().size(), 0u);
    EXPECT_EQ(Item(largest), Item(Max(Redistribute(x, {Replicate(), Replicate()}))));
  });
}

}  // namespace
}  // namespace shardmesh::testing
