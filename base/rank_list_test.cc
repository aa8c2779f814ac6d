// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/rank_list.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace shardmesh {
namespace {

std::vector<int> RanksFrom(int first, int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

TEST(RankList, NamesAllOfFew) {
  EXPECT_EQ(RankList({}), "");
  EXPECT_EQ(RankList(std::vector<int>{7}), "7");
  EXPECT_EQ(RankList(std::vector<int>{5, 0, 3}), "5, 0, 3");
  EXPECT_EQ(RankList(RanksFrom(0, 16)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15");
}

TEST(RankList, NamesSixteenOfManyAndCountsTheRest) {
  EXPECT_EQ(RankList(RanksFrom(2, 17)),
            "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 and 1 more");
  EXPECT_EQ(RankList(RanksFrom(0, 1000)),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 984 more");
}

}  // namespace
}  // namespace shardmesh
