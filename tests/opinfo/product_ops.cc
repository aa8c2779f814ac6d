// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

Results MatrixProduct(const Args& args) {
  const DTensor a = args.Tensor(0), b = args.Tensor(1);
  if (a.num_dims() < 2 || b.num_dims() < 2) return {};
  return {MatMul(a, b)};
}

// A weight without the dim of the results gives one without it.
Results LinearLayer(const Args& args) {
  if (args.Tensor(1).num_dims() < 2) return {};
  return {Linear(args.Tensor(0), args.Tensor(1), args.Tensor(2, "bias"))};
}

}  // namespace

void AddProductOps(OpTable& table) {
  table.Add("bmm", Binary(MatMul));
  table.Add("matmul", MatrixProduct);
  table.Add("mm", Binary(MatMul));
  table.Add("nn.functional.linear", LinearLayer);
}

}  // namespace shardmesh::testing
