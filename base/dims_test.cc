// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/dims.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

std::string MessageOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

TEST(Dims, ElementsAreTheProductAndOneForAScalar) {
  EXPECT_EQ((Dims{16, 128, 7}).NumElements(), 16 * 128 * 7);
  EXPECT_EQ((Dims{5, 0, 3}).NumElements(), 0);
  EXPECT_EQ(Dims().NumElements(), 1);
  EXPECT_EQ((Dims{int64_t{1} << 20, int64_t{1} << 22}).NumElements(), int64_t{1} << 42);
}

TEST(Dims, TextIsTheCanonicalForm) {
  EXPECT_EQ((Dims{16, 128, 7}).ToString(), "[16,128,7]");
  EXPECT_EQ(Dims().ToString(), "[]");
  std::ostringstream out;
  out << Dims{-1, 2};
  EXPECT_EQ(out.str(), "[-1,2]");
}

TEST(Dims, InsertAndEraseKeepTheOthersInOrder) {
  Dims dims = {2, 3, 5};
  dims.insert(0, 1);
  EXPECT_EQ(dims, (Dims{1, 2, 3, 5}));
  dims.insert(3, 4);
  EXPECT_EQ(dims, (Dims{1, 2, 3, 4, 5}));
  dims.push_back(6);
  EXPECT_EQ(dims.back(), 6);
  dims.erase(0);
  dims.erase(2);
  EXPECT_EQ(dims, (Dims{2, 3, 5, 6}));
}

TEST(Dims, EqualityAndHashIgnoreWhatWasErased) {
  Dims erased = {2, 3, 5};
  erased.erase(2);
  const Dims plain = {2, 3};
  EXPECT_EQ(erased, plain);
  EXPECT_EQ(absl::HashOf(erased), absl::HashOf(plain));
  EXPECT_FALSE(plain == (Dims{2, 3, 0}));
  EXPECT_FALSE(plain == (Dims{3, 2}));
}

TEST(Dims, MoreThanEightDimsAreRefused) {
  const std::vector<int64_t> nine(9, 2);
  EXPECT_EQ(MessageOf([&] { Dims{std::span(nine)}; }), "a tensor has at most 8 dims, got 9");
  Dims full = Dims::Filled(8, 3);
  EXPECT_EQ(MessageOf([&] { full.push_back(1); }),
            "a tensor has at most 8 dims: cannot add one to [3,3,3,3,3,3,3,3]");
  EXPECT_EQ(full.size(), 8);
}

TEST(NormalizeDim, CountsNegativeDimsFromTheLast) {
  EXPECT_EQ(NormalizeDim(0, 3, "sum"), 0);
  EXPECT_EQ(NormalizeDim(2, 3, "sum"), 2);
  EXPECT_EQ(NormalizeDim(-1, 3, "sum"), 2);
  EXPECT_EQ(NormalizeDim(-3, 3, "sum"), 0);
}

TEST(NormalizeDim, OutOfRangeNamesOpDimAndRank) {
  for (const int64_t dim : {3, -4}) {
    const std::string message = MessageOf([&] { NormalizeDim(dim, 3, "sum"); });
    EXPECT_EQ(message,
              "sum: dim " + std::to_string(dim) + " is out of range for a tensor of 3 dims");
  }
  EXPECT_TRUE(absl::StrContains(MessageOf([] { NormalizeDim(0, 0, "sum"); }), "0 dims"));
}

TEST(BroadcastShapes, FollowsNumPy) {
  struct Row {
    Dims a, b, want;
  };
  for (const Row& row : std::vector<Row>{{{5, 3}, {3}, {5, 3}},
                                         {{5, 1}, {1, 3}, {5, 3}},
                                         {{}, {2, 3}, {2, 3}},
                                         {{7, 1, 3}, {5, 1}, {7, 5, 3}},
                                         {{0, 3}, {1, 3}, {0, 3}},
                                         {{1}, {0}, {0}},
                                         {{}, {}, {}}}) {
    EXPECT_EQ(BroadcastShapes(row.a, row.b, "add"), row.want) << row.a << " " << row.b;
    EXPECT_EQ(BroadcastShapes(row.b, row.a, "add"), row.want) << row.a << " " << row.b;
  }
}

TEST(BroadcastShapes, MismatchNamesOpAndShapes) {
  EXPECT_EQ(MessageOf([] {
              BroadcastShapes({5, 3}, {5, 2}, "add");
            }),
            "add: shapes [5,3] and [5,2] do not broadcast");
  EXPECT_EQ(MessageOf([] { BroadcastShapes({0}, {2}, "add"); }),
            "add: shapes [0] and [2] do not broadcast");
}

}  // namespace
}  // namespace shardmesh
