// SPDX-License-Identifier: Apache-2.0
//
// Cases of dtensor/ops/linalg.h. Matrices are well-conditioned, results and gradients unique: of
// eigenvectors the squares, which have no sign.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/linalg.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;
using Apply = std::function<DTensor(Operands)>;

// Each diagonal element is larger than the others of its row together.
GlobalValue Dominant(const Dims& shape, Random& random) {
  GlobalValue value = RandomGlobal(shape, random, -1, 1);
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    const int64_t column = i % columns;
    if (i / columns % rows == column) value.values[i] += static_cast<double>(columns + 2);
  }
  return value;
}

void AddFactorisations(std::vector<OpCase>& cases, Random& random) {
  const auto add = [&](const char* name, const std::vector<Dims>& shapes, const Apply& apply) {
    for (const Dims& shape : shapes) cases.push_back({name, {Dominant(shape, random)}, apply});
  };
  const std::vector<Dims> squares = {{5, 3, 3}, {3, 3}, {2, 1, 5, 5}, {0, 3, 3}, {2, 0, 0}};
  add("cholesky", squares, [](Operands o) { return Cholesky(o[0]); });
  add("cholesky(upper)", {{5, 3, 3}, {1, 1}}, [](Operands o) { return Cholesky(o[0], true); });
  const std::vector<Dims> oblongs = {{5, 3, 2}, {3, 2, 5}, {2, 3, 3}, {3, 3}, {2, 0, 3}};
  add("qr, q", oblongs, [](Operands o) { return Qr(o[0]).first; });
  add("qr, r", oblongs, [](Operands o) { return Qr(o[0]).second; });
  add("qr, both", {{5, 3, 2}, {3, 2, 5}}, [](Operands o) {
    const auto [q, r] = Qr(o[0]);
    return Mul(Sum(q, {-2}), Sum(r, {-1}));
  });
  add("eigh, values", squares, [](Operands o) { return Eigh(o[0]).first; });
  add("eigh, vectors", squares, [](Operands o) {
    const DTensor vectors = Eigh(o[0], /*upper=*/true).second;
    return Mul(vectors, vectors);
  });
  add("eigh, both", {{5, 3, 3}}, [](Operands o) {
    const auto [values, vectors] = Eigh(o[0]);
    return Sum(Mul(Mul(vectors, vectors), Unsqueeze(values, -1)), {-1});
  });
}

void AddSystems(std::vector<OpCase>& cases, Random& random) {
  const auto add = [&](const std::string& name, const Dims& a, const Dims& b, const Apply& apply) {
    cases.push_back({name, {Dominant(a, random), RandomGlobal(b, random)}, apply});
  };
  const std::vector<std::pair<Dims, Dims>> shapes = {
      {{5, 3, 3}, {5, 3, 2}}, {{3, 3}, {3, 7}},       {{2, 1, 3, 3}, {5, 3, 2}},
      {{3, 3}, {5, 3, 2}},    {{0, 3, 3}, {0, 3, 2}}, {{2, 3, 3}, {2, 3, 0}}};
  for (const auto& [a, b] : shapes) {
    add("solve", a, b, [](Operands o) { return Solve(o[0], o[1]); });
    add("solve_triangular", a, b, [](Operands o) { return SolveTriangular(o[0], o[1], true); });
  }
  add("solve for a vector", {3, 3}, {3}, [](Operands o) { return Solve(o[0], o[1]); });
  add("solve for vectors", {5, 3, 3}, {5, 3}, [](Operands o) { return Solve(o[0], o[1]); });
  add("solve for one vector", {5, 3, 3}, {3}, [](Operands o) { return Solve(o[0], o[1]); });
  for (const bool upper : {false, true}) {
    for (const bool unitriangular : {false, true}) {
      const std::string name = absl::StrCat("solve_triangular(", upper ? "upper" : "lower",
                                            unitriangular ? " unit)" : ")");
      add(name + " from the left", {5, 3, 3}, {5, 3, 2}, [=](Operands o) {
        return SolveTriangular(o[0], o[1], upper, /*left=*/true, unitriangular);
      });
      add(name + " from the right", {5, 3, 3}, {5, 2, 3}, [=](Operands o) {
        return SolveTriangular(o[0], o[1], upper, /*left=*/false, unitriangular);
      });
    }
  }
}

// Of rank n - 1, n - 2 and n.
GlobalValue Singular() {
  return {{3, 3, 3}, DType::kF64, {1, 2,  3,  4,  5, 6, 5, 7, 9, 1, 2, 3, 2, 4,
                                   6, -1, -2, -3, 0, 1, 0, 2, 0, 0, 1, 1, 3}};
}

}  // namespace

std::vector<OpCase> LinalgCases() {
  std::vector<OpCase> cases;
  Random random(25);
  AddFactorisations(cases, random);
  AddSystems(cases, random);
  for (const Dims& shape : std::vector<Dims>{{5, 3, 3}, {3, 3}, {2, 1, 1}, {0, 2, 2}, {2, 0, 0}}) {
    const auto add = [&](const char* name, const Apply& apply) {
      cases.push_back({name, {Dominant(shape, random)}, apply});
    };
    add("det", [](Operands o) { return Det(o[0]); });
    add("slogdet, sign", [](Operands o) { return SlogDet(o[0]).first; });
    add("slogdet, logarithm", [](Operands o) { return SlogDet(o[0]).second; });
    add("inv", [](Operands o) { return Inv(o[0]); });
    add("matrix_power(-3)", [](Operands o) { return MatrixPower(o[0], -3); });
  }
  cases.push_back({"det of singular ones", {Singular()}, [](Operands o) { return Det(o[0]); }});
  return cases;
}

std::vector<OpCase> LinalgProductCases() {
  std::vector<OpCase> cases;
  Random random(26);
  for (const int64_t exponent : {0, 1, 2, 3, 5}) {
    for (const Dims& shape : std::vector<Dims>{{5, 3, 3}, {3, 3}}) {
      cases.push_back({absl::StrCat("matrix_power(", exponent, ")"),
                       {RandomGlobal(shape, random, -1, 1)},
                       [exponent](Operands o) { return MatrixPower(o[0], exponent); }});
    }
  }
  const auto add = [&](int dim, const Dims& a, const Dims& b) {
    cases.push_back({absl::StrCat("cross(", dim, ")"),
                     {RandomGlobal(a, random), RandomGlobal(b, random)},
                     [dim](Operands o) { return Cross(o[0], o[1], dim); }});
  };
  add(-1, {5, 3}, {5, 3});
  add(0, {3, 5}, {3, 1});
  add(1, {2, 3, 1}, {1, 3, 7});
  add(-1, {0, 3}, {1, 3});
  add(0, {3}, {3});
  return cases;
}

}  // namespace shardmesh::testing
