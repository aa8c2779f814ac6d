// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"
#include "shardmesh/tools/macro_test/doubled.h"

namespace shardmesh::macro_test {
namespace {

TEST(CcMacro, LibraryIsIncludedWithItsPrefixAndLinked) { EXPECT_EQ(Doubled(21), 42); }

TEST(CcMacro, LanguageIsCxx20) { EXPECT_GE(__cplusplus, 202002L); }

TEST(CcMacro, DefaultBuildIsOptimised) {
#ifndef __OPTIMIZE__
  FAIL() << "compiled with -O0: is -c opt missing from .bazelrc?";
#endif
}

}  // namespace
}  // namespace shardmesh::macro_test
