// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/rotary_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace shardmesh::models {
namespace {

TEST(RotaryTables, HoldCosinesAndSinesOfPositionTimesFrequency) {
  ExecutionContext context;
  RotaryTables tables(/*head_dim=*/6, {.theta = 100});
  const auto [cos, sin] = tables.Get(context, /*length=*/5, DType::kF64);
  EXPECT_EQ(cos.shape(), (Dims{5, 3}));
  const std::vector<double> c = cos.ToVector<double>(), s = sin.ToVector<double>();
  for (int position = 0; position < 5; ++position) {
    for (int i = 0; i < 3; ++i) {
      const double angle = position * std::pow(100.0, -2.0 * i / 6);
      EXPECT_NEAR(c[position * 3 + i], std::cos(angle), 1e-15);
      EXPECT_NEAR(s[position * 3 + i], std::sin(angle), 1e-15);
    }
  }
}

TEST(RotaryTables, AreInTheAccumulatorOfTheComputeDtypeAndRoundedOnce) {
  ExecutionContext context;
  RotaryTables tables(8, {});
  const RotaryTables::CosSin exact = tables.Get(context, 300, DType::kF64);
  for (DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    const RotaryTables::CosSin rounded = tables.Get(context, 300, compute);
    EXPECT_EQ(rounded.cos.dtype(), DType::kF32);
    EXPECT_EQ(rounded.cos.ToVector<float>(), exact.cos.ToVector<float>());
    EXPECT_EQ(rounded.sin.ToVector<float>(), exact.sin.ToVector<float>());
  }
}

TEST(RotaryTables, GrowAtLeastTwofoldAndKeepTheirValues) {
  ExecutionContext context;
  RotaryTables tables(4, {});
  const RotaryTables::CosSin first = tables.Get(context, 7, DType::kF32);
  EXPECT_EQ(first.cos.storage()->bytes(), 7 * 2 * 4);
  const RotaryTables::CosSin longer = tables.Get(context, 8, DType::kF32);
  EXPECT_EQ(longer.cos.storage()->bytes(), 14 * 2 * 4);
  EXPECT_EQ(longer.cos.Narrow(0, 0, 7).ToVector<float>(), first.cos.ToVector<float>());
  EXPECT_EQ(tables.Get(context, 14, DType::kF32).cos.storage(), longer.cos.storage());
  EXPECT_EQ(tables.Get(context, 3, DType::kF32).cos.storage(), longer.cos.storage());
  EXPECT_EQ(tables.Get(context, 0, DType::kF32).cos.shape(), (Dims{0, 2}));
}

// Transcribed from the Llama 3.1 model card's rule, with its three cases.
TEST(RotaryTables, StretchLongWavelengthsOfLlama3) {
  const RopeConfig rope = {.type = RopeConfig::Type::kLlama3,
                           .theta = 500000,
                           .factor = 8,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_max_position_embeddings = 64};
  const RotaryTables tables(/*head_dim=*/16, rope);
  const RotaryTables plain(16, {.theta = 500000});
  int kept = 0, stretched = 0, between = 0;
  for (int i = 0; i < 8; ++i) {
    const double f = plain.frequencies()[i];
    const double wavelength = 2 * std::numbers::pi / f;
    double expected;
    if (wavelength < 64 / 4.0) {
      expected = f;
      ++kept;
    } else if (wavelength > 64 / 1.0) {
      expected = f / 8;
      ++stretched;
    } else {
      const double smooth = (64 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * f / 8 + smooth * f;
      ++between;
    }
    EXPECT_NEAR(tables.frequencies()[i], expected, 1e-15 * f) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace shardmesh::models
