// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

// f(x, a, b, beta, alpha).
OpFunction Adding(DTensor (*op)(const DTensor&, const DTensor&, const DTensor&, double, double)) {
  return [op](const Args& args) {
    return Results{op(args.Tensor(0), args.Tensor(1), args.Tensor(2), args.Number(-1, "beta", 1),
                      args.Number(-1, "alpha", 1))};
  };
}

// A weight without the dim of the results gives one without it.
Results LinearLayer(const Args& args) {
  if (args.Tensor(1).num_dims() == 1) return {MatMul(args.Tensor(0), args.Tensor(1))};
  return {Linear(args.Tensor(0), args.Tensor(1), args.Tensor(2, "bias"))};
}

// `dims` is a number, or a list for each operand.
Results TensorDots(const Args& args) {
  if (!args.IsList(2, "dims"))
    return {TensorDot(args.Tensor(0), args.Tensor(1), args.Dim(2, "dims"))};
  const std::vector<std::vector<int>> dims = args.DimLists(2, "dims");
  return {TensorDot(args.Tensor(0), args.Tensor(1), dims[0], dims[1])};
}

}  // namespace

void AddProductOps(OpTable& table) {
  table.Add("addbmm", Adding(AddBmm));
  table.Add("addmm", Adding(AddMm));
  table.Add("addmv", Adding(AddMv));
  table.Add("addr", Adding(AddOuter));
  table.Add("baddbmm", Adding(BatchAddBmm));
  table.Add("bmm", Binary(MatMul));
  table.Add("dot", Binary(Dot));
  table.Add("einsum", [](const Args& args) {
    return Results{Einsum(args.Text(1, "equation"), args.Tensors(0))};
  });
  table.Add("inner", Binary(Inner));
  table.Add("kron", Binary(Kron));
  table.Add("linalg.multi_dot", OfList(MultiDot));
  table.Add("matmul", Binary(MatMul));
  table.Add("mm", Binary(MatMul));
  table.Add("mv", Binary(Mv));
  table.Add("nn.functional.bilinear", [](const Args& args) {
    return Results{
        Bilinear(args.Tensor(0), args.Tensor(1), args.Tensor(2), args.Tensor(3, "bias"))};
  });
  table.Add("nn.functional.linear", LinearLayer);
  table.Add("outer", Binary(Outer));
  table.Add("tensordot", TensorDots);
  table.Add("vdot", Binary(Dot));
}

}  // namespace shardmesh::testing
