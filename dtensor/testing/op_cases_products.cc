// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;

std::vector<DTensor> All(Operands operands) { return {operands.begin(), operands.end()}; }

}  // namespace

std::vector<OpCase> ContractionCases() {
  Random random(23);
  std::vector<OpCase> cases;
  const auto add = [&](const std::string& name, const std::vector<Dims>& shapes,
                       std::function<DTensor(Operands)> apply) {
    cases.push_back({name, {}, std::move(apply)});
    for (const Dims& shape : shapes) cases.back().operands.push_back(RandomGlobal(shape, random));
  };
  const std::vector<std::pair<std::string, std::vector<Dims>>> equations = {
      {"ij,jk->ik", {{5, 3}, {3, 2}}},
      {"ij,kj", {{5, 3}, {2, 3}}},
      {"bqhd,bkhd->bhqk", {{2, 3, 2, 5}, {2, 3, 2, 5}}},
      {"ab,cd->dacb", {{2, 3}, {1, 5}}},
      {"ij,ij->", {{5, 3}, {5, 3}}},
      {"ij->i", {{5, 3}}},
      {"ij->ji", {{5, 3}}},
      {"ii->i", {{3, 3}}},
      {"iji,j->j", {{3, 2, 3}, {2}}},
      {"...ij,...jk->...ik", {{2, 1, 3}, {5, 1, 3, 2}}},
      {"ij,j,jk->k", {{5, 3}, {3}, {3, 2}}},
      {"ij,jk->ik", {{0, 3}, {3, 2}}},
      {"ij,jk->ik", {{3, 0}, {0, 2}}},
  };
  for (const auto& [equation, shapes] : equations) {
    add("einsum " + equation, shapes,
        [equation = equation](Operands o) { return Einsum(equation, All(o)); });
  }
  add("tensordot", {{2, 3, 5}, {5, 2, 3}}, [](Operands o) {
    return TensorDot(o[0], o[1], {0, -1}, {1, 0});
  });
  add("tensordot(1)", {{2, 3}, {3, 5}}, [](Operands o) { return TensorDot(o[0], o[1], 1); });
  add("dot", {{7}, {7}}, [](Operands o) { return Dot(o[0], o[1]); });
  add("matmul of a row", {{3}, {2, 3, 5}}, [](Operands o) { return MatMul(o[0], o[1]); });
  add("matmul of a column", {{2, 5, 3}, {3}}, [](Operands o) { return MatMul(o[0], o[1]); });
  add("inner", {{2, 5}, {3, 5}}, [](Operands o) { return Inner(o[0], o[1]); });
  add("outer", {{5}, {3}}, [](Operands o) { return Outer(o[0], o[1]); });
  add("kron", {{3, 2}, {2}}, [](Operands o) { return Kron(o[0], o[1]); });
  add("multi_dot", {{5}, {5, 3}, {3, 2}, {2, 3}}, [](Operands o) { return MultiDot(All(o)); });
  add("bilinear", {{5, 3}, {5, 2}, {3, 3, 2}, {3}},
      [](Operands o) { return Bilinear(o[0], o[1], o[2], o[3]); });
  add("addmm", {{3}, {5, 2}, {2, 3}}, [](Operands o) { return AddMm(o[0], o[1], o[2], 0.5, -2); });
  add("addmv", {{}, {5, 3}, {3}}, [](Operands o) { return AddMv(o[0], o[1], o[2]); });
  add("addr", {{5, 1}, {5}, {3}}, [](Operands o) { return AddOuter(o[0], o[1], o[2], 2, 3); });
  add("addbmm", {{3, 2}, {2, 3, 5}, {2, 5, 2}},
      [](Operands o) { return AddBmm(o[0], o[1], o[2], 1, 0.5); });
  add("baddbmm", {{2, 1, 2}, {2, 3, 5}, {2, 5, 2}},
      [](Operands o) { return BatchAddBmm(o[0], o[1], o[2]); });
  return cases;
}

}  // namespace shardmesh::testing
