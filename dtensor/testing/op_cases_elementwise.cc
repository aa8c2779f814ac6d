// SPDX-License-Identifier: Apache-2.0
//
// A case of every row of tensor/elementwise_ops.inc, and of every dtype family that it takes.
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;
using elementwise::Flags;

struct NamedRow {
  ElementwiseOp op;
  std::function<DTensor(Operands)> apply;
};

std::vector<NamedRow> Rows() {
  return {
#define SHARDMESH_UNARY(Function, ...) \
  {ElementwiseOp::k##Function, [](Operands o) { return Function(o[0]); }},
#define SHARDMESH_BINARY(Function, ...) \
  {ElementwiseOp::k##Function, [](Operands o) { return Function(o[0], o[1]); }},
#define SHARDMESH_TERNARY(Function, ...) \
  {ElementwiseOp::k##Function, [](Operands o) { return Function(o[0], o[1], o[2]); }},
#include "shardmesh/tensor/elementwise_ops.inc"
      {ElementwiseOp::kNumberOver, [](Operands o) { return -2.5 / o[0]; }},
      {ElementwiseOp::kRoundDecimals, [](Operands o) { return Round(o[0], 1); }},
      {ElementwiseOp::kNanToNum, [](Operands o) { return NanToNum(Log(o[0]), 3.5, 7, -9); }},
      {ElementwiseOp::kClampScalar, [](Operands o) { return Clamp(o[0], -0.5, 1); }},
      {ElementwiseOp::kPowScalar, [](Operands o) { return Pow(o[0], 3); }},
      {ElementwiseOp::kLogit, [](Operands o) { return Logit(o[0], 0.25); }},
      {ElementwiseOp::kLeakyRelu, [](Operands o) { return LeakyRelu(o[0], 0.125); }},
      {ElementwiseOp::kElu, [](Operands o) { return Celu(o[0], 0.75); }},
      {ElementwiseOp::kHardTanh, [](Operands o) { return HardTanh(o[0], -0.5, 1); }},
      {ElementwiseOp::kHardShrink, [](Operands o) { return HardShrink(o[0], 0.75); }},
      {ElementwiseOp::kSoftShrink, [](Operands o) { return SoftShrink(o[0], 0.75); }},
      {ElementwiseOp::kSoftplus, [](Operands o) { return Softplus(o[0], 2, 1.5); }},
      {ElementwiseOp::kThreshold, [](Operands o) { return Threshold(o[0], 0.5, -3); }},
      {ElementwiseOp::kLerpScalar, [](Operands o) { return Lerp(o[0], o[1], 0.3); }},
      {ElementwiseOp::kIsClose, [](Operands o) { return IsClose(o[0], o[1], 0.1, 0.5); }},
      {ElementwiseOp::kAddCMul, [](Operands o) { return AddCMul(o[0], o[1], o[2], -0.7); }},
      {ElementwiseOp::kAddCDiv, [](Operands o) { return AddCDiv(o[0], o[1], o[2], -0.7); }},
      {ElementwiseOp::kSmoothL1Error, [](Operands o) { return SmoothL1Error(o[0], o[1], 0.5); }},
      {ElementwiseOp::kHuberError, [](Operands o) { return HuberError(o[0], o[1], 0.5); }},
      {ElementwiseOp::kHingeEmbeddingError,
       [](Operands o) { return HingeEmbeddingError(o[0], Cast(o[1], o[0].dtype()), 1.5); }},
      {ElementwiseOp::kKlDivError, [](Operands o) { return KlDivError(o[0], o[1]); }},
      {ElementwiseOp::kPoissonNllError,
       [](Operands o) { return PoissonNllError(o[0], o[1], true, true); }},
      {ElementwiseOp::kMarginRankingError,
       [](Operands o) { return MarginRankingError(o[0], o[1], Cast(o[2], o[0].dtype()), 0.5); }},
      {ElementwiseOp::kGaussianNllError,
       [](Operands o) { return GaussianNllError(o[0], o[1], o[2], true); }},
  };
}

GlobalValue Draw(const ElementwiseRow& row, const Dims& shape, Random& random) {
  const bool is_positive = row.Has(elementwise::kPositive);
  if (row.Has(elementwise::kAboveOne)) return RandomGlobal(shape, random, 1.25, 4);
  if (row.Has(elementwise::kUnit))
    return RandomGlobal(shape, random,
                        is_positive || row.has_params || row.arity > 1 ? 0.125 : -0.875, 0.875);
  if (is_positive) return RandomGlobal(shape, random, 0.25, 4);
  return RandomAwayFromZero(shape, random, 0.25, 2.5);
}

// Multiples of 1/64 below 4, which bf16 holds: a step is where it is in every dtype.
GlobalValue ValueFor(const ElementwiseRow& row, const Dims& shape, Random& random) {
  GlobalValue value = Draw(row, shape, random);
  for (double& x : value.values) x = std::round(x * 64) / 64;
  return value;
}

// Targets 1 and -1, to which no gradient goes.
GlobalValue SignsFor(const Dims& shape, Random& random) {
  GlobalValue value = RandomIntegers(shape, random, 0, 2);
  for (double& x : value.values) x = 2 * x - 1;
  return value;
}

}  // namespace

// Two shapes that broadcast, and one for all.
std::vector<OpCase> ElementwiseCases(int arity) {
  std::vector<OpCase> cases;
  Random random(11);
  const std::vector<std::vector<Dims>> shapes = {{{5, 3}, {5, 3}, {5, 3}}, {{2, 3}, {3}, {2, 1}}};
  for (const NamedRow& named : Rows()) {
    const ElementwiseRow& row = RowOf(named.op);
    if (row.arity != arity) continue;
    const auto add = [&](const char* what, const std::vector<Dims>& of,
                         const std::function<GlobalValue(const Dims&)>& value) {
      OpCase op_case = {absl::StrCat(row.name, what), {}, named.apply};
      for (int i = 0; i < arity; ++i) {
        const bool is_sign = row.differentiable != 0 && ((row.differentiable >> i) & 1u) == 0;
        op_case.operands.push_back(is_sign ? SignsFor(of[i], random) : value(of[i]));
      }
      cases.push_back(std::move(op_case));
    };
    if (!row.Has(elementwise::kIntegers)) {
      for (const auto& of : shapes) {
        if (arity == 1 && &of != &shapes[0]) continue;
        add("", of, [&](const Dims& shape) { return ValueFor(row, shape, random); });
      }
    }
    if (row.Has(elementwise::kIntegers | elementwise::kNumbers)) {
      add(" integers", shapes[0],
          [&](const Dims& shape) { return RandomIntegers(shape, random, 1, 9); });
    }
    if (row.Has(elementwise::kBools)) {
      add(" bools", shapes[0], [&](const Dims& shape) { return RandomBools(shape, random); });
    }
  }
  // A linear one, one that saves its operand, one that saves its result.
  if (arity != 1) return cases;
  for (const Dims& shape : std::vector<Dims>{{}, {1}, {1, 5}, {0, 3}, {2, 3, 5}}) {
    for (const auto& [name, op] :
         {std::pair{"neg", &Neg}, std::pair{"silu", &Silu}, std::pair{"exp", &Exp}}) {
      cases.push_back(
          {name, {RandomGlobal(shape, random)}, [op = op](Operands o) { return op(o[0]); }});
    }
  }
  // Ties at the kinks.
  for (const auto& [name, op] :
       {std::pair{"abs", &Abs}, std::pair{"relu", &Relu}, std::pair{"sign", &Sign}}) {
    GlobalValue tied = RandomIntegers({5, 3}, random, -1, 2);
    tied.dtype = DType::kF64;
    cases.push_back({name, {tied}, [op = op](Operands o) { return op(o[0]); }});
  }
  return cases;
}

}  // namespace shardmesh::testing
