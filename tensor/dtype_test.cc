// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/dtype.h"

#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                          DType::kI32, DType::kI64, DType::kBool};

// The value of a binary16 by its definition.
double ValueOfHalf(uint16_t bits) {
  const double sign = bits >> 15 ? -1 : 1;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// The small type's nearest value to `value`, the one with even bits of two, by looking at its
// neighbours: `low` and `low + 1` enclose |value|.
template <typename Small>
void ExpectNearest(float value, Small rounded, double below, double above, uint16_t low_bits) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const double to_low = magnitude - below, to_high = above - magnitude;
  const bool takes_low = to_low < to_high || (to_low == to_high && low_bits % 2 == 0);
  EXPECT_EQ(rounded.bits & 0x7fff, takes_low ? low_bits : low_bits + 1) << value;
}

TEST(DType, NamesAndSizes) {
  for (const DType dtype : kAll) EXPECT_EQ(DTypeFromName(Name(dtype)), dtype);
  EXPECT_EQ(DTypeFromName("f8"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
  for (const DType dtype : kAll) {
    const int64_t size = VisitDType(dtype, [&]<typename T>() {
      EXPECT_EQ(kDTypeOf<T>, dtype);
      return static_cast<int64_t>(sizeof(T));
    });
    EXPECT_EQ(SizeOf(dtype), size) << Name(dtype);
  }
}

TEST(DType, VisitFloatingRefusesOthersByName) {
  try {
    VisitFloating(DType::kI64, "softmax", []<typename T>() {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "softmax: needs a floating-point dtype, got i64");
  }
}

TEST(Float16, EveryValueConvertsExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Float16 half;
    half.bits = static_cast<uint16_t>(bits);
    const double expected = ValueOfHalf(half.bits);
    const float value = static_cast<float>(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(value)))) << bits;
    } else {
      EXPECT_EQ(value, expected) << bits;
      EXPECT_EQ(std::signbit(value), bits >> 15) << bits;
      EXPECT_EQ(Float16(value).bits, bits);
    }
  }
}

TEST(Float16, RoundsToNearestTiesToEven) {
  // Between each two neighbours: the middle, and the floats next to it.
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const double below = ValueOfHalf(low), above = ValueOfHalf(low + 1);
    const float middle = static_cast<float>((below + above) / 2);
    for (const float value :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      ExpectNearest(value, Float16(value), below, above, low);
      ExpectNearest(value, Float16(-value), below, above, low);
    }
  }
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);  // The largest that rounds to a number.
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(1e30f).bits, 0x7c00);
  EXPECT_EQ(Float16(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(Float16(0x1p-25f).bits, 0);  // Half of the smallest: ties to 0.
  EXPECT_EQ(Float16(0x1.000002p-25f).bits, 1);
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  for (uint32_t low = 0; low < 0x7f7f; ++low) {
    const float below = std::bit_cast<float>(low << 16),
                above = std::bit_cast<float>((low + 1) << 16);
    for (const uint32_t offset : {0x7fffu, 0x8000u, 0x8001u}) {
      const float value = std::bit_cast<float>((low << 16) + offset);
      ExpectNearest(value, BFloat16(value), below, above, static_cast<uint16_t>(low));
      ExpectNearest(value, BFloat16(-value), below, above, static_cast<uint16_t>(low));
    }
  }
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-INFINITY).bits, 0xff80);
  // A NaN whose payload lies in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(ConvertTo, GoesTowardsZeroAndThroughFloat) {
  EXPECT_EQ(ConvertTo<int32_t>(-2.9), -2);
  EXPECT_EQ(ConvertTo<int64_t>(BFloat16(7.5f)), 7);
  EXPECT_EQ(ConvertTo<bool>(0.25), true);
  EXPECT_EQ(ConvertTo<bool>(-0.0f), false);
  EXPECT_EQ(ConvertTo<bool>(std::nan("")), true);
  EXPECT_EQ(ConvertTo<bool>(Float16(0.5f)), true);
  EXPECT_EQ(ConvertTo<Float16>(true).bits, 0x3c00);
  EXPECT_EQ(ConvertTo<BFloat16>(int64_t{257}).bits, BFloat16(256.0f).bits);  // A tie.
  EXPECT_EQ(ConvertTo<double>(Float16(0.1f)), 0.0999755859375);
}

TEST(ConvertTo, GivesTheNearestIntegerThereIsToWhatIsOutOfRange) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = 0x7fffffff;
  constexpr int64_t kLeast64 = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost64 = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ConvertTo<int32_t>(2147483647.9), kMost);
  EXPECT_EQ(ConvertTo<int32_t>(2147483646.9), kMost - 1);
  EXPECT_EQ(ConvertTo<int32_t>(2147483648.0f), kMost);
  EXPECT_EQ(ConvertTo<int32_t>(2147483520.0f), 2147483520);  // The float below.
  EXPECT_EQ(ConvertTo<int32_t>(-2147483648.9), kLeast);
  EXPECT_EQ(ConvertTo<int32_t>(-2147483647.9), kLeast + 1);
  EXPECT_EQ(ConvertTo<int32_t>(-3e38f), kLeast);
  EXPECT_EQ(ConvertTo<int32_t>(BFloat16(3e38f)), kMost);
  EXPECT_EQ(ConvertTo<int64_t>(9.3e18), kMost64);
  EXPECT_EQ(ConvertTo<int64_t>(-1e300), kLeast64);
  EXPECT_EQ(ConvertTo<int64_t>(-9223372036854774784.0), -9223372036854774784);
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const bool high = value > 0, low = value < 0;
    EXPECT_EQ(ConvertTo<int32_t>(static_cast<float>(value)), high ? kMost : low ? kLeast : 0);
    EXPECT_EQ(ConvertTo<int64_t>(value), high ? kMost64 : low ? kLeast64 : 0);
  }
}

}  // namespace
}  // namespace shardmesh
