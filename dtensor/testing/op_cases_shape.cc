// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;

// Collects cases whose values follow from the order in which they are added.
class Cases {
 public:
  explicit Cases(uint64_t seed) : random_(seed) {}

  void Add(std::string name, const std::vector<Dims>& shapes,
           std::function<DTensor(Operands)> apply) {
    OpCase added{std::move(name), {}, std::move(apply)};
    for (const Dims& shape : shapes) added.operands.push_back(RandomGlobal(shape, random_));
    cases_.push_back(std::move(added));
  }
  // Of one operand, for each of several shapes.
  void AddUnary(const std::string& name, const std::vector<Dims>& shapes,
                const std::function<DTensor(const DTensor&)>& op) {
    for (const Dims& shape : shapes) Add(name, {shape}, [op](Operands o) { return op(o[0]); });
  }
  void AddBools(const std::string& name, const Dims& shape,
                const std::function<DTensor(const DTensor&)>& op) {
    cases_.push_back({name, {RandomBools(shape, random_)}, [op](Operands o) { return op(o[0]); }});
  }
  std::vector<OpCase> Take() { return std::move(cases_); }

 private:
  Random random_;
  std::vector<OpCase> cases_;
};

// Of several results one: each counts differently.
DTensor Joined(const std::vector<DTensor>& parts, int dim) {
  std::vector<DTensor> scaled;
  for (size_t i = 0; i < parts.size(); ++i)
    scaled.push_back(Mul(parts[i], static_cast<double>(i) - 1.5));
  return Concat(scaled, dim);
}

std::vector<DTensor> All(Operands operands) { return {operands.begin(), operands.end()}; }

}  // namespace

std::vector<OpCase> ViewCases() {
  Cases cases(21);
  cases.AddUnary("permute(2, 0, 1)", {{2, 3, 5}, {1, 3, 2}, {0, 3, 2}}, [](const DTensor& x) {
    return Permute(x, {2, 0, 1});
  });
  cases.AddUnary("permute and slice", {{5, 3}}, [](const DTensor& x) {
    return Reshape(Slice(Permute(x, {1, 0}), 0, 1, 2), {10});
  });
  cases.AddUnary("movedim", {{2, 3, 5}}, [](const DTensor& x) {
    return MoveDim(x, {0, -1}, {1, 0});
  });
  cases.AddUnary("t", {{5, 3}, {3}}, T);
  for (const int dim : {0, 1, -1}) {
    cases.AddUnary(absl::StrCat("unsqueeze(", dim, ")"), {{5, 3}, {1, 3}},
                   [dim](const DTensor& x) { return Unsqueeze(x, dim); });
  }
  cases.AddUnary("squeeze", {{1, 3, 1}, {5, 1}, {1, 1}, {1, 0}},
                 [](const DTensor& x) { return Squeeze(x); });
  cases.AddUnary("squeeze(0, 1)", {{1, 3, 1}, {5, 1, 2}}, [](const DTensor& x) {
    return Squeeze(x, {0, 1});
  });
  cases.AddUnary("flatten", {{4, 3}, {2, 3, 5}, {}, {0, 3}},
                 [](const DTensor& x) { return Flatten(x); });
  cases.AddUnary("unflatten", {{12, 3}}, [](const DTensor& x) { return Unflatten(x, 0, {4, -1}); });
  cases.AddUnary("atleast_3d", {{}, {3}, {2, 3}}, AtLeast3d);
  cases.AddUnary("broadcast_to", {{3, 1}}, [](const DTensor& x) {
    return BroadcastTo(x, {2, -1, 5});
  });
  cases.AddUnary("pixel_shuffle", {{2, 8, 1, 3}},
                 [](const DTensor& x) { return PixelShuffle(x, 2); });
  cases.AddUnary("pixel_unshuffle", {{2, 2, 2, 6}},
                 [](const DTensor& x) { return PixelUnshuffle(x, 2); });
  for (const auto& [dim, index] : std::vector<std::pair<int, int>>{{0, 2}, {1, -1}, {-1, 0}}) {
    cases.AddUnary(absl::StrCat("select(", dim, ", ", index, ")"), {{5, 3}, {3, 2, 2}},
                   [dim = dim, index = index](const DTensor& x) { return Select(x, dim, index); });
  }
  cases.AddUnary("select of a vector", {{1}, {7}},
                 [](const DTensor& x) { return Select(x, 0, 0); });
  cases.AddBools("select of bools", {5, 3}, [](const DTensor& x) { return Select(x, 0, 3); });
  cases.AddUnary("narrow", {{7, 3}}, [](const DTensor& x) { return Narrow(x, 0, -4, 3); });
  cases.AddUnary("unbind", {{3, 5}}, [](const DTensor& x) { return Joined(Unbind(x, 1), 0); });
  cases.AddUnary("chunk", {{7, 3}}, [](const DTensor& x) { return Joined(Chunk(x, 3), 0); });
  cases.AddUnary("tensor_split", {{7, 3}},
                 [](const DTensor& x) { return Joined(TensorSplit(x, 3), 0); });
  cases.AddUnary("tensor_split at", {{7, 3}}, [](const DTensor& x) {
    return Joined(TensorSplitAt(x, {2, 1, -1, 9}), 0);
  });
  cases.Add("stack(1)", {{5, 3}, {5, 3}}, [](Operands o) { return Stack(All(o), 1); });
  cases.Add("hstack", {{5}, {3}}, [](Operands o) { return HStack(All(o)); });
  cases.Add("vstack", {{3}, {2, 3}}, [](Operands o) { return VStack(All(o)); });
  cases.Add("dstack", {{3}, {1, 3}}, [](Operands o) { return DStack(All(o)); });
  cases.Add("column_stack", {{5}, {5, 2}}, [](Operands o) { return ColumnStack(All(o)); });
  cases.Add("block_diag", {{2, 3}, {3}, {0, 2}}, [](Operands o) { return BlockDiag(All(o)); });
  for (const GridIndexing indexing : {GridIndexing::kMatrix, GridIndexing::kCartesian}) {
    cases.Add("meshgrid", {{3}, {5}},
              [indexing](Operands o) { return Joined(Meshgrid(All(o), indexing), 0); });
  }
  cases.Add("cartesian_prod", {{3}, {2}}, [](Operands o) { return CartesianProd(All(o)); });
  return cases.Take();
}

std::vector<OpCase> RearrangementCases() {
  Cases cases(22);
  cases.AddUnary("flip(0)", {{5, 3}, {1, 3}, {0, 3}},
                 [](const DTensor& x) { return Flip(x, {0}); });
  cases.AddUnary("flip(0, -1)", {{2, 3, 5}}, [](const DTensor& x) { return Flip(x, {0, -1}); });
  cases.AddUnary("flip of a view", {{5, 3}},
                 [](const DTensor& x) { return Flip(Transpose(x, 0, 1), {1}); });
  cases.AddUnary("roll", {{5, 3}, {0, 3}}, [](const DTensor& x) {
    return Roll(x, {2, -4}, {0, 1});
  });
  cases.AddUnary("roll of all", {{5, 3}}, [](const DTensor& x) { return Roll(x, 4); });
  for (const int times : {1, 2, -1}) {
    cases.AddUnary(absl::StrCat("rot90(", times, ")"), {{5, 3}},
                   [times](const DTensor& x) { return Rot90(x, times); });
  }
  cases.AddUnary("repeat(2, 3)", {{5, 2}, {1, 3}, {3}}, [](const DTensor& x) {
    return Repeat(x, {2, 3});
  });
  cases.AddUnary("repeat(0)", {{5}}, [](const DTensor& x) { return Repeat(x, {0}); });
  cases.AddUnary("tile(2)", {{3, 5}}, [](const DTensor& x) { return Tile(x, {2}); });
  cases.AddUnary("repeat_interleave(3, 0)", {{4, 3}, {5}},
                 [](const DTensor& x) { return RepeatInterleave(x, 3, 0); });
  cases.AddUnary("repeat_interleave([2, 0, 1], 1)", {{5, 3}}, [](const DTensor& x) {
    return RepeatInterleave(x, {2, 0, 1}, 1);
  });
  cases.AddUnary("unfold(0, 3, 2)", {{7, 3}}, [](const DTensor& x) { return Unfold(x, 0, 3, 2); });
  cases.AddUnary("unfold(-1, 2, 3)", {{3, 7}},
                 [](const DTensor& x) { return Unfold(x, -1, 2, 3); });
  cases.Add("slice_scatter", {{7, 3}, {2, 3}},
            [](Operands o) { return SliceScatter(o[0], o[1], 0, 2, 4); });
  cases.Add("slice_scatter with a step", {{3, 7}, {3, 3}},
            [](Operands o) { return SliceScatter(o[0], o[1], 1, 1, std::nullopt, 2); });
  cases.Add("select_scatter", {{3, 5}, {3}},
            [](Operands o) { return SelectScatter(o[0], o[1], 1, -2); });
  for (const PadMode mode :
       {PadMode::kConstant, PadMode::kReflect, PadMode::kReplicate, PadMode::kCircular}) {
    const std::string name = absl::StrCat("pad in mode ", static_cast<int>(mode));
    cases.AddUnary(name, {{5, 3}}, [mode](const DTensor& x) { return Pad(x, {1, 2}, mode); });
    cases.AddUnary(name, {{5, 3}}, [mode](const DTensor& x) {
      return Pad(x, {-1, 1, 3, -1}, mode);
    });
  }
  cases.AddUnary("pad with 1.5", {{5, 3}}, [](const DTensor& x) {
    return Pad(x, {0, 0, 1, 2}, PadMode::kConstant, 1.5);
  });
  for (const int offset : {0, 1, -2}) {
    cases.AddUnary(absl::StrCat("tril(", offset, ")"), {{5, 3}, {2, 3, 5}},
                   [offset](const DTensor& x) { return Tril(x, offset); });
    cases.AddUnary(absl::StrCat("triu(", offset, ")"), {{3, 5}, {1, 3}, {0, 3}},
                   [offset](const DTensor& x) { return Triu(x, offset); });
    cases.AddUnary(absl::StrCat("diagonal(", offset, ")"), {{5, 3}, {3, 5}, {1, 1}},
                   [offset](const DTensor& x) { return Diagonal(x, offset); });
    cases.AddUnary(absl::StrCat("diag_embed(", offset, ")"), {{3}, {2, 3}},
                   [offset](const DTensor& x) { return DiagEmbed(x, offset); });
    cases.Add(absl::StrCat("diagonal_scatter(", offset, ")"), {{5, 3}, {offset == 1 ? 2 : 3}},
              [offset](Operands o) { return DiagonalScatter(o[0], o[1], offset); });
  }
  cases.AddUnary("diagonal of dims 2 and 0", {{2, 3, 5}},
                 [](const DTensor& x) { return Diagonal(x, -1, 2, 0); });
  cases.AddUnary("diag_embed into dims 0 and 2", {{3, 2}},
                 [](const DTensor& x) { return DiagEmbed(x, 1, 0, 2); });
  cases.AddBools("diagonal of bools", {3, 3}, [](const DTensor& x) { return Diagonal(x); });
  cases.AddBools("tril of bools", {5, 3}, [](const DTensor& x) { return Tril(x); });
  cases.AddBools("flip of bools", {5, 3}, [](const DTensor& x) { return Flip(x, {0}); });
  return cases.Take();
}

}  // namespace shardmesh::testing
