// SPDX-License-Identifier: Apache-2.0
// A public header, for the test of tools/cc.bzl.
#ifndef SHARDMESH_TOOLS_MACRO_TEST_DOUBLED_H_
#define SHARDMESH_TOOLS_MACRO_TEST_DOUBLED_H_

namespace shardmesh::macro_test {

/// Returns 2 x.
int Doubled(int x);

}  // namespace shardmesh::macro_test

#endif  // SHARDMESH_TOOLS_MACRO_TEST_DOUBLED_H_
