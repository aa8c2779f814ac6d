// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/box.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace shardmesh {
namespace {

TEST(Chunk, TilesEveryLengthForEveryCountOnce) {
  for (int64_t n = 0; n <= 40; ++n) {
    for (int p = 1; p <= 11; ++p) {
      int64_t end = 0, first_length = -1;
      for (int i = 0; i < p; ++i) {
        const ChunkRange chunk = Chunk({0, n}, i, p);
        const int64_t length = chunk.end - chunk.begin;
        ASSERT_GE(length, 0) << n << " " << p << " " << i;
        ASSERT_EQ(chunk.begin, end) << n << " " << p << " " << i;
        if (length == 0) {
          ASSERT_EQ(chunk.begin, n) << n << " " << p << " " << i;
        }
        // As torch.chunk: all chunks but the last non-empty one have the length of the first,
        // ceil(n / p).
        if (first_length < 0) first_length = length;
        if (chunk.end < n) {
          ASSERT_EQ(length, first_length) << n << " " << p << " " << i;
        }
        end = chunk.end;
      }
      ASSERT_EQ(end, n) << n << " " << p;
      ASSERT_EQ(first_length, (n + p - 1) / p) << n << " " << p;
    }
  }
}

TEST(Chunk, LengthIsNeverNegative) {
  // Seen elsewhere: n - rank * chunk = -1 for the last of 4 ranks and 5 elements.
  EXPECT_EQ(Chunk({0, 5}, 3, 4), (ChunkRange{5, 5}));
  EXPECT_EQ(Chunk({0, 5}, 2, 4), (ChunkRange{4, 5}));
}

TEST(Chunk, OfARangeIsTheShiftedChunkOfItsLength) {
  for (int64_t n = 0; n <= 12; ++n) {
    for (int p = 1; p <= 5; ++p) {
      for (int i = 0; i < p; ++i) {
        const ChunkRange plain = Chunk({0, n}, i, p);
        EXPECT_EQ(Chunk({7, 7 + n}, i, p), (ChunkRange{7 + plain.begin, 7 + plain.end}));
      }
    }
  }
}

TEST(Box, ScalarHoldsOneElement) {
  const Box box = Box::Whole({});
  EXPECT_EQ(box.NumElements(), 1);
  EXPECT_FALSE(box.IsEmpty());
  EXPECT_EQ(box.ToString(), "[]");
  EXPECT_TRUE(box.Contains(box));
}

TEST(Box, ExtentsAndText) {
  const Box box = {{3, 0}, {5, 7}};
  EXPECT_EQ(box.Extents(), (Dims{2, 7}));
  EXPECT_EQ(box.NumElements(), 14);
  EXPECT_EQ(box.ToString(), "[3:5, 0:7]");
  EXPECT_TRUE((Box{{3, 7}, {5, 7}}).IsEmpty());
}

/// All boxes within [0, n) x [0, m), empty ones included.
std::vector<Box> AllBoxes(int64_t n, int64_t m) {
  std::vector<Box> boxes;
  for (int64_t a = 0; a <= n; ++a) {
    for (int64_t b = a; b <= n; ++b) {
      for (int64_t c = 0; c <= m; ++c) {
        for (int64_t d = c; d <= m; ++d) boxes.push_back({{a, c}, {b, d}});
      }
    }
  }
  return boxes;
}

bool Holds(const Box& box, int64_t i, int64_t j) {
  return i >= box.begin[0] && i < box.end[0] && j >= box.begin[1] && j < box.end[1];
}

TEST(Box, IntersectAndContainsAgreeWithIndexByIndex) {
  constexpr int64_t kN = 4, kM = 3;
  const std::vector<Box> boxes = AllBoxes(kN, kM);
  for (const Box& a : boxes) {
    for (const Box& b : boxes) {
      const Box common = Intersect(a, b);
      bool contains = true;
      for (int64_t i = 0; i < kN; ++i) {
        for (int64_t j = 0; j < kM; ++j) {
          ASSERT_EQ(Holds(common, i, j), Holds(a, i, j) && Holds(b, i, j)) << a << " " << b;
          contains = contains && (Holds(a, i, j) || !Holds(b, i, j));
        }
      }
      ASSERT_EQ(a.Contains(b), contains) << a << " " << b;
      ASSERT_LE(common.begin[0], common.end[0]) << a << " " << b;
      ASSERT_LE(common.begin[1], common.end[1]) << a << " " << b;
    }
  }
}

TEST(Box, RelativeIsTheOffsetInTheLocalTensorAndAlwaysFits) {
  for (const Box& outer : AllBoxes(4, 3)) {
    for (const Box& inner : AllBoxes(4, 3)) {
      if (!outer.Contains(inner)) continue;
      const Box local = Relative(inner, outer);
      for (int d = 0; d < 2; ++d) {
        ASSERT_LE(0, local.begin[d]);
        ASSERT_LE(local.begin[d], local.end[d]);
        ASSERT_LE(local.end[d], outer.Extents()[d]);
        if (!inner.IsEmpty()) {
          ASSERT_EQ(local.begin[d] + outer.begin[d], inner.begin[d]);
        }
      }
      ASSERT_EQ(local.NumElements(), inner.NumElements()) << inner << " in " << outer;
    }
  }
}

TEST(BoxDeathTest, BoxesOfDifferentRankDoNotMix) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Intersect(Box::Whole({2}), Box::Whole({2, 3})),
               "\\[0:2\\] and \\[0:2, 0:3\\] differ in rank");
}

}  // namespace
}  // namespace shardmesh
