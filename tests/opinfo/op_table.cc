// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {

const OpTable& TheOpTable() {
  static const auto* table = [] {
    auto* made = new OpTable;
    AddPointwiseOps(*made);
    AddProductOps(*made);
    AddReductionOps(*made);
    AddShapeOps(*made);
    AddIndexingOps(*made);
    AddNormOps(*made);
    AddLossOps(*made);
    AddConvolutionOps(*made);
    AddLinalgOps(*made);
    AddCreationOps(*made);
    return made;
  }();
  return *table;
}

}  // namespace shardmesh::testing
