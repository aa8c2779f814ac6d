// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/linalg.h"

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

OpFunction Pair(std::pair<DTensor, DTensor> (*op)(const DTensor&)) {
  return [op](const Args& args) {
    const auto [first, second] = op(args.Tensor(0));
    return Results{first, second};
  };
}

Results Eigenvalues(const Args& args) {
  const auto [values, vectors] = Eigh(args.Tensor(0), args.Text(1, "UPLO", "L") == "U");
  return {values, vectors};
}

// Eigenvectors of the signs that are expected.
void MakeSignsUnique(const Args&, Results& results, Results& expected) {
  const DTensor products = Sum(Mul(results[1].Detach(), expected[1]), {-2}, /*keepdim=*/true);
  results[1] = Mul(results[1], Sign(products));
}

Results QrOfMode(const Args& args) {
  const auto [q, r] = Qr(args.Tensor(0), args.Text(1, "mode", "reduced") == "complete");
  return {q, r};
}

Results Triangular(const Args& args) {
  return {SolveTriangular(args.Tensor(0), args.Tensor(1), args.Flag(-1, "upper"),
                          args.Flag(-1, "left", true), args.Flag(-1, "unitriangular", false))};
}

}  // namespace

void AddLinalgOps(OpTable& table) {
  table.Add("cross", [](const Args& args) {
    return Results{Cross(args.Tensor(0), args.Tensor(1), args.Dim(2, "dim", -1))};
  });
  table.Add("linalg.cholesky", [](const Args& args) {
    return Results{Cholesky(args.Tensor(0), args.Flag(-1, "upper", false))};
  });
  table.Add("linalg.det", Unary(Det));
  table.Add("linalg.eigh", Eigenvalues, MakeSignsUnique);
  table.Add("linalg.inv", Unary(Inv));
  table.Add("linalg.matrix_power", [](const Args& args) {
    return Results{MatrixPower(args.Tensor(0), args.Int(1, "n"))};
  });
  table.Add("linalg.qr", QrOfMode);
  table.Add("linalg.slogdet", Pair(SlogDet));
  table.Add("linalg.solve", Binary(Solve));
  table.Add("linalg.solve_triangular", Triangular);
}

}  // namespace shardmesh::testing
