// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/describe_sharding.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DescribeSharding, IsATableOnTwoAxes) {
  const Layout layout = Layout::Make({{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)}, {6, 5});
  EXPECT_EQ(DescribeSharding(layout),
            "[6,5] [S(0), S(1)] @ [dp=2, tp=2]\n"
            "      tp 0        tp 1\n"
            "dp 0  [0:3, 0:3]  [0:3, 3:5]\n"
            "dp 1  [3:6, 0:3]  [3:6, 3:5]\n");
}

TEST(DescribeSharding, SaysWhoHoldsNothingAndWhoHoldsSummands) {
  EXPECT_EQ(DescribeSharding(Layout::Make({{"dp", 3}}, {Shard(0)}, {2})),
            "[2] [S(0)] @ [dp=3]\n"
            "dp 0  [0:1]\n"
            "dp 1  [1:2]\n"
            "dp 2  nothing\n");
  EXPECT_EQ(DescribeSharding(Layout::Make({{"tp", 2}}, {Partial()}, {3})),
            "[3] [P(sum)] @ [tp=2]\n"
            "tp 0  [0:3] of sum\n"
            "tp 1  [0:3] of sum\n");
  EXPECT_EQ(DescribeSharding(Layout::Make({{"tp", 1}}, {Replicate()}, {})),
            "[] [R] @ [tp=1]\n"
            "tp 0  []\n");
}

TEST(DescribeSharding, EndsSomewhere) {
  EXPECT_THAT(DescribeSharding(Layout::Make({{"dp", 1000}}, {Shard(0)}, {1000})),
              AllOf(HasSubstr("dp 63  [63:64]\n"), HasSubstr("and 936 more ranks"),
                    Not(HasSubstr("dp 64 "))));
}

TEST(ShardingAsSvg, DrawsEachBoxOnceWithItsRanks) {
  const std::string svg =
      ShardingAsSvg(Layout::Make({{"dp", 2}, {"tp", 3}}, {Replicate(), Shard(1)}, {4, 6}));
  size_t boxes = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1))
    ++boxes;
  EXPECT_EQ(boxes, 3u);
  EXPECT_THAT(svg,
              AllOf(HasSubstr(">dp 0, tp 2<"), HasSubstr(">dp 1, tp 2<"), HasSubstr("</svg>")));
  EXPECT_THAT(std::string(Catch([] {
                            ShardingAsSvg(Layout::Make({{"dp", 2}}, {Shard(0)}, {2, 2, 2}));
                          }).message()),
              HasSubstr("[2,2,2] [S(0)] @ [dp=2]"));
}

}  // namespace
}  // namespace shardmesh
