// SPDX-License-Identifier: Apache-2.0
// A header in `srcs`, for the test of tools/cc.bzl.
#ifndef SHARDMESH_TOOLS_MACRO_TEST_FACTOR_H_
#define SHARDMESH_TOOLS_MACRO_TEST_FACTOR_H_

namespace shardmesh::macro_test {

inline constexpr int kFactor = 2;

}  // namespace shardmesh::macro_test

#endif  // SHARDMESH_TOOLS_MACRO_TEST_FACTOR_H_
