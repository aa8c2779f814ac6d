// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/status_macros.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace shardmesh {
namespace {

absl::StatusOr<std::unique_ptr<int>> Parse(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<int> x, Parse(a));
  SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<int> y, Parse(b));
  return *x + *y;
}

absl::Status RunBoth(absl::Status first, bool& second) {
  SHARDMESH_RETURN_IF_ERROR(std::move(first));
  second = true;
  return absl::OkStatus();
}

TEST(AssignOrReturn, MovesTheValueOutOrReturnsTheError) {
  EXPECT_EQ(*Sum(2, 5), 7);
  EXPECT_EQ(Sum(2, -5).status(), absl::InvalidArgumentError("negative"));
}

TEST(ReturnIfError, GoesOnOnlyAfterOk) {
  bool second = false;
  EXPECT_EQ(RunBoth(absl::DataLossError("gone"), second), absl::DataLossError("gone"));
  EXPECT_FALSE(second);
  EXPECT_TRUE(RunBoth(absl::OkStatus(), second).ok());
  EXPECT_TRUE(second);
}

}  // namespace
}  // namespace shardmesh
