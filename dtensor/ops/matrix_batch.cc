// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/internal/matrix_batch.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/internal/rules.h"

namespace shardmesh::internal {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Row-major indices within `box` and within `shape`, of the first `num_dims` dims.
int64_t GlobalIndex(int64_t local, const Box& box, const Dims& shape, int num_dims) {
  const Dims extents = box.Extents();
  int64_t index = 0, weight = 1;
  for (int d = num_dims - 1; d >= 0; --d) {
    index += weight * (box.begin[d] + local % extents[d]);
    local /= extents[d];
    weight *= shape[d];
  }
  return index;
}

// "[1, 0]": of the batch of `x` that broadcasts to the first `num_dims` dims of `shape`.
std::string Coordinates(const DTensor& x, int64_t index, const Dims& shape, int num_dims) {
  const Dims batch = BatchOf(x);
  std::string text;
  for (int d = num_dims - 1; d >= num_dims - batch.size(); --d) {
    const int64_t coordinate = batch[d - num_dims + batch.size()] == 1 ? 0 : index % shape[d];
    text = absl::StrCat(coordinate, text.empty() ? "" : ", ", text);
    index /= shape[d];
  }
  return absl::StrCat("[", text, "]");
}

// The least of what the ranks along `axes` have.
int64_t LeastOf(const OpCall& call, const AxisList& axes, int64_t value) {
  if (axes.empty() || call.context().device().IsMeta()) return value;
  const Tensor mine = Tensor::FromValues<int64_t>(call.context(), {1}, {value});
  GroupOf(call.mesh(), axes).AllReduce({{mine, mine}}, ReduceOp::kMin, call.op().name).Wait();
  return mine.IntegerItem();
}

}  // namespace

void CheckMatrices(const char* op, const DTensor& x) {
  CheckUsable(op, x);
  CheckRankAtLeast(op, x, 2);
}

void CheckSquare(const char* op, const DTensor& x) {
  CheckMatrices(op, x);
  if (x.dim(-2) != x.dim(-1)) ThrowInvalid(op, ": expected square matrices, got ", x.ToString());
}

void CheckReal(const char* op, const DTensor& x) {
  if (x.dtype() == DType::kF32 || x.dtype() == DType::kF64) return;
  ThrowInvalid(op, ": expected f32 or f64, got ", x.ToString(),
               "; Cast it to f32 first, and the result back");
}

Dims BatchOf(const DTensor& x) {
  return Dims(std::span<const int64_t>(x.shape().begin(), x.num_dims() - 2));
}

Rule::FactorOfDim BatchFactors(const Dims& own, const Dims& batch, int whole) {
  Rule::FactorOfDim factors;
  const int lead = batch.size() - own.size();
  for (int d = 0; d < own.size(); ++d)
    factors.push_back(own[d] == batch[lead + d] ? lead + d : Rule::kNotShardable);
  for (int i = 0; i < whole; ++i) factors.push_back(Rule::kNotShardable);
  return factors;
}

OpRule BatchRule(const DTensor& x, std::initializer_list<Dims> results) {
  const Dims batch = BatchOf(x);
  OpRule rule = {FactorsOf(batch), {}};
  rule.rule.inputs = {BatchFactors(batch, batch, 2)};
  for (const Dims& own : results) {
    rule.rule.outputs.push_back(BatchFactors(batch, batch, own.size()));
    Dims shape = batch;
    for (const int64_t extent : own) shape.push_back(extent);
    rule.output_shapes.push_back(shape);
  }
  return rule;
}

void RequireSuccess(const OpCall& call, const char* op, const DTensor& x, int batch_dims,
                    std::optional<int64_t> failed, const char* fault) {
  const Layout& layout = call.output_layout();
  AxisList axes;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const Placement& placement = layout.placement(axis);
    if (placement.IsShard() && placement.dim() < batch_dims && layout.mesh().size(axis) > 1)
      axes.push_back(axis);
  }
  const Dims& shape = layout.global_shape();
  const Box box = layout.LocalBox(call.mesh().coord());
  const int64_t first =
      LeastOf(call, axes, failed ? GlobalIndex(*failed, box, shape, batch_dims) : kNone);
  if (first == kNone) return;
  const std::string which =
      x.num_dims() == 2 ? ""
                        : absl::StrCat("matrix ", Coordinates(x, first, shape, batch_dims), " of ");
  ThrowInvalid(op, ": ", which, x.ToString(), " is ", fault);
}

}  // namespace shardmesh::internal
