// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/element_difference.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename A, typename B>
ElementDifference Compare(DType dtype_a, const std::vector<A>& a, DType dtype_b,
                          const std::vector<B>& b, const Tolerance& tolerance = {}) {
  ElementDifference difference(dtype_a, dtype_b, tolerance);
  difference.Add(reinterpret_cast<const char*>(a.data()), reinterpret_cast<const char*>(b.data()),
                 static_cast<int64_t>(a.size()));
  return difference;
}

ElementDifference CompareF32(const std::vector<float>& a, const std::vector<float>& b,
                             const Tolerance& tolerance = {}) {
  return Compare(DType::kF32, a, DType::kF32, b, tolerance);
}

// The rows of the table of Tolerance.
TEST(ElementDifference, IsTheTable) {
  const float other_nan = std::bit_cast<float>(0xffc12345u);
  const Tolerance none, bits = {.bits = true}, loose = {.rtol = 1, .atol = 1e30};
  const struct {
    float a, b;
    Tolerance tolerance;
    bool is_equal;
    double max_absolute;
    int64_t num_nan;
  } rows[] = {
      {1, 1, none, true, 0, 0},
      {1, 1.5, none, false, 0.5, 0},
      {1, 1.5, {.atol = 0.5}, true, 0.5, 0},
      {1, 1.5, {.atol = 0.49}, false, 0.5, 0},
      {1, 1.5, {.rtol = 0.34}, true, 0.5, 0},
      {1.5, 1, {.rtol = 0.33}, false, 0.5, 0},
      {0, -0.0f, none, true, 0, 0},
      {0, -0.0f, bits, false, 0, 0},
      {kNan, kNan, none, true, 0, 0},
      {kNan, other_nan, none, true, 0, 0},
      {kNan, other_nan, bits, false, 0, 0},
      {kNan, 1, loose, false, 0, 1},
      {1, kNan, none, false, 0, 1},
      {kInf, kNan, none, false, 0, 1},
      {kInf, kInf, none, true, 0, 0},
      {kInf, -kInf, loose, false, kInf, 0},
      {kInf, 1, loose, false, kInf, 0},
      {3e38f, -3e38f, none, false, 2.0 * 3e38f, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(testing::Message() << row.a << " " << row.b);
    const ElementDifference difference = CompareF32({row.a}, {row.b}, row.tolerance);
    EXPECT_EQ(difference.num_different(), row.is_equal ? 0 : 1);
    EXPECT_EQ(difference.max_absolute(), row.max_absolute);
    EXPECT_EQ(difference.num_nan(), row.num_nan);
    EXPECT_EQ(difference.num_elements(), 1);
  }
}

TEST(ElementDifference, CountsOverAllParts) {
  ElementDifference difference(DType::kF32, DType::kF32, {});
  const std::vector<float> a = {1, 2, 3, 4}, b = {1, 2, 5, 3};
  difference.Add(reinterpret_cast<const char*>(a.data()), reinterpret_cast<const char*>(a.data()),
                 4);
  difference.Add(reinterpret_cast<const char*>(a.data()), reinterpret_cast<const char*>(b.data()),
                 4);
  EXPECT_EQ(difference.num_elements(), 8);
  EXPECT_EQ(difference.num_different(), 2);
  EXPECT_EQ(difference.first(), 6);
  EXPECT_EQ(difference.first_a(), "3");
  EXPECT_EQ(difference.first_b(), "5");
  EXPECT_EQ(difference.max_absolute(), 2);
  EXPECT_EQ(difference.max_relative(), 0.4);
}

// As doubles they would be equal.
TEST(ElementDifference, ComparesIntegersExactly) {
  const int64_t large = (int64_t{1} << 53) + 1;
  const auto integers = [](int64_t a, int64_t b) {
    return Compare<int64_t, int64_t>(DType::kI64, {a}, DType::kI64, {b});
  };
  EXPECT_EQ(integers(large, large - 1).num_different(), 1);
  EXPECT_EQ(integers(large, large - 1).max_absolute(), 1);
  EXPECT_EQ(integers(INT64_MIN, INT64_MAX).max_absolute(), 0x1p64);
  EXPECT_EQ((Compare<int64_t, double>(DType::kI64, {large}, DType::kF64, {0x1p53}).num_different()),
            1);
  EXPECT_EQ((Compare<int64_t, double>(DType::kI64, {8}, DType::kF64, {8.0}).num_different()), 0);
}

TEST(ElementDifference, ComparesDTypesByTheirValues) {
  EXPECT_EQ((Compare<float, BFloat16>(DType::kF32, {1, 1.0078125f}, DType::kBF16,
                                      {BFloat16(1.0f), BFloat16(1.0078125f)})
                 .num_different()),
            0);
  const ElementDifference rounded =
      Compare<float, BFloat16>(DType::kF32, {1.001f}, DType::kBF16, {BFloat16(1.001f)});
  EXPECT_EQ(rounded.num_different(), 1);
  EXPECT_NEAR(rounded.max_absolute(), 0.001, 1e-6);
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
