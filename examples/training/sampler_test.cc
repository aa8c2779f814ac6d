// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace shardmesh::examples {
namespace {

// p = {0.1, 0.2, 0.7}
const std::vector<double> kLogits = {std::log(1.0), std::log(2.0), std::log(7.0)};

TEST(PickIndex, CutsTheUnitIntervalByProbabilities) {
  const struct {
    double u;
    int64_t index;
  } kCases[] = {{0, 0}, {0.0999, 0}, {0.1001, 1}, {0.2999, 1}, {0.3001, 2}, {1 - 0x1p-53, 2}};
  for (const auto& c : kCases) EXPECT_EQ(PickIndex(kLogits, /*temperature=*/1, c.u), c.index);
}

TEST(PickIndex, SharpensAsTheTemperatureFalls) {
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/0.1, 0.05), 2);
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/100, 0.32), 0);
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/0, 0), 2);
}

TEST(PickIndex, TakesTheFirstOfTheLargest) {
  EXPECT_EQ(PickIndex(std::vector<double>{-3, 5, 5, 1}, /*temperature=*/0, 0.9), 1);
}

TEST(PickIndex, DoesNotOverflowAndStaysInRangeForLogitsThatAreNoNumbers) {
  EXPECT_EQ(PickIndex(std::vector<double>{1000, -1000}, /*temperature=*/0.01, 0.5), 0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t index = PickIndex(std::vector<double>{nan, nan, nan}, /*temperature=*/1, 0.5);
  EXPECT_GE(index, 0);
  EXPECT_LT(index, 3);
}

}  // namespace
}  // namespace shardmesh::examples
