// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

Results Reshaped(const Args& args) { return {Reshape(args.Tensor(0), args.Shape(1, "shape"))}; }

// -1 keeps an extent.
Results Expanded(const Args& args) {
  const DTensor x = args.Tensor(0);
  Dims shape = args.Shape(1, "size");
  const int lead = shape.size() - x.num_dims();
  for (int d = lead; d < shape.size(); ++d) {
    if (shape[d] == -1) shape[d] = x.dim(d - lead);
  }
  return {Expand(x, shape)};
}

Results Swapped(const Args& args) {
  const DTensor x = args.Tensor(0);
  if (x.num_dims() == 0) return {};
  return {Transpose(x, args.Dim(1, "dim0"), args.Dim(2, "dim1"))};
}

Results Narrowed(const Args& args) {
  return {Slice(args.Tensor(0), args.Dim(1, "dim"), args.Int(2, "start"), args.Int(3, "length"))};
}

Results SplitBySizes(const Args& args) {
  if (!args.IsList(1)) return {};
  return Split(args.Tensor(0), args.Ints(1, "split_sizes"), args.Dim(2, "dim", 0));
}

}  // namespace

void AddShapeOps(OpTable& table) {
  table.Add("broadcast_to", Expanded);
  table.Add("cat", [](const Args& args) {
    return Results{Concat(args.Tensors(0), args.Dim(1, "dim", 0))};
  });
  table.Add("expand", Expanded);
  table.Add("narrow", Narrowed);
  table.Add("reshape", Reshaped);
  table.Add("split", SplitBySizes);
  table.Add("split_with_sizes", SplitBySizes);
  table.Add("transpose", Swapped);
  table.Add("view", Reshaped);
}

}  // namespace shardmesh::testing
