// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/mesh_flag.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace shardmesh::examples {
namespace {

TEST(ParseMesh, KeepsTheOrderOfAxesAndTakesAnySubset) {
  EXPECT_EQ(*ParseMesh("dp=2,tp=2"), (MeshShape{{"dp", 2}, {"tp", 2}}));
  EXPECT_EQ(*ParseMesh("tp=3,dp=5"), (MeshShape{{"tp", 3}, {"dp", 5}}));
  EXPECT_EQ(*ParseMesh("dp_replicate=2,dp=1,tp=7"),
            (MeshShape{{"dp_replicate", 2}, {"dp", 1}, {"tp", 7}}));
  EXPECT_EQ(*ParseMesh("dp=1024"), (MeshShape{{"dp", 1024}}));
}

TEST(ParseMesh, SaysWhatIsWrongInOneLine) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "unknown axis ''"},
      {"dp=2,", "unknown axis ''"},
      {"pp=2", "unknown axis 'pp'"},
      {"DP=2", "unknown axis 'DP'"},
      {" dp=2", "unknown axis ' dp'"},
      {"dp", "axis dp has no size"},
      {"dp=", "size '' of axis dp"},
      {"dp=x", "size 'x' of axis dp"},
      {"dp=2x", "size '2x' of axis dp"},
      {"dp=2=2", "size '2=2' of axis dp"},
      {"dp=0", "size '0' of axis dp"},
      {"dp=-1", "size '-1' of axis dp"},
      {"dp=1025", "size '1025' of axis dp"},
      {"dp=99999999999999999999", "of axis dp is not a number from 1 to 1024"},
      {"tp=2,dp=2,tp=2", "axis tp appears twice"},
      {"dp=1024,tp=2", "a mesh of 2048 ranks"},
      {"dp_replicate=1024,dp=1024,tp=1024", "a mesh of 1073741824 ranks"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = ParseMesh(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << c.text << ": " << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "\n")) << status;
  }
}

// The bytes went into the message as they were.
TEST(ParseMesh, QuotesAndCutsWhatItWasGiven) {
  const absl::Status status = ParseMesh("\x1b[2J\n" + std::string(5000, 'x')).status();
  EXPECT_TRUE(absl::StrContains(status.message(), R"(unknown axis '\x1b[2J\nxxx)")) << status;
  EXPECT_LT(status.message().size(), 500u);
}

TEST(UnparseMesh, IsTheInverse) {
  EXPECT_EQ(UnparseMesh(*ParseMesh("dp_replicate=2,tp=3")), "dp_replicate=2,tp=3");
}

}  // namespace
}  // namespace shardmesh::examples
