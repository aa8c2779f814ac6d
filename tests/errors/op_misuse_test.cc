// SPDX-License-Identifier: Apache-2.0
//
// Misuses of ops: what a user gets wrong. On every rank the same message must name the op and an
// operand as DTensor::ToString writes it, and say what is expected; the world goes on.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using ::testing::HasSubstr;

// Operands in various layouts.
struct Operands {
  explicit Operands(const DeviceMesh& given)
      : mesh(given),
        a(Real({5, 3}, Shard(0))),
        b(Real({4, 3}, Replicate())),
        cube(Real({2, 5, 3}, Shard(1))),
        row(Real({3}, Replicate())),
        number(Real({}, Replicate())),
        none(Real({5, 0}, Shard(0))),
        partial(Real({5, 3}, Partial())),
        floats(Cast(a, DType::kF32)),
        small(Cast(a, DType::kBF16)),
        ids(Integers({5}, Shard(0))),
        grid(Integers({5, 3}, Shard(1))),
        mask(Compare(CompareOp::kGreater, a, 0.0)),
        leaf(Real({5, 3}, Shard(0)).SetRequiresGrad()),
        heads(Real({2, 4, 5, 6}, Shard(0))),
        keys(Real({2, 3, 5, 6}, Shard(0))) {}

  DTensor Real(const Dims& shape, const Placement& placement) const {
    return Place(mesh, {placement}, Values(shape, 1));
  }
  DTensor Integers(const Dims& shape, const Placement& placement) const {
    Random random(3);
    return Place(mesh, {placement}, RandomIntegers(shape, random, 0, 3));
  }

  const DeviceMesh& mesh;
  DTensor a, b, cube, row, number, none, partial, floats, small, ids, grid, mask, leaf, heads, keys;
};

using O = const Operands&;

struct Misuse {
  const char* op;  // As the message names it.
  std::function<void(O)> call;
  std::function<DTensor(O)> named;  // The operand that the message must name.
  const char* hint;                 // A part of what it says.
};

DTensor A(O o) { return o.a; }
DTensor B(O o) { return o.b; }
DTensor Cube(O o) { return o.cube; }
DTensor Row(O o) { return o.row; }
DTensor Number(O o) { return o.number; }
DTensor None(O o) { return o.none; }
DTensor PartialOne(O o) { return o.partial; }
DTensor Floats(O o) { return o.floats; }
DTensor Grid(O o) { return o.grid; }
DTensor MaskOf(O o) { return o.mask; }
DTensor Leaf(O o) { return o.leaf; }
DTensor Heads(O o) { return o.heads; }

const std::vector<Misuse>& Misuses() {
  static const auto* misuses = new std::vector<Misuse>{
      // Shapes that do not broadcast.
      {"add", [](O o) { Add(o.a, o.b); }, A, "broadcast"},
      {"sub", [](O o) { Sub(o.b, o.a); }, A, "broadcast"},
      {"mul", [](O o) { Mul(o.a, o.b); }, B, "broadcast"},
      {"div", [](O o) { Div(o.a, o.b); }, B, "broadcast"},
      {"maximum", [](O o) { Maximum(o.a, o.b); }, B, "broadcast"},
      {"where", [](O o) { Where(o.mask, o.a, o.b); }, B, "broadcast"},
      {"atan2", [](O o) { Atan2(o.a, o.b); }, B, "broadcast"},
      {"expand",
       [](O o) {
         Expand(o.a, {4, 3});
       },
       A, "[4,3]"},
      // Dtypes.
      {"add", [](O o) { Add(o.a, o.floats); }, Floats, "dtype"},
      {"matmul", [](O o) { MatMul(o.a, Transpose(o.floats, 0, 1)); }, A, "dtype"},
      {"where", [](O o) { Where(o.a, o.a, o.a); }, A, "bool"},
      {"mean", [](O o) { Mean(o.grid); }, Grid, "cast"},
      {"softmax", [](O o) { Softmax(o.grid, 1); }, Grid, "floating"},
      {"exp", [](O o) { Exp(o.grid); }, Grid, "floating"},
      {"embedding", [](O o) { Embedding(o.row, o.a); }, Row, "integer"},
      {"gather", [](O o) { Gather(o.a, 0, o.a); }, A, "i64"},
      {"bitwise_and", [](O o) { BitwiseAnd(o.a, o.a); }, A, "integer"},
      {"one_hot", [](O o) { OneHot(o.a, 3); }, A, "i64"},
      {"cross_entropy", [](O o) { CrossEntropy(o.a, o.row); }, A, "targets"},
      {"masked_scatter", [](O o) { MaskedScatter(o.a, o.a, o.a); }, A, "bool"},
      {"searchsorted", [](O o) { SearchSorted(o.row, o.floats); }, Floats, "cast"},
      {"index_put", [](O o) { IndexPut(o.a, {o.mask}, o.a); }, MaskOf, "i64"},
      {"dropout", [](O o) { Dropout(o.grid, 0.5, {}); }, Grid, "floating"},
      // Dims that are not there, or given twice.
      {"sum", [](O o) { Sum(o.a, {2}); }, A, "2"},
      {"sum",
       [](O o) {
         Sum(o.a, {0, -2});
       },
       A, "twice"},
      {"max", [](O o) { Max(o.a, {-3}); }, A, "-3"},
      {"prod",
       [](O o) {
         Prod(o.a, {1, 1});
       },
       A, "twice"},
      {"softmax", [](O o) { Softmax(o.a, 5); }, A, "5"},
      {"transpose", [](O o) { Transpose(o.a, 0, 2); }, A, "2"},
      {"slice", [](O o) { Slice(o.a, 4, 0, 1); }, A, "4"},
      {"cumsum", [](O o) { CumSum(o.a, 7); }, A, "7"},
      {"sort", [](O o) { Sort(o.a, -4); }, A, "-4"},
      {"unsqueeze", [](O o) { Unsqueeze(o.a, 4); }, A, "4"},
      {"permute",
       [](O o) {
         Permute(o.a, {0, 0});
       },
       A, "permut"},
      {"flip",
       [](O o) {
         Flip(o.a, {0, 0});
       },
       A, "twice"},
      {"glu", [](O o) { Glu(o.a, 2); }, A, "2"},
      // Numbers of dims.
      {"matmul", [](O o) { MatMul(o.number, o.a); }, Number, "dim"},
      {"linear", [](O o) { Linear(o.a, o.row); }, Row, "weight"},
      {"rms_norm", [](O o) { RmsNorm(o.a, o.a, 1e-5); }, A, "weight"},
      {"layer_norm", [](O o) { LayerNorm(o.a, o.b, {}, 1e-5); }, B, "weight"},
      {"embedding", [](O o) { Embedding(o.ids, o.row); }, Row, "table"},
      {"attention", [](O o) { Attention(o.a, o.a, o.a, true); }, A, "b, h"},
      {"trace", [](O o) { Trace(o.cube); }, Cube, "matrix"},
      {"tril", [](O o) { Tril(o.row); }, Row, "2"},
      {"diagonal", [](O o) { Diagonal(o.row); }, Row, "2"},
      {"bucketize", [](O o) { Bucketize(o.a, o.a); }, A, "one dim"},
      {"prelu", [](O o) { PRelu(o.a, o.b); }, B, "one dim"},
      {"mv", [](O o) { Mv(o.row, o.row); }, Row, "2 dims"},
      {"outer", [](O o) { Outer(o.a, o.row); }, A, "1 dims"},
      {"dot", [](O o) { Dot(o.a, o.a); }, A, "1 dims"},
      // Extents that do not fit.
      {"matmul", [](O o) { MatMul(o.a, o.b); }, B, "3"},
      {"linear", [](O o) { Linear(o.a, o.b, o.row); }, Row, "bias"},
      {"mse_loss", [](O o) { MseLoss(o.a, o.b); }, B, "shape"},
      {"nll_loss", [](O o) { NllLoss(o.b, o.ids); }, B, "classes"},
      {"attention", [](O o) { Attention(o.heads, o.keys, o.keys, true); }, Heads, "divide"},
      {"concat",
       [](O o) {
         Concat({o.a, o.row}, 0);
       },
       Row, "dim"},
      {"concat",
       [](O o) {
         Concat({o.a, o.b}, 1);
       },
       B, "1"},
      {"stack",
       [](O o) {
         Stack({o.a, o.b});
       },
       B, "shape"},
      {"reshape",
       [](O o) {
         Reshape(o.a, {4, 4});
       },
       A, "[4,4]"},
      {"reshape",
       [](O o) {
         Reshape(o.a, {-1, -1});
       },
       A, "-1"},
      {"reshape",
       [](O o) {
         Reshape(o.a, {-1, 7});
       },
       A, "7"},
      {"slice", [](O o) { Slice(o.a, 0, 3, 3); }, A, "3"},
      {"slice", [](O o) { Slice(o.a, 0, -1, 2); }, A, "-1"},
      {"split",
       [](O o) {
         Split(o.a, {2, 2}, 0);
       },
       A, "5"},
      {"unflatten",
       [](O o) {
         Unflatten(o.a, 0, {2, 2});
       },
       A, "5"},
      {"glu", [](O o) { Glu(o.a, 0); }, A, "even"},
      {"unfold", [](O o) { Unfold(o.a, 0, 6, 1); }, A, "6"},
      {"pixel_shuffle", [](O o) { PixelShuffle(o.cube, 3); }, Cube, "3"},
      {"scatter", [](O o) { Scatter(o.a, 0, o.grid, o.b); }, B, "shape"},
      {"gather", [](O o) { Gather(o.b, 1, o.grid); }, Grid, "fit"},
      {"tensordot", [](O o) { TensorDot(o.a, o.b, {0}, {0}); }, B, "5"},
      {"einsum",
       [](O o) {
         Einsum("ij,ij->i", {o.a, o.b});
       },
       B, "i"},
      {"einsum", [](O o) { Einsum("ij->k", {o.a}); }, A, "k"},
      {"einsum", [](O o) { Einsum("ijk->i", {o.a}); }, A, "ijk"},
      // Values of arguments.
      {"kthvalue", [](O o) { KthValue(o.a, 4, 1); }, A, "4"},
      {"topk", [](O o) { TopK(o.a, 6, 0); }, A, "6"},
      {"dropout", [](O o) { Dropout(o.a, 1.5, {}); }, A, "1.5"},
      {"multi_margin_loss", [](O o) { MultiMarginLoss(o.a, o.ids, 3); }, A, "3"},
      {"cross_entropy", [](O o) { CrossEntropy(o.a, o.ids, {}, 2.0); }, A, "2"},
      {"repeat", [](O o) { Repeat(o.a, {2}); }, A, "2"},
      {"rot90", [](O o) { Rot90(o.row); }, Row, "dim"},
      {"chunk", [](O o) { Chunk(o.a, 0); }, A, "0"},
      // What has no elements has no extremum.
      {"max", [](O o) { Max(o.none, {1}); }, None, "empty"},
      {"argmax", [](O o) { ArgMax(o.none, 1); }, None, "empty"},
      {"median", [](O o) { Median(o.none); }, None, "elements"},
      // Writing in place.
      {"add_", [](O o) { AddInPlace(o.leaf, o.a); }, Leaf, "NoGrad"},
      {"add_", [](O o) { AddInPlace(o.row, o.a); }, Row, "broadcast"},
      {"fill_", [](O o) { FillInPlace(o.partial, 1); }, PartialOne, "Partial"},
      {"copy_", [](O o) { CopyInPlace(o.a, o.floats); }, Floats, "dtype"},
      // Moves.
      {"Redistribute", [](O o) { Redistribute(o.a, {Shard(2)}); }, A, "S(2)"},
      {"Redistribute", [](O o) { Redistribute(o.a, std::vector<Placement>()); }, A, "placement"},
      {"Redistribute", [](O o) { Redistribute(o.mask, {Partial()}); }, MaskOf, "bool"},
      // Gradients.
      {"Backward", [](O o) { Backward(o.a); }, A, "gradient"},
      {"Backward", [](O o) { Backward(Mul(o.leaf, 2.0)); }, A, "element"},
  };
  return *misuses;
}

class OpMisuse : public ::testing::TestWithParam<int> {};

TEST_P(OpMisuse, IsNamedAlikeOnAllRanks) {
  const Misuse& misuse = Misuses()[static_cast<size_t>(GetParam())];
  std::vector<std::string> messages(2), operands(2);
  std::vector<double> sums(2);
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{MeshAxis{"x", 2}}});
    const Operands o(mesh);
    const auto rank = static_cast<size_t>(world.rank());
    operands[rank] = misuse.named(o).ToString();
    const absl::Status error = Catch([&] { misuse.call(o); });
    EXPECT_TRUE(error.code() == absl::StatusCode::kInvalidArgument ||
                error.code() == absl::StatusCode::kFailedPrecondition)
        << error;
    messages[rank] = std::string(error.message());
    sums[rank] = Item(Sum(o.a));  // The world goes on.
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_THAT(messages[0], ::testing::StartsWith(misuse.op));
  EXPECT_THAT(messages[0], HasSubstr(operands[0]));
  EXPECT_THAT(messages[0], HasSubstr(misuse.hint));
  EXPECT_LT(messages[0].size(), 600u);
}

INSTANTIATE_TEST_SUITE_P(All, OpMisuse, ::testing::Range(0, static_cast<int>(Misuses().size())),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return std::to_string(info.param) + "_" +
                                  Misuses()[static_cast<size_t>(info.param)].op;
                         });

}  // namespace
}  // namespace shardmesh::testing
