// SPDX-License-Identifier: Apache-2.0
// One use of each system library: its label, headers and link flags are right.
#include <array>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cblas.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "xxhash.h"

namespace shardmesh {
namespace {

TEST(Dependencies, Abseil) {
  absl::StatusOr<int> missing = absl::NotFoundError("no axis tp");
  EXPECT_EQ(missing.status().ToString(), "NOT_FOUND: no axis tp");
  absl::flat_hash_map<std::string, int> sizes = {{"dp", 2}, {"tp", 3}};
  EXPECT_EQ(absl::StrCat("dp=", sizes.at("dp")), absl::StrFormat("dp=%d", 2));
  EXPECT_EQ(absl::FormatDuration(absl::Milliseconds(1500)), "1.5s");
}

TEST(Dependencies, OpenBlas) {
  const std::array<float, 6> a = {1, -2, 3, 4, 5, -6};  // 2 x 3
  const std::array<float, 3> x = {2, 1, -1};
  std::array<float, 2> y = {0, 0};
  cblas_sgemv(CblasRowMajor, CblasNoTrans, 2, 3, 1.0f, a.data(), 3, x.data(), 1, 0.0f, y.data(), 1);
  EXPECT_THAT(y, testing::ElementsAre(-3, 19));
}

TEST(Dependencies, Json) {
  EXPECT_EQ(nlohmann::json::parse(R"({"shape": [7, 5]})")["shape"][1], 5);
}

TEST(Dependencies, XxHash) {
  EXPECT_EQ(XXH64("", 0, 0), 0xef46db3751d8e999ULL);  // from its specification
}

}  // namespace
}  // namespace shardmesh
