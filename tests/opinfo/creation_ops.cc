// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

Results Filled(const Args& args, double value) {
  return {Full(args.mesh(), args.Shape(0, "size"), args.Type(-1, "dtype", args.real()), value,
               args.placements())};
}

}  // namespace

void AddCreationOps(OpTable& table) {
  table.Add("full", [](const Args& args) { return Filled(args, args.Number(1, "fill_value")); });
  table.Add("ones", [](const Args& args) { return Filled(args, 1); });
  table.Add("zeros", [](const Args& args) { return Filled(args, 0); });
}

}  // namespace shardmesh::testing
