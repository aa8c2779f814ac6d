// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/testing/op_cases.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;

// Each family starts it anew, so that its values do not depend on what ran before.
Random& Source() {
  static Random* random = new Random(0);
  return *random;
}

std::vector<OpCase> StartFamily(uint64_t seed) {
  Source() = Random(seed);
  return {};
}

GlobalValue Mixed(const Dims& shape) { return RandomGlobal(shape, Source()); }
GlobalValue NonZero(const Dims& shape) { return RandomAwayFromZero(shape, Source(), 0.5, 3); }
GlobalValue Integers(const Dims& shape, int64_t low, int64_t high, DType dtype = DType::kI64) {
  return RandomIntegers(shape, Source(), low, high, dtype);
}
// Few different values, so that there are ties.
GlobalValue Tied(const Dims& shape) { return Integers(shape, -2, 3, DType::kF64); }
GlobalValue As(GlobalValue value, DType dtype) {
  value.dtype = dtype;
  return value;
}

std::string Text(const std::vector<int>& list) {
  std::string text;
  for (int x : list) absl::StrAppend(&text, " ", x);
  return text;
}

using BinaryFunction = DTensor (*)(const DTensor&, const DTensor&);
using ScalarFunction = DTensor (*)(const DTensor&, double);

struct NamedBinary {
  const char* name;
  BinaryFunction op;
  ScalarFunction scalar_op;
  GlobalValue (*left)(const Dims&);
  GlobalValue (*right)(const Dims&);
};

constexpr NamedBinary kBinaries[] = {
    {"add", Add, Add, Mixed, Mixed},           {"sub", Sub, Sub, Mixed, Mixed},
    {"mul", Mul, Mul, Mixed, Mixed},           {"div", Div, Div, Mixed, NonZero},
    {"maximum", Maximum, Maximum, Tied, Tied}, {"minimum", Minimum, Minimum, Tied, Tied},
};

constexpr std::pair<const char*, CompareOp> kComparisons[] = {
    {"equal", CompareOp::kEqual},     {"not_equal", CompareOp::kNotEqual},
    {"less", CompareOp::kLess},       {"less_equal", CompareOp::kLessEqual},
    {"greater", CompareOp::kGreater}, {"greater_equal", CompareOp::kGreaterEqual},
};

void AddCasts(std::vector<OpCase>& cases) {
  const auto cast_to = [](DType dtype) {
    return [dtype](Operands x) { return Cast(x[0], dtype); };
  };
  for (DType dtype : {DType::kF32, DType::kI64, DType::kI32, DType::kBool})
    cases.push_back(
        {absl::StrCat("cast to ", std::string(Name(dtype))), {Tied({5, 3})}, cast_to(dtype)});
  // A fraction is cut off after the sum, not before.
  cases.push_back({"cast to i64", {Mixed({7})}, cast_to(DType::kI64)});
  cases.push_back({"cast to f64", {As(Mixed({5, 3}), DType::kF32)}, cast_to(DType::kF64)});
  cases.push_back({"cast to f64", {Integers({5, 3}, -9, 9)}, cast_to(DType::kF64)});
  cases.push_back({"cast to f64", {RandomBools({5, 3}, Source())}, cast_to(DType::kF64)});
  cases.push_back({"cast to bf16 and back", {Mixed({3, 5})}, [](Operands x) {
                     return Cast(Cast(x[0], DType::kBF16), DType::kF64);
                   }});
}

using Reduction = DTensor (*)(const DTensor&, const std::vector<int>&, bool);

OpCase ReductionCase(const char* name, Reduction op, const GlobalValue& x, std::vector<int> dims,
                     bool keepdim) {
  return {absl::StrCat(name, "(", Text(dims), keepdim ? " keepdim)" : ")"),
          {x},
          [op, dims, keepdim](Operands o) { return op(o[0], dims, keepdim); }};
}

OpCase CrossEntropyCase(const Dims& logits, std::vector<double> targets, LossReduction reduction,
                        DType dtype = DType::kI64) {
  const Dims rows(std::span<const int64_t>(logits.begin(), logits.size() - 1));
  GlobalValue target{rows, dtype, std::move(targets)};
  return {reduction == LossReduction::kMean ? "cross_entropy(mean)" : "cross_entropy(sum)",
          {Mixed(logits), std::move(target)},
          [reduction](Operands o) { return CrossEntropy(o[0], o[1], -100, reduction); }};
}

OpCase AttentionCase(const Dims& q, const Dims& k, bool causal) {
  return {causal ? "attention(causal)" : "attention",
          {Mixed(q), Mixed(k), Mixed(k)},
          [causal](Operands o) { return Attention(o[0], o[1], o[2], causal); }};
}

OpCase RotaryCase(const Dims& shape) {
  const Dims table = {shape[2], shape[3] / 2};
  std::vector<double> cosines, sines;
  for (int64_t i = 0; i < table.NumElements(); ++i) {
    cosines.push_back(std::cos(0.7 * static_cast<double>(i)));
    sines.push_back(std::sin(0.7 * static_cast<double>(i)));
  }
  return {"rotary", {Mixed(shape)}, [table, cosines, sines](Operands o) {
            ExecutionContext& context = o[0].mesh().context();
            const auto make = [&](const std::vector<double>& values) {
              const auto exact =
                  Tensor::FromValues<double>(context, table, std::span<const double>(values));
              return o[0].dtype() == DType::kF64 ? exact : ops::Cast(context, exact, DType::kF32);
            };
            return Rotary(o[0], make(cosines), make(sines));
          }};
}

OpCase ReshapeCase(const Dims& from, const Dims& to) {
  return {absl::StrCat("reshape to ", to.ToString()), {Mixed(from)}, [to](Operands o) {
            return Reshape(o[0], to);
          }};
}

OpCase ExpandCase(const Dims& from, const Dims& to) {
  return {absl::StrCat("expand to ", to.ToString()), {Mixed(from)}, [to](Operands o) {
            return Expand(o[0], to);
          }};
}

OpCase SliceCase(const Dims& shape, int dim, int64_t start, int64_t length) {
  return {absl::StrCat("slice(", dim, ", ", start, ", ", length, ")"),
          {Mixed(shape)},
          [=](Operands o) { return Slice(o[0], dim, start, length); }};
}

OpCase ConcatCase(const std::vector<Dims>& shapes, int dim) {
  OpCase result{absl::StrCat("concat(", dim, ")"), {}, [dim](Operands o) {
                  return Concat(std::vector<DTensor>(o.begin(), o.end()), dim);
                }};
  for (const Dims& shape : shapes) result.operands.push_back(Mixed(shape));
  return result;
}

}  // namespace

std::vector<OpCase> BinaryCases() {
  std::vector<OpCase> cases = StartFamily(2);
  const std::vector<std::pair<Dims, Dims>> shapes = {
      {{5, 3}, {5, 3}}, {{5, 3}, {3}},    {{2, 1, 5}, {3, 1}}, {{5, 3}, {}}, {{3}, {2, 3}},
      {{0, 3}, {3}},    {{1, 3}, {5, 1}}, {{1}, {1}},          {{}, {}},     {{5, 1}, {5, 1}},
  };
  for (const NamedBinary& binary : kBinaries) {
    const std::string_view name = binary.name;
    const size_t count = name == "add" || name == "mul" ? shapes.size() : 3;
    for (size_t i = 0; i < count; ++i) {
      cases.push_back({binary.name,
                       {binary.left(shapes[i].first), binary.right(shapes[i].second)},
                       [op = binary.op](Operands o) { return op(o[0], o[1]); }});
    }
    cases.push_back({absl::StrCat(binary.name, " scalar"),
                     {binary.left({5, 3})},
                     [op = binary.scalar_op](Operands o) { return op(o[0], -2.0); }});
    if (name == "div") continue;  // Refuses integers.
    cases.push_back({absl::StrCat(binary.name, " integers"),
                     {Integers({5, 3}, -9, 10), Integers({3}, 1, 5)},
                     [op = binary.op](Operands o) { return op(o[0], o[1]); }});
    cases.push_back({absl::StrCat(binary.name, " integer scalar"),
                     {Integers({7}, -9, 10)},
                     [op = binary.scalar_op](Operands o) { return op(o[0], 2.0); }});
  }
  // One value on both sides: two gradients that add up.
  cases.push_back({"x * x", {Mixed({5, 3})}, [](Operands o) { return Mul(o[0], o[0]); }});
  cases.push_back(
      {"x - x * x", {Mixed({5, 3})}, [](Operands o) { return Sub(o[0], Mul(o[0], o[0])); }});
  return cases;
}

std::vector<OpCase> SelectionCases() {
  std::vector<OpCase> cases = StartFamily(3);
  for (const auto& [name, op] : kComparisons) {
    cases.push_back({name, {Tied({5, 3}), Tied({3})}, [op = op](Operands o) {
                       return Compare(op, o[0], o[1]);
                     }});
    cases.push_back({absl::StrCat(name, " scalar"), {Tied({3, 5})}, [op = op](Operands o) {
                       return Compare(op, o[0], 1.0);
                     }});
  }
  cases.push_back({"equal integers", {Integers({5}, 0, 3), Integers({5}, 0, 3)}, [](Operands o) {
                     return Compare(CompareOp::kEqual, o[0], o[1]);
                   }});
  const auto where = [](Operands o) { return Where(o[0], o[1], o[2]); };
  cases.push_back({"where", {RandomBools({5, 3}, Source()), Mixed({5, 3}), Mixed({5, 3})}, where});
  cases.push_back({"where", {RandomBools({5, 1}, Source()), Mixed({3}), Mixed({})}, where});
  cases.push_back({"where", {RandomBools({3}, Source()), Mixed({2, 1, 3}), Mixed({5, 1})}, where});
  AddCasts(cases);
  for (const Dims& shape : std::vector<Dims>{{5, 3}, {1, 3}, {0, 2}, {2, 3, 5}}) {
    cases.push_back({"dropout", {Mixed(shape)}, [](Operands o) {
                       return Dropout(o[0], 0.4, {.seed = 5, .stream = 3});
                     }});
  }
  return cases;
}

std::vector<OpCase> ReductionCases() {
  std::vector<OpCase> cases = StartFamily(4);
  struct Named {
    const char* name;
    Reduction op;
    GlobalValue (*values)(const Dims&);
  };
  const std::vector<std::vector<int>> dims = {{}, {0}, {1}, {-1}, {0, 2}, {2, 1}};
  for (const Named& named : {Named{"sum", Sum, Mixed}, Named{"mean", Mean, Mixed},
                             Named{"max", Max, Tied}, Named{"min", Min, Tied}}) {
    for (size_t i = 0; i < dims.size(); ++i)
      cases.push_back(
          ReductionCase(named.name, named.op, named.values({3, 5, 2}), dims[i], i % 2 == 1));
    cases.push_back(ReductionCase(named.name, named.op, named.values({2, 3, 5}), {1, 2}, true));
    cases.push_back(ReductionCase(named.name, named.op, named.values({5}), {0}, false));
    cases.push_back(ReductionCase(named.name, named.op, named.values({1}), {}, false));
    cases.push_back(ReductionCase(named.name, named.op, named.values({}), {}, false));
    cases.push_back(ReductionCase(named.name, named.op, named.values({1, 3}), {0}, true));
    cases.push_back(ReductionCase(named.name, named.op, named.values({0, 3}), {1}, false));
  }
  cases.push_back(ReductionCase("sum", Sum, Mixed({0, 3}), {0}, false));
  cases.push_back(ReductionCase("mean", Mean, Mixed({0, 3}), {0}, false));
  cases.push_back(ReductionCase("sum", Sum, Integers({5, 3}, -9, 9), {0}, false));
  cases.push_back(ReductionCase("max", Max, Integers({5, 3}, -9, 9), {0}, false));
  cases.push_back(ReductionCase("min", Min, Integers({5, 3}, -9, 9, DType::kI32), {1}, false));
  return cases;
}

std::vector<OpCase> ProductCases() {
  std::vector<OpCase> cases = StartFamily(5);
  for (const auto& [a, b] : std::vector<std::pair<Dims, Dims>>{{{5, 3}, {3, 2}},
                                                               {{2, 3, 5}, {2, 5, 3}},
                                                               {{2, 3, 5}, {5, 2}},
                                                               {{3, 5}, {2, 5, 3}},
                                                               {{2, 1, 3, 2}, {3, 2, 5}},
                                                               {{3, 0}, {0, 2}},
                                                               {{0, 3}, {3, 2}},
                                                               {{1, 1}, {1, 1}},
                                                               {{7, 1}, {1, 5}}}) {
    cases.push_back(
        {"matmul", {Mixed(a), Mixed(b)}, [](Operands o) { return MatMul(o[0], o[1]); }});
  }
  for (const auto& [x, w] : std::vector<std::pair<Dims, Dims>>{{{5, 3}, {7, 3}},
                                                               {{2, 3, 5}, {3, 5}},
                                                               {{5}, {3, 5}},
                                                               {{0, 3}, {2, 3}},
                                                               {{1, 4}, {4, 4}}}) {
    cases.push_back(
        {"linear", {Mixed(x), Mixed(w)}, [](Operands o) { return Linear(o[0], o[1]); }});
    cases.push_back({"linear with bias", {Mixed(x), Mixed(w), Mixed({w[0]})}, [](Operands o) {
                       return Linear(o[0], o[1], o[2]);
                     }});
  }
  return cases;
}

std::vector<OpCase> RowCases() {
  std::vector<OpCase> cases = StartFamily(6);
  for (const auto& [shape, dim] : std::vector<std::pair<Dims, int>>{
           {{5, 3}, 0}, {{5, 3}, -1}, {{2, 3, 5}, 1}, {{1, 3}, 0}, {{0, 3}, 1}, {{7}, 0}}) {
    cases.push_back({absl::StrCat("softmax(", dim, ")"), {Mixed(shape)}, [dim = dim](Operands o) {
                       return Softmax(o[0], dim);
                     }});
    cases.push_back({absl::StrCat("log_softmax(", dim, ")"),
                     {Mixed(shape)},
                     [dim = dim](Operands o) { return LogSoftmax(o[0], dim); }});
  }
  for (const Dims& shape : std::vector<Dims>{{5, 3}, {2, 3, 5}, {1, 4}, {0, 3}, {7}}) {
    const Dims row = {shape.back()};
    cases.push_back({"rms_norm", {Mixed(shape), Mixed(row)}, [](Operands o) {
                       return RmsNorm(o[0], o[1], 1e-5);
                     }});
    cases.push_back({"layer_norm", {Mixed(shape), Mixed(row), Mixed(row)}, [](Operands o) {
                       return LayerNorm(o[0], o[1], o[2], 1e-5);
                     }});
    cases.push_back({"layer_norm without bias", {Mixed(shape), Mixed(row)}, [](Operands o) {
                       return LayerNorm(o[0], o[1], {}, 1e-5);
                     }});
  }
  return cases;
}

std::vector<OpCase> LookupCases() {
  std::vector<OpCase> cases = StartFamily(7);
  for (const auto& [ids, table] : std::vector<std::pair<Dims, Dims>>{{{5}, {7, 3}},
                                                                     {{2, 3}, {5, 2}},
                                                                     {{}, {3, 2}},
                                                                     {{0}, {3, 2}},
                                                                     {{3}, {1, 5}},
                                                                     {{11}, {2, 3}}}) {
    for (DType dtype : {DType::kI64, DType::kI32}) {
      cases.push_back({"embedding",
                       {Integers(ids, 0, table[0], dtype), Mixed(table)},
                       [](Operands o) { return Embedding(o[0], o[1]); }});
    }
  }
  return cases;
}

std::vector<OpCase> LossCases() {
  std::vector<OpCase> cases = StartFamily(8);
  for (LossReduction reduction : {LossReduction::kMean, LossReduction::kSum}) {
    cases.push_back(CrossEntropyCase({5, 7}, {3, -100, 0, 6, 3}, reduction));
    cases.push_back(CrossEntropyCase({5, 7}, {-100, -100, 5, -100, -100}, reduction, DType::kI32));
    cases.push_back(CrossEntropyCase({2, 3, 5}, {0, 1, 2, 3, 4, -100}, reduction));
    cases.push_back(CrossEntropyCase({3, 2}, {-100, -100, -100}, reduction));
    cases.push_back(CrossEntropyCase({7}, {4}, reduction));
    cases.push_back(CrossEntropyCase({1, 3}, {2}, reduction));
    cases.push_back(CrossEntropyCase({0, 3}, {}, reduction));
    cases.push_back(CrossEntropyCase({3, 1}, {0, -100, 0}, reduction));
    for (const Dims& shape : std::vector<Dims>{{5, 7}, {1}, {2, 3, 5}}) {
      cases.push_back({reduction == LossReduction::kMean ? "mse_loss(mean)" : "mse_loss(sum)",
                       {Mixed(shape), Mixed(shape)},
                       [reduction](Operands o) { return MseLoss(o[0], o[1], reduction); }});
    }
  }
  return cases;
}

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> cases = StartFamily(10);
  cases = {
      RotaryCase({2, 3, 5, 4}),
      RotaryCase({1, 2, 3, 2}),
      AttentionCase({2, 6, 5, 3}, {2, 2, 5, 3}, /*causal=*/true),
      AttentionCase({3, 2, 5, 2}, {3, 2, 7, 2}, /*causal=*/false),
      AttentionCase({1, 3, 2, 2}, {1, 1, 3, 2}, /*causal=*/true),
      AttentionCase({5, 4, 3, 2}, {5, 4, 3, 2}, /*causal=*/true),
      AttentionCase({2, 6, 1, 2}, {2, 6, 3, 2}, /*causal=*/false),
  };
  return cases;
}

std::vector<OpCase> ShapeCases() {
  std::vector<OpCase> cases = StartFamily(9);
  for (const auto& [from, to] : std::vector<std::pair<Dims, Dims>>{{{6, 5}, {2, 3, 5}},
                                                                   {{2, 3, 5}, {6, 5}},
                                                                   {{4, 3}, {12}},
                                                                   {{12}, {4, 3}},
                                                                   {{4, 6}, {8, 3}},
                                                                   {{5, 3}, {15}},
                                                                   {{1, 6}, {6}},
                                                                   {{6}, {1, 6, 1}},
                                                                   {{0, 3}, {3, 0}},
                                                                   {{2, 1, 3}, {2, 3}},
                                                                   {{}, {1}},
                                                                   {{1, 1}, {}},
                                                                   {{12, 2}, {2, 6, 2}},
                                                                   {{8, 3}, {2, 2, 2, 3}},
                                                                   {{12, 8}, {16, 6}},
                                                                   {{3, 4}, {-1}}}) {
    cases.push_back(ReshapeCase(from, to));
  }
  for (const auto& [shape, dims] : std::vector<std::pair<Dims, std::pair<int, int>>>{
           {{5, 3}, {0, 1}}, {{2, 3, 5}, {0, -1}}, {{1, 3}, {-1, -2}}, {{0, 3}, {0, 1}}}) {
    cases.push_back(
        {absl::StrCat("transpose(", dims.first, ", ", dims.second, ")"),
         {Mixed(shape)},
         [dims = dims](Operands o) { return Transpose(o[0], dims.first, dims.second); }});
  }
  for (const auto& [from, to] : std::vector<std::pair<Dims, Dims>>{{{1, 3}, {5, 3}},
                                                                   {{3}, {2, 3}},
                                                                   {{5, 1}, {5, 4}},
                                                                   {{}, {3}},
                                                                   {{5, 3}, {2, 5, 3}},
                                                                   {{1}, {0}},
                                                                   {{1}, {1}}}) {
    cases.push_back(ExpandCase(from, to));
  }
  cases.insert(cases.end(), {SliceCase({7, 3}, 0, 2, 3), SliceCase({7, 3}, 1, 1, 2),
                             SliceCase({7, 3}, -2, 4, 0), SliceCase({7, 3}, 0, 0, 7),
                             SliceCase({2, 3, 5}, 1, 2, 1), SliceCase({1, 3}, 0, 0, 1)});
  cases.insert(cases.end(),
               {ConcatCase({{2, 3}, {0, 3}, {5, 3}}, 0), ConcatCase({{5, 2}, {5, 3}}, 1),
                ConcatCase({{3, 2}}, 0), ConcatCase({{1, 3}, {1, 3}}, -2)});
  cases.push_back({"split and concat", {Mixed({7, 3})}, [](Operands o) {
                     const std::vector<DTensor> parts = Split(o[0], {2, 0, 5}, 0);
                     return Concat({Mul(parts[2], -2.0), parts[1], parts[0], parts[2]}, 0);
                   }});
  // A view of a view.
  cases.push_back({"transpose and reshape", {Mixed({3, 4})}, [](Operands o) {
                     return Reshape(Transpose(o[0], 0, 1), {2, 2, 3});
                   }});
  return cases;
}

}  // namespace shardmesh::testing
