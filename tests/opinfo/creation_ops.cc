// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

DType TypeOf(const Args& args) { return args.Type(-1, "dtype", args.real()); }

Results Filled(const Args& args, double value) {
  return {Full(args.mesh(), args.Shape(0, "size"), TypeOf(args), value, args.placements())};
}

// A number, or a tensor of one.
double NumberOf(const Args& args, int position) {
  return args.IsTensor(position) ? Item(args.Tensor(position)) : args.Number(position, "");
}

Results Range(const Args& args) {
  return {Arange(args.mesh(), args.Number(0, "start"), args.Number(1, "end"),
                 args.Number(2, "step", 1), TypeOf(args), args.placements())};
}

Results EvenlySpaced(const Args& args) {
  return {Linspace(args.mesh(), NumberOf(args, 0), NumberOf(args, 1), args.Int(2, "steps"),
                   TypeOf(args), args.placements())};
}

Results Identity(const Args& args) {
  const int64_t rows = args.Int(0, "n");
  return {Eye(args.mesh(), rows, args.Int(1, "m", rows), TypeOf(args), args.placements())};
}

OpFunction Indices(DTensor (*op)(const DeviceMesh&, int64_t, int64_t, int64_t,
                                 const std::vector<Placement>&)) {
  return [op](const Args& args) {
    return Results{op(args.mesh(), args.Int(0, "row"), args.Int(1, "col"), args.Int(2, "offset", 0),
                      args.placements())};
  };
}

}  // namespace

void AddCreationOps(OpTable& table) {
  table.Add("arange", Range);
  table.Add("eye", Identity);
  table.Add("full", [](const Args& args) { return Filled(args, args.Number(1, "fill_value")); });
  table.Add("linspace", EvenlySpaced);
  table.Add("ones", [](const Args& args) { return Filled(args, 1); });
  table.Add("tril_indices", Indices(TrilIndices));
  table.Add("triu_indices", Indices(TriuIndices));
  table.Add("zeros", [](const Args& args) { return Filled(args, 0); });
}

}  // namespace shardmesh::testing
