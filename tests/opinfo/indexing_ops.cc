// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

// Samples pass the table first.
Results Lookup(const Args& args) {
  if (args.Has(2, "padding_idx")) return {};
  return {Embedding(args.Tensor(1), args.Tensor(0))};
}

}  // namespace

void AddIndexingOps(OpTable& table) { table.Add("nn.functional.embedding", Lookup); }

}  // namespace shardmesh::testing
