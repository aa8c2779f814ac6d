// SPDX-License-Identifier: Apache-2.0
//
// Sizes that a mesh does not divide, shards that are empty, and scalars: recipes of faults seen in
// systems like this one.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

TEST(UnevenShards, RoundTripWithoutPadding) {
  // Rows 2, 2, 1, 0. Seen elsewhere: [8,10] on all ranks.
  const GlobalValue value = Values({5, 10}, 1);
  OnMesh({{"x", 4}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, value);
    const DTensor rows = Redistribute(x, {Shard(0)});
    EXPECT_EQ(rows.local().dim(0), std::vector<int64_t>({2, 2, 1, 0})[mesh.coord()[0]]);
    const DTensor back = Redistribute(rows, {Replicate()});
    EXPECT_EQ(back.local().shape(), (Dims{5, 10}));
    EXPECT_TRUE(SameBits(back.local().ToVector<double>(), value.values));
  });
}

TEST(UnevenShards, AnEmptyOneLiesPastTheEnd) {
  // 28 shards of 18, one of 8, one of none.
  const GlobalValue value = Values({512}, 2);
  OnMesh({{"x", 30}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, value);
    const int me = mesh.coord()[0];
    EXPECT_EQ(x.LocalBox().begin[0], me < 29 ? 18 * me : 512);
    EXPECT_EQ(x.local().dim(0), me < 28 ? 18 : me == 28 ? 8 : 0);
    EXPECT_EQ(Whole(x), value.values);
  });
}

TEST(SplitOrder, OfGatheredRowsIsThatOfTheLayout) {
  // Seen elsewhere: gathered left to right, 0, 2, 1, 3.
  const MeshShape mesh_shape = {{"dp", 2}, {"tp", 2}};
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const Layout tp_first =
        Layout::Make(mesh_shape, {Replicate(), Shard(0)}, {4, 1}).With(0, Shard(0));
    const DTensor weight = Place(mesh, tp_first, {{4, 1}, DType::kF64, {0, 1, 2, 3}});
    EXPECT_EQ(weight.local().Item(), 2 * mesh.coord()[1] + mesh.coord()[0]);
    EXPECT_THAT(Whole(weight), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(weight.ToString(), "f64[4,1] [S(0)/1, S(0)/0] @ [dp=2, tp=2]");
  });
}

TEST(SplitOrder, LocalTensorBoxGatherAndDropoutAgreeForEverySize) {
  // Seen elsewhere: two representations of the order that disagree for 43 of 480 sizes; rows lost
  // without a word.
  for (int dp = 2; dp <= 5; ++dp) {
    for (int tp = 2; tp <= 4; ++tp) {
      const MeshShape mesh_shape = {{"dp", dp}, {"tp", tp}};
      std::vector<std::vector<double>> dropped(41);
      OnMesh({{"one", 1}}, [&](const DeviceMesh& mesh) {
        for (int64_t n = 0; n <= 40; ++n)
          dropped[n] =
              Whole(Dropout(Full(mesh, {n, 2}, DType::kF64, 1, {Replicate()}), 0.5, {.seed = 9}));
      });
      OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
        for (int64_t n = 0; n <= 40; ++n) {
          const Layout layout =
              Layout::Make(mesh_shape, {Replicate(), Shard(0)}, {n, 2}).With(0, Shard(0));
          const GlobalValue value = Values({n, 2}, n);
          const DTensor x = Place(mesh, layout, value);
          EXPECT_EQ(x.local().ToVector<double>(), BoxOf(value, layout.LocalBox(mesh.coord())));
          EXPECT_EQ(Whole(x), value.values) << layout;
          const DTensor ones(mesh, layout,
                             ops::Full(mesh.context(), x.local().shape(), DType::kF64, 1));
          EXPECT_EQ(Whole(Dropout(ones, 0.5, {.seed = 9})), dropped[n]) << layout;
        }
      });
    }
  }
}

TEST(Reshape, AcrossAShardedDimMovesRatherThanRelabels) {
  // Seen elsewhere: S(0) with wrong numbers.
  const GlobalValue value = Values({12, 8}, 3);
  OnMesh({{"x", 4}}, [&](const DeviceMesh& mesh) {
    for (const Placement& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const DTensor y = Reshape(Place(mesh, {placement}, value), {16, 6});
      EXPECT_EQ(Whole(y), value.values) << placement;
    }
    EXPECT_THAT(ErrorOf([&] {
                  Reshape(Place(mesh, {Shard(1)}, value), {16, 7});
                }),
                HasSubstr("[16,7]"));
  });
}

TEST(Extrema, OfEmptyShardsAreThoseOfTheRest) {
  // Seen elsewhere: the rank with the empty shard fails, the others wait.
  struct Row {
    int ranks;
    Dims shape;
    std::vector<int> dims;
  };
  for (const Row& row : std::vector<Row>{
           {4, {5}, {0}}, {2, {1}, {}}, {4, {5, 3}, {0}}, {4, {5, 3}, {}}, {3, {1, 2}, {0}}}) {
    // All negative, so that a zero from an empty shard would win.
    Random random(4);
    const GlobalValue value = RandomGlobal(row.shape, random, -9, -1);
    std::vector<std::vector<double>> expected;
    for (const MeshShape& mesh_shape : {MeshShape{{"x", 1}}, MeshShape{{"x", row.ranks}}}) {
      OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
        std::vector<std::vector<double>> results;
        for (const double sign : {1.0, -1.0}) {
          const DTensor x = Place(mesh, {Shard(0)}, value).SetRequiresGrad();
          const DTensor signed_x = Mul(x, sign);
          const DTensor y = sign > 0 ? Max(signed_x, row.dims) : Min(signed_x, row.dims);
          results.push_back(Whole(y));
          Backward(Sum(Square(y)));
          results.push_back(Whole(x.grad()));
        }
        if (mesh_shape.size(0) == 1) {
          expected = results;
        } else {
          EXPECT_EQ(results, expected);
        }
      });
    }
  }
}

TEST(Extrema, OfNothingAtAllFailAlikeOnEveryRank) {
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    for (const Placement& placement : {Replicate(), Shard(0), Shard(1), Partial()}) {
      const DTensor x = Place(mesh, {placement}, Values({0, 4}, 5));
      EXPECT_THAT(ErrorOf([&] { Max(x, {0}); }),
                  AllOf(HasSubstr("max"), HasSubstr("dim 0"), HasSubstr("f64[0,4]")));
      EXPECT_THAT(ErrorOf([&] { Min(x); }), AllOf(HasSubstr("min"), HasSubstr("empty")));
      EXPECT_EQ(Max(x, {1}).shape(), Dims{0});
    }
    // And they go on together.
    EXPECT_EQ(Item(Sum(Full(mesh, {7}, DType::kF32, 1, {Shard(0)}))), 7);
  });
}

TEST(Item, OfAShardedElementIsItsValueOnEveryRank) {
  // Seen elsewhere: a value on one rank, an error on the other.
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    EXPECT_EQ(Item(Place(mesh, {Shard(0)}, {{1}, DType::kF64, {-3.5}})), -3.5);
    EXPECT_EQ(Item(Place(mesh, {Shard(1)}, {{1, 1}, DType::kF64, {2.25}})), 2.25);
    EXPECT_EQ(Item(Place(mesh, {Shard(0)}, {{1}, DType::kI64, {1 << 20}})), 1 << 20);
    EXPECT_EQ(Item(Place(mesh, {Shard(0)}, {{1}, DType::kBool, {1}})), 1);
    EXPECT_THAT(ErrorOf([&] { Item(Place(mesh, {Shard(0)}, Values({2}, 6))); }),
                AllOf(HasSubstr("one element"), HasSubstr("f64[2]")));
    EXPECT_THAT(ErrorOf([&] { Item(Place(mesh, {Shard(0)}, Values({0}, 6))); }),
                HasSubstr("f64[0]"));
  });
}

TEST(Mean, IsOverTheGlobalCount) {
  // Seen elsewhere: an average of the ranks' averages, and nan where a shard is empty.
  const GlobalValue x = Values({5, 7}, 7), target = Values({5, 7}, 8);
  const GlobalValue ids = {{5}, DType::kI64, {3, -100, 0, -100, 6}};
  std::vector<std::vector<double>> expected;
  for (const int ranks : {1, 3, 4}) {
    OnMesh({{"x", ranks}}, [&](const DeviceMesh& mesh) {
      std::vector<std::vector<double>> results;
      const auto run = [&](const std::function<DTensor(const DTensor&)>& loss_of) {
        const DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
        const DTensor loss = loss_of(leaf);
        results.push_back({Item(loss)});
        Backward(loss);
        results.push_back(Whole(leaf.grad()));
      };
      run([&](const DTensor& leaf) { return MseLoss(leaf, Place(mesh, {Shard(0)}, target)); });
      run([&](const DTensor& leaf) { return CrossEntropy(leaf, Place(mesh, {Shard(0)}, ids)); });
      run([&](const DTensor& leaf) { return Mean(Abs(leaf)); });
      if (ranks == 1) {
        expected = results;
        return;
      }
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(AreClose(results[i], expected[i], 1e-13)) << ranks << " " << i;
    });
  }
}

TEST(Mean, OfTokensDoesNotDependOnWhereTheyLie) {
  // One token with a loss on one rank, three without on the other; a rank whose tokens are all
  // ignored.
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor weights = Place(mesh, {Shard(0)}, {{6}, DType::kF64, {1, 0, 0, 1, 1, 1}});
    const DTensor losses = Place(mesh, {Shard(0)}, {{6}, DType::kF64, {4, 9, 9, 0, 0, 0}});
    EXPECT_EQ(Item(Div(Sum(Mul(losses, weights)), Sum(weights))), 1.0);
    const GlobalValue logits = Values({4, 3}, 9);
    // The loss, then the gradient.
    const auto run = [&](std::vector<double> targets, Placement placement) {
      const DTensor x = Place(mesh, {placement}, logits).SetRequiresGrad();
      const DTensor loss = CrossEntropy(x, Place(mesh, {placement}, {{4}, DType::kI64, targets}));
      std::vector<double> values = {Item(loss)};
      Backward(loss);
      for (const double value : Whole(x.grad())) values.push_back(value);
      return values;
    };
    for (const std::vector<double>& targets : std::vector<std::vector<double>>{
             {2, 0, -100, -100}, {1, -100, -100, -100}, {-100, -100, -100, 2}, {2, -100, 1, 0}}) {
      const std::vector<double> expected = run(targets, Replicate());
      for (const double value : expected) ASSERT_TRUE(std::isfinite(value));
      EXPECT_TRUE(AreClose(run(targets, Shard(0)), expected, 1e-14));
    }
    EXPECT_TRUE(std::isnan(run({-100, -100, -100, -100}, Shard(0))[0]));
  });
}

TEST(Dropout, OfShardsIsThatOfTheWhole) {
  // Seen elsewhere: every shard draws the same numbers.
  const GlobalValue ones = {{8, 16}, DType::kF64, std::vector<double>(128, 1.0)};
  std::vector<double> expected;
  OnMesh({{"x", 1}}, [&](const DeviceMesh& mesh) {
    expected = Whole(Dropout(Place(mesh, {Replicate()}, ones), 0.5, {.seed = 3, .stream = 4}));
  });
  EXPECT_NE(std::vector<double>(expected.begin(), expected.begin() + 64),
            std::vector<double>(expected.begin() + 64, expected.end()));
  for (const MeshShape& mesh_shape :
       {MeshShape{{"x", 2}}, MeshShape{{"x", 3}}, MeshShape{{"x", 2}, {"y", 2}}}) {
    OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
      for (const Layout& layout : AllLayouts(mesh_shape, ones.shape)) {
        const DTensor x = Place(mesh, layout, ones).SetRequiresGrad();
        const DTensor y = Dropout(x, 0.5, {.seed = 3, .stream = 4});
        EXPECT_EQ(Whole(y), expected) << layout;
        Backward(Sum(y));
        EXPECT_EQ(Whole(x.grad()), expected) << layout;
        EXPECT_NE(Whole(Dropout(x, 0.5, {.seed = 3, .stream = 5})), expected);
      }
    });
  }
}

// A rank that sees a bad index throws before any local work; the others end through it.
std::string FailureOf(int ranks, absl::FunctionRef<void(const DeviceMesh&)> fn) {
  RunOptions options;
  options.threads_per_rank = 1;
  return std::string(RunRanks(
                         ranks,
                         [&](Communicator& world) {
                           fn(DeviceMesh::Create(world, {{"x", ranks}}));
                         },
                         options)
                         .message());
}

TEST(Lookups, RefuseAnIndexOutsideTheGlobalRange) {
  // Seen elsewhere: taken for one that another rank has, and zeros come out.
  const GlobalValue table = Values({7, 3}, 10), logits = Values({3, 7}, 11);
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t bad : {int64_t{7}, int64_t{-1}, int64_t{1} << 40}) {
      const GlobalValue ids = {{3}, DType::kI64, {0, 6, static_cast<double>(bad)}};
      for (const Placement& of_ids : {Replicate(), Shard(0)}) {
        const std::string embedding = FailureOf(ranks, [&](const DeviceMesh& mesh) {
          Item(Sum(Embedding(Place(mesh, {of_ids}, ids), Place(mesh, {Shard(0)}, table))));
        });
        EXPECT_THAT(embedding, AllOf(HasSubstr("embedding"), HasSubstr(absl::StrCat(bad)),
                                     HasSubstr("[0, 7)")))
            << ranks;
        const std::string loss = FailureOf(ranks, [&](const DeviceMesh& mesh) {
          Item(CrossEntropy(Place(mesh, {of_ids.IsShard() ? Shard(0) : Shard(1)}, logits),
                            Place(mesh, {of_ids}, ids)));
        });
        EXPECT_THAT(loss, AllOf(HasSubstr("cross_entropy"), HasSubstr(absl::StrCat(bad)),
                                HasSubstr("[0, 7)")))
            << ranks;
      }
    }
  }
}

TEST(Lookups, RefuseAReplicatedBadIndexAlikeOnEveryRank) {
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor table = Place(mesh, {Shard(0)}, Values({7, 3}, 12));
    const DTensor ids = Place(mesh, {Replicate()}, {{2}, DType::kI64, {1, 7}});
    EXPECT_THAT(ErrorOf([&] { Embedding(ids, table); }),
                AllOf(HasSubstr("embedding"), HasSubstr("[0, 7)")));
    // Also where the decision has been made before.
    Embedding(Place(mesh, {Replicate()}, {{2}, DType::kI64, {1, 6}}), table);
    EXPECT_THAT(ErrorOf([&] { Embedding(ids, table); }),
                AllOf(HasSubstr("embedding"), HasSubstr("[0, 7)")));
  });
}

TEST(Lookups, OfTwoTablesAtOnceDoNotMixUpTheirRows) {
  // Seen elsewhere: two row-sharded tables share one mask.
  const GlobalValue ids = {{3}, DType::kI64, {1, 2, 3}};
  for (const int64_t second_width : {29, 23}) {
    const GlobalValue first = Values({96, 23}, 13), second = Values({96, second_width}, 14);
    OnMesh({{"x", 8}}, [&](const DeviceMesh& mesh) {
      const DTensor i = Place(mesh, {Replicate()}, ids);
      const DTensor a = Place(mesh, {Shard(0)}, first).SetRequiresGrad();
      const DTensor b = Place(mesh, {Shard(0)}, second).SetRequiresGrad();
      const DTensor of_a = Embedding(i, a), of_b = Embedding(i, b);
      const Box rows_a{{1, 0}, {4, 23}}, rows_b{{1, 0}, {4, second_width}};
      EXPECT_EQ(Whole(of_a), BoxOf(first, rows_a));
      EXPECT_EQ(Whole(of_b), BoxOf(second, rows_b));
      Backward(Add(Sum(of_a), Sum(Mul(of_b, 2.0))));
      std::vector<double> ones(96 * 23, 0.0), twos(96 * second_width, 0.0);
      std::fill(ones.begin() + 23, ones.begin() + 4 * 23, 1.0);
      std::fill(twos.begin() + second_width, twos.begin() + 4 * second_width, 2.0);
      EXPECT_EQ(Whole(a.grad()), ones);
      EXPECT_EQ(Whole(b.grad()), twos);
    });
  }
}

}  // namespace
}  // namespace shardmesh::testing
