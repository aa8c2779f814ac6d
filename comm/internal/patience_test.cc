// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/patience.h"

#include <gtest/gtest.h>

namespace shardmesh::internal {
namespace {

using std::chrono::milliseconds;
using Clock = Patience::Clock;

constexpr Clock::time_point kStart{std::chrono::hours(1)};

TEST(Patience, EndsAfterTheTimeOut) {
  Patience patience(milliseconds(1600), kStart);
  Clock::time_point now = kStart;
  for (int look = 1; look < Patience::kLooks; ++look) {
    now = patience.NextLook();
    EXPECT_FALSE(patience.IsExhausted(now)) << look;
  }
  EXPECT_FALSE(patience.IsExhausted(now + milliseconds(99)));
  EXPECT_TRUE(patience.IsExhausted(now + milliseconds(100)));
}

TEST(Patience, DoesNotCountTimeInWhichTheProcessDidNotRun) {
  Patience patience(milliseconds(1600), kStart);
  Clock::time_point now = kStart;
  for (int look = 1; look < Patience::kLooks; ++look)
    EXPECT_FALSE(patience.IsExhausted(now += milliseconds(100)));
  EXPECT_FALSE(patience.IsExhausted(now += std::chrono::hours(3)));
  EXPECT_FALSE(patience.IsExhausted(now += milliseconds(99)));
  EXPECT_TRUE(patience.IsExhausted(now += milliseconds(1)));
}

TEST(Patience, EndsAlsoWhereEveryLookIsLate) {
  Patience patience(milliseconds(1600), kStart);
  Clock::time_point now = kStart;
  int looks = 1;
  while (!patience.IsExhausted(now += std::chrono::hours(1))) ++looks;
  EXPECT_EQ(looks, Patience::kMaxLateLooks + Patience::kLooks);
}

TEST(Patience, CountsTheDelaysOfABusyMachine) {
  Patience patience(milliseconds(160), kStart);
  EXPECT_FALSE(patience.IsExhausted(kStart + milliseconds(110)));
  EXPECT_TRUE(patience.IsExhausted(kStart + milliseconds(220)));
}

TEST(Patience, OfAnInstantEnds) {
  Patience patience(Clock::duration(1), kStart);
  EXPECT_FALSE(patience.IsExhausted(kStart));
  EXPECT_TRUE(patience.IsExhausted(kStart + Clock::duration(1)));
}

}  // namespace
}  // namespace shardmesh::internal
