// SPDX-License-Identifier: Apache-2.0
//
// Pooling, interpolation and the norms of ops/norms.h beyond what PyTorch's samples hold
// (tests/opinfo): ties, nan, paddings, statistics of a sharded batch, and what they refuse.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/norms.h"
#include "shardmesh/dtensor/ops/windows.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Numbers = std::vector<double>;

DTensor Make(const DeviceMesh& mesh, const Placement& placement, const Dims& shape,
             const Numbers& values, DType dtype = DType::kF64) {
  return Place(mesh, {placement}, GlobalValue{shape, dtype, values});
}
Numbers NumbersOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }
Numbers GradientOf(const DTensor& x) { return NumbersOf(x.grad()); }

void ExpectError(const std::string& text, absl::FunctionRef<void()> fn) {
  const std::string message = ErrorOf(fn);
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

// ---- pooling ------------------------------------------------------------------------------------

// The extremum of each window of one dim, its first place, and the gradient of a sum of extrema.
struct KnownMaxima {
  Numbers values, indices, gradient;
};

KnownMaxima MaximaOf(const Numbers& x, int64_t size, int64_t step, int64_t padding,
                     int64_t dilation, int64_t count) {
  KnownMaxima known{{}, {}, Numbers(x.size(), 0)};
  for (int64_t i = 0; i < count; ++i) {
    int64_t best = -1;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t at = i * step - padding + k * dilation;
      if (at < 0 || at >= static_cast<int64_t>(x.size())) continue;
      if (best < 0 || x[at] > x[best]) best = at;
    }
    known.values.push_back(x[best]);
    known.indices.push_back(static_cast<double>(best));
    known.gradient[best] += 1;
  }
  return known;
}

TEST(Pooling, MaximaAreThoseOfPlainLoops) {
  struct Case {
    int64_t extent, size, step, padding, dilation;
    bool ceil_mode;
    int64_t count;
  };
  // (extent + 2 padding - dilation (size - 1) - 1) / step + 1, rounded up in ceil mode.
  const Case cases[] = {{7, 3, 2, 1, 1, false, 4},  {7, 2, 3, 0, 1, true, 3},
                        {11, 3, 2, 1, 2, false, 5}, {5, 5, 1, 2, 1, false, 5},
                        {1, 1, 1, 0, 1, false, 1},  {6, 2, 2, 1, 1, true, 4}};
  for (const Case& c : cases) {
    Random random(static_cast<uint64_t>(c.extent));
    const GlobalValue x = RandomIntegers({2, 3, c.extent}, random, -2, 2);  // With ties.
    KnownMaxima known;
    for (int line = 0; line < 6; ++line) {
      const auto begin = x.values.begin() + line * c.extent;
      const KnownMaxima of = MaximaOf(Numbers(begin, begin + c.extent), c.size, c.step, c.padding,
                                      c.dilation, c.count);
      known.values.insert(known.values.end(), of.values.begin(), of.values.end());
      known.indices.insert(known.indices.end(), of.indices.begin(), of.indices.end());
      known.gradient.insert(known.gradient.end(), of.gradient.begin(), of.gradient.end());
    }
    for (const Placement& p : {Shard(0), Shard(1), Shard(2), Replicate()}) {
      OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
        const DTensor in = Make(mesh, p, x.shape, x.values).SetRequiresGrad();
        const MaxPoolResult y = MaxPool1d(in, {.kernel = {c.size},
                                               .stride = {c.step},
                                               .padding = {c.padding},
                                               .dilation = {c.dilation},
                                               .ceil_mode = c.ceil_mode});
        EXPECT_EQ(NumbersOf(y.values), known.values) << c.extent << " " << p.ToString();
        EXPECT_EQ(NumbersOf(y.indices), known.indices) << c.extent << " " << p.ToString();
        Backward(Sum(y.values));
        EXPECT_EQ(GradientOf(in), known.gradient) << c.extent << " " << p.ToString();
      });
    }
  }
}

TEST(Pooling, MaximaOfInfinitiesAndNan) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const double nan = std::nan("");
    const DTensor x = Make(mesh, Shard(0), {2, 4}, {-kInfinity, -kInfinity, 1, 2, 3, nan, 2, 5});
    const MaxPoolResult y = MaxPool1d(x, {.kernel = {2}, .padding = {1}});
    EXPECT_EQ(NumbersOf(y.indices), (Numbers{0, 2, 3, 0, 1, 3}));
    const Numbers values = NumbersOf(y.values);
    EXPECT_EQ(values[0], -kInfinity);
    EXPECT_TRUE(std::isnan(values[4]));
  });
}

TEST(Pooling, MeansCountWhatTheyAreToldTo) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Make(mesh, Shard(2), {1, 1, 5}, {6, 12, 18, 24, 30}).SetRequiresGrad();
    AvgPoolOptions options{.kernel = {3}, .stride = {2}, .padding = {1}};
    EXPECT_EQ(NumbersOf(AvgPool1d(x, options)), (Numbers{6, 18, 18}));
    options.count_include_pad = false;
    EXPECT_EQ(NumbersOf(AvgPool1d(x, options)), (Numbers{9, 18, 27}));
    options.divisor = -2;
    EXPECT_EQ(NumbersOf(AvgPool1d(x, options)), (Numbers{-9, -27, -27}));
    // The last window begins within the padding that the ceiling would need, and is left out.
    EXPECT_EQ(AvgPool1d(x, {.kernel = {2}, .padding = {1}, .ceil_mode = true}).dim(2), 3);
    EXPECT_EQ(NumbersOf(AvgPool1d(x, {.kernel = {2}, .ceil_mode = true})), (Numbers{9, 21, 30}));
    Backward(Sum(AvgPool1d(x, {.kernel = {2}, .ceil_mode = true})));
    EXPECT_EQ(GradientOf(x), (Numbers{0.5, 0.5, 0.5, 0.5, 1}));
  });
}

TEST(Pooling, AdaptiveWindowsAreRoundedOutwards) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    const DTensor x =
        Make(mesh, Shard(1), {1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}).SetRequiresGrad();
    EXPECT_TRUE(AreClose(NumbersOf(AdaptiveAvgPool1d(x, {2})), {2, 4, 7, 9}, 1e-15));
    EXPECT_EQ(NumbersOf(AdaptiveAvgPool1d(x, {-1})), NumbersOf(x));
    const MaxPoolResult y = AdaptiveMaxPool1d(x, {2});
    EXPECT_EQ(NumbersOf(y.values), (Numbers{3, 5, 8, 10}));
    EXPECT_EQ(NumbersOf(y.indices), (Numbers{2, 4, 2, 4}));
  });
}

// Products with matrices of weights would make nan of what lies outside.
TEST(Pooling, AnInfinityStaysInItsWindow) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor even = Make(mesh, Shard(2), {1, 1, 4}, {kInfinity, 1, 2, 3});
    EXPECT_EQ(NumbersOf(AdaptiveAvgPool1d(even, {2})), (Numbers{kInfinity, 2.5}));
    const DTensor uneven = Make(mesh, Shard(2), {1, 1, 5}, {kInfinity, 1, 2, 3, 4});
    EXPECT_EQ(NumbersOf(AdaptiveAvgPool1d(uneven, {2})), (Numbers{kInfinity, 3}));
    for (const InterpolateMode mode : {InterpolateMode::kLinear, InterpolateMode::kCubic}) {
      const Numbers wide = NumbersOf(Interpolate(even, {16}, mode));
      ASSERT_EQ(wide.size(), 16u);
      for (size_t i = 12; i < wide.size(); ++i) EXPECT_TRUE(std::isfinite(wide[i])) << i;
    }
  });
}

TEST(Pooling, NamesWhatDoesNotFit) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({3, 2, 5}, 1));
    ExpectError("max_pool1d: a window of 6", [&] { MaxPool1d(x, {.kernel = {6}}); });
    ExpectError("`padding` is 2", [&] { MaxPool1d(x, {.kernel = {3}, .padding = {2}}); });
    ExpectError("0 values of `kernel`", [&] { AvgPool1d(x, {}); });
    ExpectError("`divisor` is 0", [&] { AvgPool1d(x, {.kernel = {2}, .divisor = 0}); });
    ExpectError("holds padding alone", [&] {
      MaxPool1d(Slice(x, 2, 0, 1), {.kernel = {2}, .padding = {1}, .dilation = {2}});
    });
    ExpectError("`sizes` is 0", [&] { AdaptiveAvgPool1d(x, {0}); });
    ExpectError("avg_pool2d: f64[5]", [&] { AvgPool2d(Select(Select(x, 0, 0), 0, 0), {}); });
    ExpectError("floating", [&] { MaxPool1d(Cast(x, DType::kI64), {.kernel = {2}}); });
  });
}

// ---- interpolation ------------------------------------------------------------------------------

TEST(Interpolate, KeepsLinesAndConstants) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Make(mesh, Shard(2), {1, 1, 4}, {0, 3, 6, 9});
    EXPECT_TRUE(
        AreClose(NumbersOf(Interpolate(x, {10}, InterpolateMode::kLinear, /*align_corners=*/true)),
                 {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1e-15));
    EXPECT_EQ(NumbersOf(Interpolate(x, {8}, InterpolateMode::kLinear)),
              (Numbers{0, 0.75, 2.25, 3.75, 5.25, 6.75, 8.25, 9}));
    EXPECT_EQ(NumbersOf(Interpolate(x, {6}, InterpolateMode::kNearest)),
              (Numbers{0, 0, 3, 6, 6, 9}));
    EXPECT_EQ(NumbersOf(InterpolateBy(x, {0.5}, InterpolateMode::kArea)), (Numbers{1.5, 7.5}));
    const DTensor ones = Make(mesh, Shard(0), {1, 1, 3}, {1, 1, 1});
    for (const double one : NumbersOf(Interpolate(ones, {7}, InterpolateMode::kCubic)))
      EXPECT_NEAR(one, 1, 1e-15);
    // 49 * (2 / 98) is below 1 in floating point.
    const DTensor two = Make(mesh, Replicate(), {1, 1, 2}, {0, 1});
    EXPECT_EQ(NumbersOf(Interpolate(two, {98}))[49], 1);
    ExpectError("interpolate: `sizes` is 0", [&] { Interpolate(x, {0}); });
    ExpectError("`factors` is -1", [&] { InterpolateBy(x, {-1}); });
    ExpectError("align_corners", [&] { Interpolate(x, {2}, InterpolateMode::kArea, true); });
    ExpectError("beyond batch and channels", [&] { Interpolate(Select(x, 0, 0), {2}); });
  });
}

// ---- norms --------------------------------------------------------------------------------------

// Means of the ranks' means and variances would be 5 and 8 / 3.
TEST(BatchNorm, HasTheStatisticsOfTheWholeBatch) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Make(mesh, Shard(0), {3, 1}, {1, 3, 8});  // 1 and 3; 8.
    const RunningStatistics running{Make(mesh, Replicate(), {1}, {10}),
                                    Make(mesh, Shard(0), {1}, {2}), 0.25};
    CommTrace trace(mesh);
    const DTensor y = BatchNorm(x, {}, {}, 1e-5, running);
    EXPECT_EQ(trace.Count("x", "all_reduce"), 2) << trace.ToString();
    EXPECT_EQ(trace.Count(), 2) << trace.ToString();
    const double deviation = std::sqrt(26.0 / 3 + 1e-5);
    const Numbers expected = {-3 / deviation, -1 / deviation, 4 / deviation}, actual = NumbersOf(y);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-14);
    EXPECT_EQ(NumbersOf(running.mean), (Numbers{10 * 0.75 + 4 * 0.25}));
    EXPECT_NEAR(NumbersOf(running.variance)[0], 2 * 0.75 + 13 * 0.25, 1e-14);
    // Instances: means 2 and 5, unbiased variances 2 and 18.
    const DTensor instances = Make(mesh, Shard(0), {2, 1, 2}, {1, 3, 2, 8});
    const RunningStatistics zeros{Make(mesh, Replicate(), {1}, {0}),
                                  Make(mesh, Replicate(), {1}, {0}), 1};
    InstanceNorm(instances, {}, {}, 1e-5, zeros);
    EXPECT_EQ(NumbersOf(zeros.mean), (Numbers{3.5}));
    EXPECT_EQ(NumbersOf(zeros.variance), (Numbers{10}));
  });
}

// 300 squared is no f16, and bf16 does not hold the mean of 256 and 257.
TEST(ChannelNorms, HaveNoSmallDTypeInBetween) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor far = Make(mesh, Shard(0), {2, 2}, {300, -300, -300, 300}, DType::kF16);
    EXPECT_EQ(NumbersOf(BatchNorm(far, {}, {}, 0)), (Numbers{1, -1, -1, 1}));
    EXPECT_EQ(NumbersOf(GroupNorm(far, 1, {}, {}, 0)), (Numbers{1, -1, -1, 1}));
    EXPECT_EQ(NumbersOf(CDist(far, far)), (Numbers{0, 848.5, 848.5, 0}));
    EXPECT_EQ(BatchNorm(far).dtype(), DType::kF16);
    const DTensor near = Make(mesh, Shard(1), {1, 1, 4}, {256, 258, 256, 258}, DType::kBF16);
    EXPECT_EQ(NumbersOf(InstanceNorm(near, {}, {}, 0)), (Numbers{-1, 1, -1, 1}));
    EXPECT_EQ(NumbersOf(AvgPool1d(near, {.kernel = {4}})), (Numbers{256}));
    const DTensor running = Make(mesh, Replicate(), {1}, {0}, DType::kF32);
    BatchNorm(near, {}, {}, 0, {running, Make(mesh, Replicate(), {1}, {0}, DType::kF32), 1});
    EXPECT_EQ(NumbersOf(running), (Numbers{257}));
  });
}

TEST(ChannelNorms, NameWhatDoesNotFit) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({3, 4, 2}, 1));
    const DTensor three = Place(mesh, {Shard(0)}, Values({3}, 2));
    const DTensor four = Place(mesh, {Shard(0)}, Values({4}, 2));
    ExpectError("group_norm: 3 groups do not divide the 4 channels", [&] { GroupNorm(x, 3); });
    ExpectError("batch_norm: weight f64[3]", [&] { BatchNorm(x, three); });
    ExpectError("differ in dtype", [&] { BatchNorm(x, Cast(four, DType::kF32)); });
    ExpectError("only one is given", [&] { BatchNorm(x, {}, {}, 1e-5, {four, {}}); });
    ExpectError("expected at least 2", [&] { BatchNorm(Slice(Select(x, 2, 0), 0, 0, 1)); });
    ExpectError("layer_norm: f64[4]", [&] { LayerNormOver(x, 2, four); });
    ExpectError("over the last 4 dims", [&] { RmsNormOver(x, 4, {}, 1e-5); });
    ExpectError("`size` is 0", [&] { LocalResponseNorm(x, 0); });
    ExpectError("cdist: f64[3,4,2]", [&] { CDist(x, Transpose(x, 1, 2)); });
  });
}

}  // namespace
}  // namespace shardmesh::testing
