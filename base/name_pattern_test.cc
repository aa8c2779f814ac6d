// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/name_pattern.h"

#include <gtest/gtest.h>

namespace shardmesh {
namespace {

TEST(MatchesNamePattern, LetsAStarStandForPartOfAName) {
  const struct {
    const char *pattern, *name;
    bool matches;
  } rows[] = {
      {"", "", true},
      {"", "a", false},
      {"a", "", false},
      {"*", "", false},  // A star is one character or more,
      {"*", "a", true},
      {"*", "a.b", false},  // none of them a dot.
      {"*.bias", "up.bias", true},
      {"*.bias", "mlp.up.bias", false},
      {"*.*.bias", "mlp.up.bias", true},
      {"layers.*.norm_*.weight", "layers.11.norm_in.weight", true},
      {"layers.*.norm_*.weight", "layers.11.norm_.weight", false},
      {"layers.1*", "layers.1", false},
      {"layers.1*", "layers.12", true},
      {"*a*a", "xaaa", true},
      {"a+b", "aab", false},  // Nothing else is special.
  };
  for (const auto& [pattern, name, matches] : rows) {
    EXPECT_EQ(MatchesNamePattern(pattern, name), matches) << pattern << " | " << name;
  }
}

}  // namespace
}  // namespace shardmesh
