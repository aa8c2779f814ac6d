// SPDX-License-Identifier: Apache-2.0
//
// What ops/shape.h and ops/products.h promise beside values: what is not moved, what aliases, which
// bits a mesh does not change, and how bad arguments are refused.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

DTensor Sample(const DeviceMesh& mesh, const Dims& shape, const Placement& placement) {
  return Place(mesh, {placement}, Values(shape, 3));
}

TEST(ShapeOps, LeaveAShardWhereTheDimIsNotTouched) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Sample(mesh, {6, 4}, Shard(0));
    const std::vector<DTensor> row(2, x);
    CommTrace trace(mesh);
    for (const DTensor& y :
         {Flip(x, {1}), Roll(x, {1}, {1}), Pad(x, {2, 1}), Repeat(x, {1, 2}), Tril(x, 1),
          Triu(x, -1), Unfold(x, 1, 2, 1), HStack(row), RepeatInterleave(x, 3, 0),
          SliceScatter(x, x, 1), Unflatten(x, 0, {2, 3}), Flatten(Unsqueeze(x, 2), 0, 1)}) {
      EXPECT_TRUE(y.layout().placement(0).IsShard()) << y;
    }
    EXPECT_EQ(trace.Count(), 0) << trace.ToString();
  });
}

TEST(ShapeOps, SelectAndDiagonalAlongAShardGiveAPartial) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    const DTensor x = Sample(mesh, {7, 7}, Shard(0));
    CommTrace trace(mesh);
    EXPECT_EQ(Select(x, 0, -1).layout().placement(0), Partial());
    EXPECT_EQ(Diagonal(x).layout().placement(0), Partial());
    EXPECT_EQ(Einsum("ij,ij->j", {x, x}).layout().placement(0), Partial());
    EXPECT_EQ(trace.Count(), 0) << trace.ToString();
  });
}

// The ranks that lack an element of a Partial hold -0, not 0.
TEST(ShapeOps, SelectAndDiagonalKeepTheSignOfZero) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const GlobalValue zeros{{2, 2}, DType::kF64, {-0.0, 0.0, 0.0, -0.0}};
    const DTensor x = Place(mesh, {Shard(0)}, zeros);
    const auto is_negative = [](const DTensor& y) {
      std::vector<bool> signs;
      for (const double value : FullTensor(y).ToVector<double>())
        signs.push_back(std::signbit(value));
      return signs;
    };
    EXPECT_EQ(is_negative(Select(x, 0, 0)), (std::vector<bool>{true, false}));
    EXPECT_EQ(is_negative(Select(x, 0, 1)), (std::vector<bool>{false, true}));
    EXPECT_EQ(is_negative(Diagonal(x)), (std::vector<bool>{true, true}));
  });
}

TEST(ShapeOps, ViewsAliasWhereNothingMoves) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Sample(mesh, {4, 1, 3}, Shard(0));
    for (const DTensor& y : {Permute(x, {2, 0, 1}), Squeeze(x), Unsqueeze(x, 1), Select(x, 2, 1),
                             Flatten(x, 1), Narrow(x, 2, -1, 1), MoveDim(x, {0}, {2})}) {
      EXPECT_EQ(y.local().storage(), x.local().storage()) << y;
      AddInPlace(y, y);
    }
    // Copies: what is written there would not reach x.
    for (const DTensor& y : {Select(x, 0, 1), Diagonal(x, 0, 0, 1), Unfold(x, 2, 2, 1)}) {
      EXPECT_NE(y.local().storage(), x.local().storage()) << y;
      EXPECT_NE(ErrorOf([&] { AddInPlace(y, y); }), "");
    }
  });
}

TEST(ShapeOps, CreateTheSameBitsOnEveryMesh) {
  const auto make = [](const DeviceMesh& mesh, const Placement& placement) {
    return std::vector<DTensor>{
        Arange(mesh, 0.1, 2.3, 0.3, DType::kF32, {placement}),
        Linspace(mesh, -1, 0.3, 7, DType::kF64, {placement}),
        Eye(mesh, 5, 3, DType::kBF16, {placement}),
        TrilIndices(mesh, 4, 3, 1, {Replicate()}),
        OnesLike(Arange(mesh, 5, 0, -2, DType::kI64, {placement})),
    };
  };
  std::vector<std::vector<double>> expected;
  OnMesh({{"x", 1}}, [&](const DeviceMesh& mesh) {
    for (const DTensor& x : make(mesh, Replicate()))
      expected.push_back(FullTensor(x).ToVector<double>());
  });
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    const std::vector<DTensor> made = make(mesh, Shard(0));
    for (size_t i = 0; i < made.size(); ++i)
      EXPECT_TRUE(SameBits(FullTensor(made[i]).ToVector<double>(), expected[i])) << made[i];
  });
}

TEST(ShapeOps, RefuseBadArgumentsByName) {
  OnMesh({{"x", 1}}, [](const DeviceMesh& mesh) {
    const DTensor x = Sample(mesh, {5, 3}, Replicate()), v = Sample(mesh, {3}, Replicate());
    const auto refuses = [](const std::string& expected, absl::FunctionRef<void()> fn) {
      const std::string message = ErrorOf(fn);
      EXPECT_NE(message.find(expected), std::string::npos) << message;
    };
    refuses("permute: dim -2", [&] { Permute(x, {0, -2}); });
    refuses("permute: 1 dims given for f64[5,3]", [&] { Permute(x, {0}); });
    refuses("movedim: 2 dims", [&] { MoveDim(x, {0, 1}, {0}); });
    refuses("select: index 5 is not within dim 0 of f64[5,3]", [&] { Select(x, 0, 5); });
    refuses("select: index -6", [&] { Select(x, 0, -6); });
    refuses("flatten: first dim 1", [&] { Flatten(x, 1, 0); });
    refuses("unflatten", [&] { Unflatten(x, 0, {2, 2}); });
    refuses("split: parts of 0", [&] { SplitEvery(x, 0); });
    refuses("chunk: expected at least one chunk of f64[5,3]", [&] { Chunk(x, 0); });
    refuses("hsplit: 2 sections do not divide dim 1", [&] { HSplit(x, 2); });
    refuses("vsplit: expected at least 2 dims", [&] { VSplit(v, 1); });
    refuses("stack: no tensors", [&] { Stack({}); });
    refuses("stack: f64[5,3]", [&] { Stack({x, v}); });
    refuses("block_diag: expected at most 2 dims", [&] {
      BlockDiag({Sample(mesh, {1, 2, 3}, Replicate())});
    });
    refuses("meshgrid: expected at most 1 dim", [&] { Meshgrid({x}); });
    refuses("flip: dim -1", [&] { Flip(x, {1, -1}); });
    refuses("roll: 1 shifts for 2 dims", [&] { Roll(x, {1}, {0, 1}); });
    refuses("rot90: dims 0 and -2", [&] { Rot90(x, 1, 0, -2); });
    refuses("repeat: 1 counts", [&] { Repeat(x, {2}); });
    refuses("repeat: negative count -1", [&] { Repeat(x, {1, -1}); });
    refuses("repeat_interleave: 2 numbers", [&] {
      RepeatInterleave(x, std::vector<int64_t>{1, 2}, 0);
    });
    refuses("unfold: windows of 6 every 1", [&] { Unfold(x, 0, 6, 1); });
    refuses("slice_scatter: f64[3]", [&] { SliceScatter(x, v, 0); });
    refuses("select_scatter: index 3", [&] { SelectScatter(x, v, 1, 3); });
    refuses("pad: 3 pads", [&] { Pad(x, {1, 2, 3}); });
    refuses("pad: pads 3 and 0 do not fit dim 1 of f64[5,3]", [&] {
      Pad(x, {3, 0}, PadMode::kReflect);
    });
    refuses("pad: pads 0 and 4", [&] { Pad(x, {0, 4}, PadMode::kCircular); });
    refuses("pad: pads -2 and -2", [&] { Pad(x, {-2, -2}); });
    refuses("diagonal: dims 1 and -1", [&] { Diagonal(x, 0, 1, -1); });
    refuses("tril: expected at least 2 dims", [&] { Tril(v); });
    refuses("diagonal_scatter: f64[5,3]", [&] { DiagonalScatter(x, x); });
    refuses("arange: steps of -1 do not lead from 0 to 3",
            [&] { Arange(mesh, 0, 3, -1, DType::kF32, {Replicate()}); });
    refuses("einsum \"ij,jk\": 2 operands, got 1", [&] { Einsum("ij,jk", {x}); });
    refuses("\"i\" does not have the dims of f64[5,3]", [&] { Einsum("i->i", {x}); });
    refuses("the result has a label that no operand has", [&] { Einsum("ij->k", {x}); });
    refuses("the result has a label twice", [&] { Einsum("ij->ii", {x}); });
    refuses("unexpected '1'", [&] { Einsum("i1->i", {x}); });
    refuses("'i' stands for two extents of f64[5,3]", [&] { Einsum("ii->i", {x}); });
    refuses("of the same label in another operand 5", [&] { Einsum("ij,i->j", {x, v}); });
    refuses("tensordot: dim 0 of f64[5,3]", [&] { TensorDot(x, v, {0}, {0}); });
    refuses("mv: expected 1 dims", [&] { Mv(x, x); });
    refuses("addmm: expected 2 dims, got f64[3]", [&] { AddMm(x, v, v); });
  });
}

}  // namespace
}  // namespace shardmesh::testing
