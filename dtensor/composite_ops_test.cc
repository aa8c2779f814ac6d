// SPDX-License-Identifier: Apache-2.0
//
// What rows and the ops of ops/{reductions,losses,order,indexing}.h promise beside values: small
// dtypes, faults of one rank, empty shards, writes to what backward needs.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

DTensor Make(const DeviceMesh& mesh, const Placement& placement, const Dims& shape, DType dtype,
             std::vector<double> values) {
  return Place(mesh, {placement}, GlobalValue{shape, dtype, std::move(values)});
}
double NumberOf(const DTensor& x) { return FullTensor(x).ToVector<double>().at(0); }

// The squares overflow f16, and the mean of bf16 values has eight bits.
TEST(CompositeOps, HaveNoSmallDTypeInBetween) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor far = Make(mesh, Shard(0), {4}, DType::kF16, {300, -300, 300, 300});
    const DTensor zero = Make(mesh, Shard(0), {4}, DType::kF16, {0, 0, 0, 0});
    EXPECT_EQ(NumberOf(VectorNorm(far)), 600);
    EXPECT_EQ(NumberOf(Dist(far, zero)), 600);
    EXPECT_EQ(NumberOf(HuberLoss(far, zero, 128)), 128 * (300 - 64));
    EXPECT_EQ(NumberOf(CosineSimilarity(far, far, 0)), 1);
    EXPECT_EQ(NumberOf(Normalize(far, 2, 0)), 0.5);
    EXPECT_EQ(VectorNorm(far).dtype(), DType::kF16);

    const DTensor near = Make(mesh, Shard(0), {4}, DType::kBF16, {100, 100.5, 100.5, 100.5});
    EXPECT_EQ(NumberOf(Var(near)), 0.0625);
    EXPECT_EQ(NumberOf(Std(near)), 0.25);
    EXPECT_EQ(Std(near).dtype(), DType::kBF16);

    // 257 is no bf16, but the count is not one.
    const DTensor ids = Make(mesh, Shard(0), {257}, DType::kI64, std::vector<double>(257, 0));
    std::vector<double> ones(257, 1);
    const DTensor source = Make(mesh, Shard(0), {257}, DType::kBF16, ones);
    EXPECT_EQ(NumberOf(ScatterReduce(Make(mesh, Replicate(), {1}, DType::kBF16, {1}), 0, ids,
                                     source, ScatterReduction::kMean)),
              1);
  });
}

// The first cause names the index; no rank waits.
TEST(CompositeOps, ABadIndexOfOneRankEndsAll) {
  for (const int ranks : {1, 2, 3}) {
    for (const char* const op : {"gather", "scatter", "remainder"}) {
      const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
        const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{MeshAxis{"x", ranks}}});
        const DTensor x = Place(mesh, {Replicate()}, Values({5, 3}, 1));
        std::vector<double> last = {1, 2, 3, 4, 1, 9};  // On the last rank.
        const DTensor ids = Make(mesh, Shard(0), {6, 1}, DType::kI64, last);
        last[5] = 0;
        const DTensor divisor = Make(mesh, Shard(0), {6, 1}, DType::kI64, last);
        DTensor y;
        if (op == std::string("gather")) y = Gather(x, 0, ids);
        if (op == std::string("scatter"))
          y = Scatter(x, 0, ids, Place(mesh, {Shard(0)}, Values({6, 1}, 2)));
        if (op == std::string("remainder")) y = Remainder(ids, divisor);
        FullTensor(y);
      });
      const std::string message(status.message());
      const std::string expected = op == std::string("remainder")
                                       ? "remainder: an integer is divided by 0"
                                       : absl::StrCat(op, ": index 9 is outside [0, 5)");
      EXPECT_NE(message.find(expected), std::string::npos) << ranks << " ranks: " << message;
    }
  }
}

TEST(CompositeOps, ComputeTheSameWithEmptyShards) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    const std::vector<double> values = {-2, 3};
    const DTensor whole = Make(mesh, Replicate(), {2}, DType::kF64, values);
    const DTensor x = Make(mesh, Shard(0), {2}, DType::kF64, values);  // 1, 1 and none.
    const auto same = [&](const char* name, const DTensor& actual, const DTensor& expected) {
      EXPECT_EQ(FullTensor(actual).ToVector<double>(), FullTensor(expected).ToVector<double>())
          << name;
    };
    same("cumsum", CumSum(x, 0), CumSum(whole, 0));
    same("sort", Sort(x, 0, true).second, Sort(whole, 0, true).second);
    same("argmin", ArgMin(x), ArgMin(whole));
    same("max", MaxAlong(x, 0).first, MaxAlong(whole, 0).first);
    same("norm", VectorNorm(x, 3), VectorNorm(whole, 3));
    same("prod", Prod(x), Prod(whole));
    same("any", Any(x), Any(whole));
    same("gelu", Gelu(x), Gelu(whole));
    same("take", Take(x, Make(mesh, Shard(0), {2}, DType::kI64, {-1, 0})),
         Take(whole, Make(mesh, Replicate(), {2}, DType::kI64, {-1, 0})));
  });
}

TEST(CompositeOps, ReduceAShardedDimOfMaxima) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({64, 3}, 5));
    CommTrace trace(mesh);
    FullTensor(MaxAlong(x, 0).second);
    EXPECT_LT(trace.Bytes(), x.shape().NumElements() * 8 / 2) << trace.ToString();
  });
}

TEST(CompositeOps, AreReadyForTheNextCallAfterAnError) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({5, 3}, 1)).SetRequiresGrad();
    const DTensor other = Place(mesh, {Shard(0)}, Values({4, 3}, 2));
    const DTensor ids = Make(mesh, Replicate(), {2}, DType::kI64, {4, 0});
    for (int round = 0; round < 2; ++round) {
      EXPECT_NE(ErrorOf([&] { Hypot(x, other); }).find("hypot"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { Lerp(x, Cast(x, DType::kF32), 0.5); }).find("lerp"),
                std::string::npos);
      EXPECT_NE(ErrorOf([&] { TopK(x, 9, 0); }).find("[0, 5]"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { KthValue(x, 0); }).find("[1, 3]"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { Gather(x, 2, ids); }).find("gather"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { Gather(x, 0, ids); }).find("does not fit"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { SoftShrink(x, -1); }).find("lambda"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { Gelu(DTensor()); }).find("gelu"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { L1Loss(DTensor(), x); }).find("l1_loss"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { VectorNorm(ids); }).find("vector_norm"), std::string::npos);
      EXPECT_NE(ErrorOf([&] { Var(x, {0, 0}); }).find("twice"), std::string::npos);
      EXPECT_EQ(Gelu(x).shape(), x.shape());
      EXPECT_EQ(IndexSelect(x, 0, ids).shape(), (Dims{2, 3}));
    }
  });
}

// Handles may be gone before Backward; what backward reads may not have been written.
TEST(CompositeOps, KeepWhatBackwardNeeds) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const GlobalValue value = Values({5, 3}, 1);
    const DTensor x = Place(mesh, {Shard(0)}, value).SetRequiresGrad();
    DTensor loss;
    {
      const DTensor scaled = Mul(x, 2.0);
      loss = Sum(AddCMul(scaled, Gelu(scaled), CumSum(scaled, 1)));
    }
    Backward(loss);
    EXPECT_TRUE(x.grad());

    const DTensor written = Mul(x, 1.0);
    const DTensor y = Sum(Hypot(written, x));
    {
      const NoGrad no_grad(mesh);
      MulInPlace(written, 2.0);
    }
    EXPECT_NE(ErrorOf([&] { Backward(y); }).find("hypot"), std::string::npos);
  });
}

TEST(CompositeOps, HoldAtTheEdgesOfNumbers) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor none =
        Make(mesh, Shard(0), {4}, DType::kF64, {-kInfinity, -kInfinity, -kInfinity, -kInfinity});
    EXPECT_EQ(NumberOf(LogSumExp(none)), -kInfinity);
    const DTensor zero = Make(mesh, Shard(0), {4}, DType::kF64, {0, 0, 0, 0}).SetRequiresGrad();
    Backward(VectorNorm(zero));
    EXPECT_EQ(FullTensor(zero.grad()).ToVector<double>(), (std::vector<double>{0, 0, 0, 0}));
    const DTensor nan = Make(mesh, Shard(0), {4}, DType::kF64, {1, std::nan(""), 7, 3});
    EXPECT_EQ(NumberOf(ArgMax(nan)), 1);
    EXPECT_TRUE(std::isnan(NumberOf(Median(nan))));
    EXPECT_EQ(NumberOf(NanSum(nan)), 11);
    EXPECT_EQ(FullTensor(Sort(nan).second).ToVector<double>(), (std::vector<double>{0, 3, 2, 1}));
    const DTensor infinite = Make(mesh, Shard(0), {2}, DType::kF64, {1, 2});
    EXPECT_EQ(NumberOf(Lerp(infinite, Add(infinite, 1.0), kInfinity)), kInfinity);
  });
}

}  // namespace
}  // namespace shardmesh::testing
