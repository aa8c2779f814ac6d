// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/from_indices.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kTril{"tril"}, kTriu{"triu"}, kDiagonal{"diagonal"}, kDiagEmbed{"diag_embed"};

// Diagonal `offset` of an n x m matrix: element k is [row + k, column + k], for k in [0, length).
struct DiagonalLine {
  DiagonalLine(int64_t n, int64_t m, int64_t offset)
      : row(std::max<int64_t>(-offset, 0)),
        column(std::max<int64_t>(offset, 0)),
        length(std::max<int64_t>(std::min(n - row, m - column), 0)) {}

  // The elements within a box of the matrix, as a view of the last two dims of `local`, which holds
  // the box. They are elements [begin, begin + extent of the last dim) of the diagonal.
  Tensor ViewIn(const Tensor& local, const Box& box, int64_t& begin) const {
    const int d = local.num_dims() - 2;
    begin = std::max({int64_t{0}, box.begin[d] - row, box.begin[d + 1] - column});
    const int64_t end = std::min({length, box.end[d] - row, box.end[d + 1] - column});
    Dims shape(std::span<const int64_t>(local.shape().begin(), d));
    Dims strides(std::span<const int64_t>(local.strides().begin(), d));
    shape.push_back(std::max<int64_t>(end - begin, 0));
    strides.push_back(local.strides()[d] + local.strides()[d + 1]);
    if (shape.NumElements() == 0) {
      begin = 0;
      return local.AsStrided(shape, ContiguousStrides(shape), 0);
    }
    return local.AsStrided(shape, strides,
                           local.offset() + (row + begin - box.begin[d]) * local.strides()[d] +
                               (column + begin - box.begin[d + 1]) * local.strides()[d + 1]);
  }

  int64_t row, column, length;
};

// Tril and Triu.
DTensor Triangle(const Op& op, const DTensor& x, int64_t offset) {
  internal::CheckUsable(op.name, x);
  internal::CheckRankAtLeast(op.name, x, 2);
  OpCall call(op, {&x});
  call.Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs = {rule.inputs[0]};
    rule.linear = {1u};
    return OpRule{std::move(rule), {x.shape()}};
  });
  const Box box = call.InputBox(0);
  const int d = x.num_dims() - 2;
  const Box matrix = {{box.begin[d], box.begin[d + 1]}, {box.end[d], box.end[d + 1]}};
  const bool is_lower = &op == &kTril;
  const Tensor mask = internal::MaskFromIndices(call.context(), matrix, [&](const Dims& index) {
    return is_lower ? index[1] - index[0] <= offset : index[1] - index[0] >= offset;
  });
  const Tensor zero = ops::Zeros(call.context(), {}, call.local(0).dtype());
  DTensor y = call.Result(ops::Where(call.context(), mask, call.local(0), zero));
  call.Record({&y}, [&op, offset](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Triangle(op, grads[0], offset));
  });
  return y;
}

DTensor PlaceDiagonal(const DTensor& x, int64_t n, int64_t m, int64_t offset);

// Of the last two dims. Ranks that hold none of an element give -0, which changes no bit in a sum.
DTensor LastDiagonal(const DTensor& x, int64_t offset) {
  const int d = x.num_dims() - 2;
  const int64_t n = x.shape()[d], m = x.shape()[d + 1];
  const DiagonalLine line(n, m, offset);
  OpCall call(kDiagonal, {&x});
  call.Attribute(line.length).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    if (x.dtype() == DType::kBool) {  // Of which no Partial exists.
      rule.factors[d].whole = true;
      rule.factors[d + 1].whole = true;
    }
    rule.outputs = {Rule::FactorOfDim(rule.inputs[0].begin(), rule.inputs[0].end() - 2)};
    rule.outputs[0].push_back(Rule::kNotShardable);
    rule.linear = {1u};
    Dims shape(std::span<const int64_t>(x.shape().begin(), d));
    shape.push_back(line.length);
    return OpRule{std::move(rule), {shape}};
  });
  int64_t begin = 0;
  const Tensor view = line.ViewIn(call.local(0), call.InputBox(0), begin);
  Tensor local = ops::Full(call.context(), call.output_layout().LocalShape(x.mesh().coord()),
                           call.local(0).dtype(), IsFloating(x.dtype()) ? -0.0 : 0.0);
  Tensor place = local.Narrow(-1, begin, view.dim(-1));
  ops::Copy(call.context(), view, place);
  DTensor y = call.Result(std::move(local), 0, /*may_write=*/false);
  call.Record({&y}, [n, m, offset](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, PlaceDiagonal(grads[0], n, m, offset));
  });
  return y;
}

// Shape: x [.., length] -> [.., n, m], zero elsewhere.
DTensor PlaceDiagonal(const DTensor& x, int64_t n, int64_t m, int64_t offset) {
  const int d = x.num_dims() - 1;
  OpCall call(kDiagEmbed, {&x});
  call.Attribute(n, m).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape(), {d});
    rule.outputs = {rule.inputs[0]};
    rule.outputs[0][d] = Rule::kNotShardable;
    rule.outputs[0].push_back(Rule::kNotShardable);
    rule.linear = {1u};
    Dims shape = x.shape();
    shape[d] = n;
    shape.push_back(m);
    return OpRule{std::move(rule), {shape}};
  });
  const Box box = call.output_layout().LocalBox(x.mesh().coord());
  Tensor local = ops::Zeros(call.context(), box.Extents(), call.local(0).dtype());
  int64_t begin = 0;
  Tensor place = DiagonalLine(n, m, offset).ViewIn(local, box, begin);
  ops::Copy(call.context(), call.local(0).Narrow(-1, begin, place.dim(-1)), place);
  DTensor y = call.Result(std::move(local));
  call.Record({&y}, [offset](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, LastDiagonal(grads[0], offset));
  });
  return y;
}

std::pair<int, int> MatrixDims(const char* op, const DTensor& x, int rank, int given0, int given1) {
  const int dim0 = NormalizeDim(given0, rank, op), dim1 = NormalizeDim(given1, rank, op);
  if (dim0 == dim1)
    ThrowInvalid(op, ": dims ", given0, " and ", given1, " of ", x.ToString(), " are the same");
  return {dim0, dim1};
}

}  // namespace

DTensor Tril(const DTensor& x, int64_t offset) { return Triangle(kTril, x, offset); }

DTensor Triu(const DTensor& x, int64_t offset) { return Triangle(kTriu, x, offset); }

DTensor Diagonal(const DTensor& x, int64_t offset, int dim0, int dim1) {
  internal::CheckUsable(kDiagonal.name, x);
  internal::CheckRankAtLeast(kDiagonal.name, x, 2);
  const auto [row, column] = MatrixDims(kDiagonal.name, x, x.num_dims(), dim0, dim1);
  return LastDiagonal(MoveDim(x, {row, column}, {-2, -1}), offset);
}

DTensor DiagEmbed(const DTensor& x, int64_t offset, int dim0, int dim1) {
  internal::CheckUsable(kDiagEmbed.name, x);
  internal::CheckRankAtLeast(kDiagEmbed.name, x, 1);
  const auto [row, column] = MatrixDims(kDiagEmbed.name, x, x.num_dims() + 1, dim0, dim1);
  const int64_t n = x.dim(-1) + std::abs(offset);
  return MoveDim(PlaceDiagonal(x, n, n, offset), {-2, -1}, {row, column});
}

DTensor Diag(const DTensor& x, int64_t offset) {
  internal::CheckUsable("diag", x);
  if (x.num_dims() != 1 && x.num_dims() != 2)
    ThrowInvalid("diag: expected a vector or a matrix, got ", x.ToString());
  return x.num_dims() == 1 ? DiagEmbed(x, offset) : Diagonal(x, offset);
}

DTensor DiagonalScatter(const DTensor& x, const DTensor& source, int64_t offset, int dim0,
                        int dim1) {
  constexpr const char* kName = "diagonal_scatter";
  internal::CheckUsable(kName, x);
  internal::CheckUsable(kName, source);
  internal::CheckRankAtLeast(kName, x, 2);
  const auto [row, column] = MatrixDims(kName, x, x.num_dims(), dim0, dim1);
  const DTensor moved = MoveDim(x, {row, column}, {-2, -1});
  const int64_t n = moved.dim(-2), m = moved.dim(-1);
  Dims expected(std::span<const int64_t>(moved.shape().begin(), x.num_dims() - 2));
  expected.push_back(DiagonalLine(n, m, offset).length);
  if (!(source.shape() == expected)) {
    ThrowInvalid(kName, ": ", source.ToString(), " does not fit ", expected.ToString(),
                 ", diagonal ", offset, " of ", x.ToString());
  }
  const DTensor mask =
      FromBoxes(x.mesh(), {n, m}, DType::kBool, std::vector<Placement>(x.layout().num_axes()),
                [&](const Box& box, Tensor& local) {
                  internal::FillFromIndices(
                      box, [&](const Dims& index) { return index[1] - index[0] == offset; }, local);
                });
  const DTensor y = Where(mask, PlaceDiagonal(source, n, m, offset), moved);
  return MoveDim(y, {-2, -1}, {row, column});
}

}  // namespace shardmesh
