// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
void AddReductionOps(OpTable& table) {
  table.Add("amax", Reduction(Max));
  table.Add("amin", Reduction(Min));
  table.Add("mean", Reduction(Mean));
  table.Add("sum", Reduction(Sum));
}

}  // namespace shardmesh::testing
