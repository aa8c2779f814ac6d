// SPDX-License-Identifier: Apache-2.0
//
// What samples do not say of IndexPut, MaskedScatter, SearchSorted, CumSum, EmbeddingBag,
// MedianAlong and the losses of classes: ties, nan, empty bags, indices out of range, and what does
// not move.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using Numbers = std::vector<double>;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

DTensor Make(const DeviceMesh& mesh, const Placement& placement, const Dims& shape, DType dtype,
             Numbers values) {
  return Place(mesh, {placement}, GlobalValue{shape, dtype, std::move(values)});
}
DTensor Reals(const DeviceMesh& mesh, const Placement& placement, const Dims& shape,
              Numbers values) {
  return Make(mesh, placement, shape, DType::kF64, std::move(values));
}
DTensor Ids(const DeviceMesh& mesh, const Placement& placement, const Dims& shape, Numbers values) {
  return Make(mesh, placement, shape, DType::kI64, std::move(values));
}
Numbers NumbersOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

const std::vector<Placement>& Placements() {
  static const auto* placements = new std::vector<Placement>{Replicate(), Shard(0), Shard(1)};
  return *placements;
}

TEST(IndexPut, WritesWhereTwoIndicesPoint) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    for (const Placement& placement : Placements()) {
      DTensor x = Place(mesh, {placement}, Values({5, 4, 2}, 1)).SetRequiresGrad();
      const DTensor rows = Ids(mesh, Shard(0), {3}, {4, -5, 4});
      const DTensor columns = Ids(mesh, Replicate(), {3}, {1, -1, 1});
      DTensor values = Reals(mesh, Replicate(), {3, 1}, {10, 20, 30}).SetRequiresGrad();
      for (const bool accumulate : {false, true}) {
        x.ZeroGrad();
        values.ZeroGrad();
        Numbers expected = Values({5, 4, 2}, 1).values, gradient(40, 1);
        for (int i = 0; i < 2; ++i) {
          double& last = expected[(4 * 4 + 1) * 2 + i];
          last = accumulate ? last + 40 : 30;
          double& first = expected[3 * 2 + i];
          first = accumulate ? first + 20 : 20;
          if (!accumulate) gradient[(4 * 4 + 1) * 2 + i] = gradient[3 * 2 + i] = 0;
        }
        const DTensor y = IndexPut(x, {rows, columns}, values, accumulate);
        EXPECT_EQ(NumbersOf(y), expected);
        Backward(Sum(y));
        EXPECT_EQ(NumbersOf(x.grad()), gradient);
        EXPECT_EQ(NumbersOf(values.grad()), (Numbers{2, 2, 2}));
      }
    }
  });
}

// Together they would name a place within x.
TEST(IndexPut, RefusesAnIndexOutsideItsOwnDim) {
  for (const int ranks : {1, 3}) {
    const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{MeshAxis{"x", ranks}}});
      const DTensor x = Place(mesh, {Shard(0)}, Values({3, 4}, 1));
      IndexPut(x, {Ids(mesh, Shard(0), {1}, {0}), Ids(mesh, Shard(0), {1}, {5})},
               Reals(mesh, Replicate(), {1}, {1}));
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  }
}

TEST(MaskedScatter, TakesElementsInRowMajorOrder) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    for (const Placement& placement : Placements()) {
      const DTensor x = Place(mesh, {placement}, Values({5, 3}, 1));
      const Numbers mask = {0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1};
      const DTensor source = Reals(mesh, Shard(0), {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
      Numbers expected = Values({5, 3}, 1).values;
      double next = 0;
      for (size_t i = 0; i < mask.size(); ++i) {
        if (mask[i] != 0) expected[i] = ++next;
      }
      const DTensor y = MaskedScatter(x, Make(mesh, placement, {5, 3}, DType::kBool, mask), source);
      EXPECT_EQ(NumbersOf(y), expected);
      const DTensor nothing = Make(mesh, placement, {5, 3}, DType::kBool, Numbers(15, 0));
      EXPECT_EQ(NumbersOf(MaskedScatter(x, nothing, Reals(mesh, Shard(0), {0}, {}))), NumbersOf(x));
    }
  });
}

TEST(MaskedScatter, RefusesASourceThatIsTooShort) {
  for (const int64_t count : {0, 2}) {
    const absl::Status status = RunRanks(2, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{MeshAxis{"x", 2}}});
      const DTensor x = Place(mesh, {Shard(0)}, Values({4}, 1));
      const DTensor source = Reals(mesh, Replicate(), {count}, Numbers(count, 7));
      MaskedScatter(x, Make(mesh, Shard(0), {4}, DType::kBool, {1, 0, 1, 1}), source);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  }
}

TEST(SearchSorted, CountsAsBinarySearchDoesAndMovesNoValue) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    const Numbers sorted = {-kInfinity, -1.5, -1.5, 0, 0.25, 0.25, 0.25, 7, kInfinity};
    const Numbers values = {0.25, -1.5, -9, kInfinity, -kInfinity, 8, 0, 0.3, -0.0, 0.25, 7};
    const DTensor boundaries = Reals(mesh, Replicate(), {9}, sorted);
    const DTensor x = Reals(mesh, Shard(0), {11}, values);
    for (const bool right : {false, true}) {
      Numbers expected;
      for (const double value : values) {
        const auto found = right ? std::upper_bound(sorted.begin(), sorted.end(), value)
                                 : std::lower_bound(sorted.begin(), sorted.end(), value);
        expected.push_back(static_cast<double>(found - sorted.begin()));
      }
      const CommTrace trace(mesh);
      const DTensor y = Bucketize(x, boundaries, right);
      EXPECT_TRUE(trace.events().empty());
      EXPECT_EQ(y.layout().placement(0), Shard(0));
      EXPECT_EQ(NumbersOf(y), expected);
    }
    const DTensor nan = Reals(mesh, Shard(0), {1}, {std::nan("")});
    EXPECT_EQ(NumbersOf(Bucketize(nan, boundaries)), (Numbers{9}));  // Larger than all.
  });
}

// Ranks exchange their last sums, not the tensor.
TEST(CumSum, OfASplitDimExchangesEdges) {
  OnMesh({{"x", 2}, {"y", 3}}, [](const DeviceMesh& mesh) {
    for (const int64_t extent : {13, 2}) {  // The latter leaves ranks without elements.
      const GlobalValue x = Values({extent, 5}, 4);
      Numbers sums = x.values, from_the_end(x.values.size());
      for (size_t i = 5; i < sums.size(); ++i) sums[i] += sums[i - 5];
      for (size_t i = 0; i < from_the_end.size(); ++i)
        from_the_end[i] = static_cast<double>(extent) - std::floor(static_cast<double>(i) / 5);
      const Layout layouts[] = {Layout::Make(mesh.shape(), {Shard(0), Shard(0)}, x.shape),
                                Layout::Make(mesh.shape(), {Shard(0), Shard(0)}, x.shape, {1, 0}),
                                Layout::Make(mesh.shape(), {Shard(1), Shard(0)}, x.shape),
                                Layout::Make(mesh.shape(), {Partial(), Shard(0)}, x.shape)};
      for (const Layout& layout : layouts) {
        const DTensor input = Place(mesh, layout, x).SetRequiresGrad();
        const CommTrace trace(mesh);
        const DTensor y = CumSum(input, 0);
        EXPECT_EQ(trace.events().size(), 1u);
        EXPECT_LE(trace.Bytes("", "all_gather", "cumsum"), 5 * 5 * 8);
        EXPECT_EQ(y.layout(), layout);
        const Numbers found = NumbersOf(y);
        for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(found[i], sums[i], 1e-13);
        Backward(Sum(y));
        EXPECT_EQ(NumbersOf(input.grad()), from_the_end);
      }
    }
  });
}

TEST(EmbeddingBag, CountsNeitherPaddingNorEmptyBags) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    for (const Placement& placement : Placements()) {
      const DTensor table =
          Reals(mesh, placement, {4, 2}, {1, 10, 2, 20, 3, 30, 4, 40}).SetRequiresGrad();
      const DTensor ids = Ids(mesh, Shard(0), {6}, {3, 0, 1, 1, 3, 2});
      // Bags {3, 0}, {}, {1, 1, 3}, {2}, {}.
      const DTensor offsets = Ids(mesh, Shard(0), {5}, {0, 2, 2, 5, 6});
      const DTensor sums = EmbeddingBagAt(table, ids, offsets);
      EXPECT_EQ(NumbersOf(sums), (Numbers{5, 50, 0, 0, 8, 80, 3, 30, 0, 0}));
      const DTensor means =
          EmbeddingBagAt(table, ids, offsets, BagReduction::kMean, {}, /*padding_id=*/3);
      EXPECT_EQ(NumbersOf(means), (Numbers{1, 10, 0, 0, 2, 20, 3, 30, 0, 0}));
      Backward(Sum(means));
      EXPECT_EQ(NumbersOf(table.grad()), (Numbers{1, 1, 1, 1, 1, 1, 0, 0}));
    }
  });
}

TEST(EmbeddingBag, RefusesOffsetsThatBeginLaterOrDescend) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor table = Place(mesh, {Replicate()}, Values({4, 2}, 1));
    const DTensor ids = Ids(mesh, Shard(0), {3}, {0, 1, 2});
    for (const Numbers& offsets : {Numbers{1, 2, 2}, Numbers{0, 2, 1}}) {
      const absl::Status status =
          Catch([&] { EmbeddingBagAt(table, ids, Ids(mesh, Shard(0), {3}, offsets)); });
      EXPECT_THAT(std::string(status.message()), HasSubstr("begin at 0 and ascend"));
    }
    const DTensor short_ids = Make(mesh, Shard(0), {1}, DType::kI32, {0});
    EXPECT_EQ(EmbeddingBagAt(table, ids, short_ids).shape(), (Dims{1, 2}));
  });
}

// The sigmoid of a bf16 has digits that the product needs.
TEST(Glu, OfASmallDTypeIsRoundedOnce) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    Numbers values;
    for (int i = 0; i < 256; ++i) values.push_back((i % 128 + 1) / 32.0 * (i % 2 == 0 ? 1 : -1));
    const DTensor x = Make(mesh, Shard(0), {256}, DType::kBF16, values);
    EXPECT_EQ(NumbersOf(Glu(x)), NumbersOf(Cast(Glu(Cast(x, DType::kF32)), DType::kBF16)));
  });
}

TEST(IndexPut, TakesIndicesOfEitherWidth) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Reals(mesh, Shard(0), {3}, {1, 2, 3});
    const DTensor index = Make(mesh, Shard(0), {2}, DType::kI32, {-1, 0});
    EXPECT_EQ(NumbersOf(IndexPut(x, {index}, Reals(mesh, Replicate(), {2}, {30, 10}))),
              (Numbers{10, 2, 30}));
  });
}

TEST(CrossEntropy, WithWeightsAndSmoothingIsTheSumByHand) {
  const GlobalValue logits = Values({5, 7}, 3);
  const Numbers targets = {6, 0, -100, 3, 3}, weight = {1, 2, 0.5, 3, 1, 1, 0.25};
  const double smoothing = 0.3;
  double sum = 0, weights = 0;
  for (int row = 0; row < 5; ++row) {
    if (targets[row] < 0) continue;
    const double* x = &logits.values[static_cast<size_t>(row) * 7];
    const auto target = static_cast<int>(targets[row]);
    double exp = 0;
    for (int c = 0; c < 7; ++c) exp += std::exp(x[c]);
    for (int c = 0; c < 7; ++c) {
      const double share = (c == target ? 1 - smoothing : 0) + smoothing / 7;
      sum += share * weight[c] * (std::log(exp) - x[c]);
    }
    weights += weight[target];
  }
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    for (const Placement& placement : Placements()) {
      const DTensor x = Place(mesh, {placement}, logits);
      const DTensor loss = CrossEntropy(x, Ids(mesh, Replicate(), {5}, targets),
                                        Reals(mesh, Shard(0), {7}, weight), smoothing);
      EXPECT_NEAR(NumbersOf(loss)[0], sum / weights, 1e-14);
    }
  });
}

// A row that does not count may hold what it likes.
TEST(NllLoss, ReadsNothingOfRowsThatDoNotCount) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x =
        Reals(mesh, Shard(0), {3, 2}, {-1, -2, -kInfinity, -kInfinity, -3, -4}).SetRequiresGrad();
    const DTensor loss = NllLoss(x, Ids(mesh, Shard(0), {3}, {1, -100, 0}));
    EXPECT_EQ(NumbersOf(loss), (Numbers{2.5}));
    Backward(loss);
    EXPECT_EQ(NumbersOf(x.grad()), (Numbers{0, -0.5, 0, 0, -0.5, 0}));
  });
}

TEST(MedianAlong, IsTheLowerMiddleOrTheFirstNan) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const double nan = std::nan("");
    for (const Placement& placement : Placements()) {
      const DTensor x =
          Reals(mesh, placement, {2, 4}, {4, 1, 3, 2, 5, nan, -1, nan}).SetRequiresGrad();
      const auto [median, index] = MedianAlong(x, 1);
      const Numbers values = NumbersOf(median);
      EXPECT_EQ(values[0], 2);
      EXPECT_TRUE(std::isnan(values[1]));
      EXPECT_EQ(NumbersOf(index), (Numbers{3, 1}));
      Backward(Sum(median));
      EXPECT_EQ(NumbersOf(x.grad()), (Numbers{0, 0, 0, 1, 0, 1, 0, 0}));
    }
  });
}

TEST(SelectionErrors, NameWhatIsWrong) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({3, 4}, 1));
    const auto error_of = [](const auto& call) { return std::string(Catch(call).message()); };
    EXPECT_THAT(error_of([&] { Glu(x, 0); }), HasSubstr("glu: expected an even extent of dim 0"));
    EXPECT_THAT(error_of([&] { PRelu(x, Place(mesh, {Shard(0)}, Values({3}, 1))); }),
                HasSubstr("with 1 or 4 elements"));
    EXPECT_THAT(error_of([&] { Trace(Sum(x, {0})); }), HasSubstr("trace: expected a matrix"));
    EXPECT_THAT(error_of([&] {
                  MultiMarginLoss(x, Ids(mesh, Replicate(), {3}, {0, 1, 2}), 3);
                }),
                HasSubstr("expected an order of 1 or 2, got 3"));
    EXPECT_THAT(error_of([&] {
                  NllLoss(x, Ids(mesh, Replicate(), {4}, {0, 1, 2, 0}));
                }),
                HasSubstr("nll_loss: expected x [.., classes]"));
    const DTensor floats = Cast(x, DType::kF32);
    EXPECT_THAT(error_of([&] { Glu(Cast(x, DType::kI64)); }), HasSubstr("glu: needs a floating"));
    EXPECT_THAT(error_of([&] { PRelu(x, Sum(floats, {0})); }), HasSubstr("prelu: f64[3,4]"));
    EXPECT_THAT(error_of([&] { MaskedScatter(x, Compare(CompareOp::kLess, x, 0.0), floats); }),
                HasSubstr("masked_scatter: f64[3,4]"));
    EXPECT_THAT(error_of([&] { IndexPut(x, {Ids(mesh, Replicate(), {1}, {0})}, floats); }),
                HasSubstr("index_put: f64[3,4]"));
    EXPECT_THAT(error_of([&] { Bucketize(x, x); }), HasSubstr("boundaries of one dim"));
    EXPECT_THAT(error_of([&] { IndexPut(x, {}, x); }), HasSubstr("expected 1 to 2 indices"));
  });
}

}  // namespace
}  // namespace shardmesh::testing
