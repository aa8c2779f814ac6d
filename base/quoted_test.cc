// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/quoted.h"

#include <gtest/gtest.h>

namespace shardmesh {
namespace {

TEST(Quoted, KeepsPrintableAsciiAndEscapesTheRest) {
  EXPECT_EQ(Quoted(""), "''");
  EXPECT_EQ(Quoted("model.norm \"~\""), "'model.norm \"~\"'");
  EXPECT_EQ(Quoted("it's a\\b"), R"('it\'s a\\b')");
  EXPECT_EQ(Quoted("a\nb\r\t\x1b[2J\x7f"), R"('a\nb\r\t\x1b[2J\x7f')");
  EXPECT_EQ(Quoted(std::string_view("a\0b", 3)), R"('a\x00b')");
  EXPECT_EQ(Quoted("\xc3\xa9\xff"), R"('\xc3\xa9\xff')");
}

TEST(Quoted, LeavesOutTheMiddleOfALongText) {
  EXPECT_EQ(Quoted("abcdefg", 7), "'abcdefg'");
  EXPECT_EQ(Quoted("abcdefgh", 7), "'abc...fgh' (8 bytes)");
  EXPECT_EQ(Quoted("abcdefgh", 0), "'...' (8 bytes)");
  const std::string cut = Quoted(std::string(5000, 'x') + "end");
  EXPECT_EQ(cut.size(), 300 + std::string("''... (5003 bytes)").size());
  EXPECT_EQ(cut.substr(150), "x..." + std::string(147, 'x') + "end' (5003 bytes)");
}

TEST(Quoted, CountsEscapedCharactersAndCutsNoEscapeInTwo) {
  // 10 characters, 8 allowed: 4 from each end.
  EXPECT_EQ(Quoted("a\x01z\x02", 8), R"('a...\x02' (4 bytes))");
  EXPECT_LT(Quoted(std::string(1'000'000, '\x01')).size(), 340u);
}

}  // namespace
}  // namespace shardmesh
