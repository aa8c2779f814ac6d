// SPDX-License-Identifier: Apache-2.0
//
// Numbers far from zero, out of a dtype's range, and beyond what doubles hold: the same values on
// one rank and on several.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }
std::string MessageOf(const std::function<void()>& call) {
  return std::string(Catch(call).message());
}

// Runs `body` on 1, 2 and 3 ranks.
void OnLines(const std::function<void(const DeviceMesh&)>& body) {
  for (const int ranks : {1, 2, 3}) OnMesh({{"x", ranks}}, body);
}

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                double tolerance, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << where << " element " << i;
}

// ---- cancellation -------------------------------------------------------------------------------

TEST(CrossEntropy, KeepsDigitsOfLogitsFarFromZeroHoweverTheyAreSharded) {
  const int64_t rows = 5, classes = 4;
  const std::vector<double> targets = {0, 3, -100, 2, 1};
  for (const double offset : {0.0, 1e5, -1e8, 1e20, 1e-20}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      // Equal logits in the first row; steps that f32 has at the offset in the others.
      const double step = std::fabs(offset) < 1e6 ? 0.25 : std::fabs(offset) < 1e10 ? 8 : 0;
      GlobalValue logits{{rows, classes}, dtype};
      for (int64_t i = 0; i < rows * classes; ++i) {
        const double value = offset + step * static_cast<double>(i / classes * (i * 3 % 5));
        logits.values.push_back(dtype == DType::kF32 ? static_cast<float>(value) : value);
      }
      double loss = 0;
      std::vector<double> gradient;
      for (int64_t row = 0; row < rows; ++row) {
        const double* x = logits.values.data() + row * classes;
        const double max = *std::max_element(x, x + classes);
        double sum = 0;
        for (int64_t i = 0; i < classes; ++i) sum += std::exp(x[i] - max);
        const int target = static_cast<int>(targets[row]);
        if (target >= 0) loss += (std::log(sum) - (x[target] - max)) / 4;
        for (int64_t i = 0; i < classes; ++i) {
          const double p = std::exp(x[i] - max) / sum;
          gradient.push_back(target < 0 ? 0 : (p - (i == target ? 1 : 0)) / 4);
        }
      }
      const double tolerance = dtype == DType::kF32 ? 3e-7 : 1e-14;
      OnLines([&](const DeviceMesh& mesh) {
        for (const Placement placement : {Replicate(), Shard(0), Shard(1)}) {
          const std::string where = std::string(Name(dtype)) + " at " + std::to_string(offset) +
                                    " " + placement.ToString();
          DTensor x = Place(mesh, {placement}, logits);
          x.SetRequiresGrad();
          const DTensor t = Place(mesh, {placement == Shard(0) ? Shard(0) : Replicate()},
                                  {{rows}, DType::kI64, targets});
          const DTensor y = CrossEntropy(x, t);
          EXPECT_NEAR(Item(y), loss, 4 * tolerance * (1 + std::fabs(loss))) << where;
          Backward(y);
          ExpectNear(Whole(x.grad()), gradient, tolerance, where);
        }
      });
    }
  }
}

TEST(CrossEntropy, TakesThreeAllReducesOverShardedClasses) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    GlobalValue logits{{2, 7}, DType::kF32};
    for (int i = 0; i < 14; ++i) logits.values.push_back(i * 5 % 7 - 3);
    DTensor x = Place(mesh, {Shard(1)}, logits);
    x.SetRequiresGrad();
    const DTensor t = Place(mesh, {Replicate()}, {{2}, DType::kI64, {1, 6}});
    CommTrace trace(mesh);
    Backward(CrossEntropy(x, t));
    EXPECT_EQ(trace.Count("x", "all_reduce", "cross_entropy"), 3) << trace.ToString();
    EXPECT_EQ(trace.Count(), 3) << trace.ToString();
  });
}

// ---- sums of small dtypes -----------------------------------------------------------------------

TEST(Mean, OfSmallDTypesDoesNotOverflowAndRoundsOnce) {
  OnLines([](const DeviceMesh& mesh) {
    // 100,000 ones add up to more than an f16 has.
    const int64_t count = 100'000;
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      GlobalValue ones{{count}, dtype, std::vector<double>(count, 1.0)};
      ones.values[7] = -3;
      for (const Placement placement : {Replicate(), Shard(0)}) {
        DTensor x = Place(mesh, {placement}, ones);
        x.SetRequiresGrad();
        const DTensor mean = Mean(x);
        EXPECT_EQ(mean.dtype(), dtype);
        EXPECT_EQ(Item(mean), 1);
        Backward(mean);
        EXPECT_EQ(x.grad().dtype(), dtype);
        EXPECT_NEAR(Whole(x.grad())[3], 1e-5, 1e-7);
      }
    }
    // Each row once: bf16(sum / 3), not bf16(bf16(sum) / 3).
    GlobalValue rows{{64, 3}, DType::kBF16};
    std::vector<double> expected;
    for (int row = 0; row < 64; ++row) {
      double sum = 0;
      for (int i = 0; i < 3; ++i) {
        const auto value = static_cast<float>(BFloat16(1.0f + 0.37f * (row * 3 + i)));
        rows.values.push_back(value);
        sum += value;
      }
      expected.push_back(static_cast<float>(BFloat16(static_cast<float>(sum) / 3.0f)));
    }
    for (const Placement placement : {Replicate(), Shard(0), Shard(1)}) {
      EXPECT_EQ(Whole(Mean(Place(mesh, {placement}, rows), {1})), expected) << placement.ToString();
    }
  });
}

TEST(MseLoss, OfSmallDTypesIsComputedInF32) {
  OnLines([](const DeviceMesh& mesh) {
    GlobalValue values{{7}, DType::kF16, {300, -400, 0.5, -2, 7, 250, -1}},
        targets{{7}, DType::kF16, {-10, 8, -0.25, 3, 5, -2, 1000}};
    double expected = 0;
    for (int i = 0; i < 7; ++i)
      expected += (values.values[i] - targets.values[i]) * (values.values[i] - targets.values[i]);
    // The sum of squares is 1.3e6, and each square beyond 65504 was inf.
    for (const Placement placement : {Replicate(), Shard(0)}) {
      DTensor x = Place(mesh, {placement}, values);
      x.SetRequiresGrad();
      // The mean does not fit into an f16 either; that of elements a 64th as large does.
      EXPECT_EQ(Item(MseLoss(x, Place(mesh, {placement}, targets))),
                std::numeric_limits<double>::infinity());
      const DTensor loss = MseLoss(Mul(x, 0.25), Mul(Place(mesh, {placement}, targets), 0.25));
      EXPECT_EQ(loss.dtype(), DType::kF16);
      EXPECT_NEAR(Item(loss), expected / 7 / 16, expected / 7 / 16 * 0x1p-11);
      Backward(loss);
      EXPECT_NEAR(Whole(x.grad())[0], 2 * (300 + 10) / 16.0 / 7, 2 * 310 / 16.0 / 7 * 0x1p-9);
    }
  });
}

// ---- integers and bools -------------------------------------------------------------------------

TEST(Sum, OfIntegersWithoutDimsIsI64) {
  OnLines([](const DeviceMesh& mesh) {
    for (const DType dtype : {DType::kBool, DType::kI32, DType::kI64}) {
      const DTensor x = Full(mesh, {}, dtype, 1, {Replicate()});
      EXPECT_EQ(Sum(x).dtype(), DType::kI64) << dtype;
      EXPECT_EQ(IntegerItem(Sum(x)), 1);
      EXPECT_EQ(Sum(x, {}, /*keepdim=*/true).shape(), Dims());
      EXPECT_EQ(Max(x).dtype(), dtype);
    }
  });
}

TEST(Item, OfIntegersBeyondDoublesIsExactOrRefused) {
  OnLines([](const DeviceMesh& mesh) {
    for (const int64_t value :
         {int64_t{9007199254740993}, std::numeric_limits<int64_t>::min() + 1}) {
      const Tensor one = Tensor::FromValues<int64_t>(mesh.context(), {1, 1}, {value});
      const DTensor x = Distribute(mesh, one, {Shard(0)});
      EXPECT_EQ(IntegerItem(x), value);
      EXPECT_THAT(MessageOf([&] { Item(x); }), HasSubstr("is no double; use IntegerItem"));
    }
    EXPECT_THAT(MessageOf([&] { IntegerItem(Full(mesh, {}, DType::kF32, 1, {Replicate()})); }),
                HasSubstr("f32[] is not of integers"));
    EXPECT_THAT(MessageOf([&] { IntegerItem(Full(mesh, {2}, DType::kI64, 1, {Replicate()})); }),
                HasSubstr("IntegerItem: expected one element, got i64[2]"));
  });
}

TEST(CrossEntropy, IgnoresAnyIntegerAndOnlyThat) {
  constexpr int64_t kOdd = 9007199254740993;  // No double: it was taken for the one before.
  OnLines([&](const DeviceMesh& mesh) {
    GlobalValue logits{{3, 2}, DType::kF64, {0.5, 1, -1, 2, 3, -0.25}};
    const DTensor x = Place(mesh, {Shard(0)}, logits);
    const DTensor wide = Distribute(
        mesh, Tensor::FromValues<int64_t>(mesh.context(), {3}, {0, kOdd, 1}), {Shard(0)});
    const double first = std::log(1 + std::exp(0.5)), third = std::log(1 + std::exp(3.25));
    EXPECT_NEAR(Item(CrossEntropy(x, wide, kOdd)), (first + third) / 2, 1e-14);
    // No i32 is 2^32, though it is 0 when it is cut: no target is ignored.
    const DTensor narrow =
        Distribute(mesh, Tensor::FromValues<int32_t>(mesh.context(), {3}, {0, 1, 1}), {Shard(0)});
    const double second = std::log(1 + std::exp(-3));
    EXPECT_NEAR(Item(CrossEntropy(x, narrow, int64_t{1} << 32)), (first + second + third) / 3,
                1e-14);
  });
}

TEST(Bool, IsReducedAsIntegersAreAndIsNeverPartial) {
  OnLines([](const DeviceMesh& mesh) {
    const GlobalValue flags{{3, 2}, DType::kBool, {0, 0, 1, 0, 0, 0}};
    const DTensor x = Place(mesh, {Shard(0)}, flags);
    EXPECT_EQ(Max(x).dtype(), DType::kBool);
    EXPECT_THAT(Whole(Max(x, {0})), ElementsAre(1, 0));
    EXPECT_THAT(Whole(Max(x, {1}, /*keepdim=*/true)), ElementsAre(0, 1, 0));
    EXPECT_THAT(Whole(Min(x, {0})), ElementsAre(0, 0));
    EXPECT_EQ(Item(Max(x)), 1);
    EXPECT_EQ(Item(Min(x)), 0);
    EXPECT_EQ(IntegerItem(Sum(x)), 1);
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kSum}) {
      EXPECT_THAT(MessageOf([&] { Redistribute(x, {Partial(op)}); }),
                  HasSubstr("as bools are not reduced"));
      EXPECT_THAT(MessageOf([&] { Distribute(mesh, FullTensor(x), {Partial(op)}); }),
                  HasSubstr("Distribute: bool cannot be"));
      EXPECT_THAT(MessageOf([&] {
                    FromLocal(mesh, FullTensor(x), {3, 2}, {Partial(op)});
                  }),
                  HasSubstr("FromLocal: bool cannot be"));
    }
  });
}

TEST(Dropout, OfEverythingGivesZeros) {
  OnLines([](const DeviceMesh& mesh) {
    DTensor x = Place(mesh, {Shard(0)},
                      {{5}, DType::kF32, {1, -2, std::numeric_limits<double>::infinity(), 0, 4}});
    x.SetRequiresGrad();
    const DTensor y = Dropout(x, 1.0, {.seed = 1, .stream = 2});
    EXPECT_EQ(Whole(y), std::vector<double>(5, 0));
    Backward(Sum(y));
    EXPECT_EQ(Whole(x.grad()), std::vector<double>(5, 0));
    EXPECT_THAT(MessageOf([&] { Dropout(x, 1.5, {}); }), HasSubstr("probability in [0, 1]"));
  });
}

TEST(Slice, ArgumentsWhoseSumOverflowsAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  OnLines([](const DeviceMesh& mesh) {
    const DTensor x = Full(mesh, {3, 5}, DType::kF32, 1, {Shard(0)});
    EXPECT_THAT(MessageOf([&] { Slice(x, 1, kMost, 1); }),
                HasSubstr("slice: 1 from 9223372036854775807 on is not within dim 1 of f32[3,5]"));
    EXPECT_THAT(MessageOf([&] { Slice(x, 1, 2, kMost); }), HasSubstr("is not within dim 1"));
    EXPECT_THAT(MessageOf([&] { Slice(x, 1, kMost, kMost); }), HasSubstr("is not within dim 1"));
    EXPECT_THAT(MessageOf([&] { Slice(x, 1, std::numeric_limits<int64_t>::min(), 2); }),
                HasSubstr("is not within dim 1"));
    EXPECT_THAT(MessageOf([&] {
                  Split(x, {kMost, kMost, 7}, 1);
                }),
                HasSubstr("is more than dim 1"));
    EXPECT_THAT(MessageOf([&] { Split(x, {6, -1}, 1); }), HasSubstr("negative size -1"));
    EXPECT_EQ(Slice(x, 1, 5, 0).shape(), (Dims{3, 0}));
  });
}

}  // namespace
}  // namespace shardmesh::testing
