// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/check.h"

#include "gtest/gtest.h"

namespace shardmesh {
namespace {

TEST(Check, TrueConditionEvaluatesNoMessage) {
  int messages = 0;
  const auto message = [&] { return ++messages; };
  SHARDMESH_CHECK(true) << message();
  EXPECT_EQ(messages, 0);
}

TEST(Check, IsOneStatementUnderAnElse) {
  bool reached = false;
  if (reached)
    SHARDMESH_CHECK(false) << "not reached";
  else
    reached = true;
  EXPECT_TRUE(reached);
}

TEST(CheckDeathTest, FalseConditionNamesPlaceConditionAndMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int begin = 5, end = 3;
  EXPECT_DEATH(SHARDMESH_CHECK(begin <= end) << "box " << begin << ".." << end,
               "^base/check_test.cc:[0-9]+: CHECK failed: begin <= end box 5..3\n");
}

TEST(CheckDeathTest, PathIsTheOneInTheSourceTree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* file :
       {"dtensor/ops.h", "bazel-out/bin/dtensor/_virtual_includes/ops/shardmesh/dtensor/ops.h",
        "bazel-out/bin/external/shardmesh/dtensor/_virtual_includes/ops/shardmesh/dtensor/ops.h"}) {
    EXPECT_DEATH(internal::CheckFailure("n > 0", file, 7),
                 "^dtensor/ops.h:7: CHECK failed: n > 0 ");
  }
}

}  // namespace
}  // namespace shardmesh
