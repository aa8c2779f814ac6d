// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {

void AddLinalgOps(OpTable& /*table*/) {}

}  // namespace shardmesh::testing
