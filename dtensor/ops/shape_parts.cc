// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/internal/view.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::MemoryOrder;

namespace {

constexpr Op kSelect{"select"}, kSelectBackward{"select_backward"};

bool IsSplit(const Layout& layout, int dim) {
  const AxisList& axes = layout.SplitAxes(dim);
  return std::any_of(axes.begin(), axes.end(),
                     [&](int axis) { return layout.mesh().size(axis) > 1; });
}

// A copy of index `index` of a dim of which this rank holds a part; -0 where it does not have it,
// which changes no bit in a sum.
Tensor OwnIndex(const OpCall& call, const DTensor& x, int dim, int64_t index) {
  const Box box = call.InputBox(0);
  const Tensor& local = call.local(0);
  if (index >= box.begin[dim] && index < box.end[dim])
    return ops::Clone(call.context(), local.Narrow(dim, index - box.begin[dim], 1).Squeeze(dim));
  Dims shape = local.shape();
  shape.erase(dim);
  return ops::Full(call.context(), shape, local.dtype(), IsFloating(x.dtype()) ? -0.0 : 0.0);
}

// The dim that an h-, v- or d-split cuts.
int SplitDim(const char* op, const DTensor& x, int rank, int dim) {
  internal::CheckUsable(op, x);
  internal::CheckRankAtLeast(op, x, rank);
  return std::min(dim, x.num_dims() - 1);
}

std::vector<DTensor> EqualSplit(const char* op, const DTensor& x, int64_t sections, int dim) {
  if (sections < 1 || x.dim(dim) % sections != 0) {
    ThrowInvalid(op, ": ", sections, " sections do not divide dim ", dim, " of ", x.ToString());
  }
  return TensorSplit(x, sections, dim);
}

}  // namespace

DTensor Narrow(const DTensor& x, int given, int64_t start, int64_t length) {
  internal::CheckUsable("narrow", x);
  const int dim = internal::DimOf("narrow", x, given);
  return Slice(x, dim, start < 0 ? start + x.shape()[dim] : start, length);
}

DTensor Select(const DTensor& x, int given_dim, int64_t given) {
  internal::CheckUsable(kSelect.name, x);
  const int dim = internal::DimOf(kSelect.name, x, given_dim);
  const int64_t extent = x.shape()[dim];
  if (given < -extent || given >= extent) {
    ThrowInvalid(kSelect.name, ": index ", given, " is not within dim ", dim, " of ", x.ToString());
  }
  const int64_t index = given < 0 ? given + extent : given;
  OpCall call(kSelect, {&x});
  call.Attribute(dim).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.factors[dim].whole = x.dtype() == DType::kBool;  // Of which no Partial exists.
    rule.outputs = {rule.inputs[0]};
    rule.outputs[0].erase(rule.outputs[0].begin() + dim);
    rule.PassAll(1u);
    Dims shape = x.shape();
    shape.erase(dim);
    return OpRule{std::move(rule), {shape}};
  });
  const bool keeps_order = dim == 0 && x.impl()->order.IsRowMajor();
  DTensor y =
      IsSplit(call.input_layout(0), dim)
          ? call.Result(OwnIndex(call, x, dim, index), 0, /*may_write=*/false)
          : internal::ViewResult(call, x, call.local(0).Narrow(dim, index, 1).Squeeze(dim),
                                 keeps_order ? MemoryOrder::RowMajor() : MemoryOrder::Unknown());
  call.Record({&y}, [dim, index, extent](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, internal::TakeRuns(kSelectBackward, Unsqueeze(grads[0], dim), dim,
                                  {{index, 0, 1, 1}}, extent));
  });
  return y;
}

std::vector<DTensor> Unbind(const DTensor& x, int given) {
  internal::CheckUsable("unbind", x);
  const int dim = internal::DimOf("unbind", x, given);
  std::vector<DTensor> parts;
  for (int64_t i = 0; i < x.shape()[dim]; ++i)
    parts.push_back(Squeeze(Slice(x, dim, i, 1), std::vector<int>{dim}));
  return parts;
}

std::vector<DTensor> SplitEvery(const DTensor& x, int64_t size, int given) {
  internal::CheckUsable("split", x);
  const int dim = internal::DimOf("split", x, given);
  const int64_t extent = x.shape()[dim];
  if (size < 0 || (size == 0 && extent > 0)) {
    ThrowInvalid("split: parts of ", size, " do not make up dim ", dim, " of ", x.ToString());
  }
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < extent; start += size)
    sizes.push_back(std::min(size, extent - start));
  if (sizes.empty()) sizes.push_back(0);
  return Split(x, sizes, dim);
}

std::vector<DTensor> Chunk(const DTensor& x, int64_t chunks, int given) {
  internal::CheckUsable("chunk", x);
  const int dim = internal::DimOf("chunk", x, given);
  const int64_t extent = x.shape()[dim];
  if (chunks < 1)
    ThrowInvalid("chunk: expected at least one chunk of ", x.ToString(), ", got ", chunks);
  if (extent == 0) return Split(x, std::vector<int64_t>(chunks, 0), dim);
  return SplitEvery(x, extent / chunks + (extent % chunks != 0 ? 1 : 0), dim);
}

std::vector<DTensor> TensorSplit(const DTensor& x, int64_t sections, int given) {
  internal::CheckUsable("tensor_split", x);
  const int dim = internal::DimOf("tensor_split", x, given);
  if (sections < 1) ThrowInvalid("tensor_split: expected at least one section, got ", sections);
  std::vector<int64_t> sizes(sections, x.shape()[dim] / sections);
  for (int64_t i = 0; i < x.shape()[dim] % sections; ++i) ++sizes[i];
  return Split(x, sizes, dim);
}

std::vector<DTensor> TensorSplitAt(const DTensor& x, const std::vector<int64_t>& indices,
                                   int given) {
  internal::CheckUsable("tensor_split", x);
  const int dim = internal::DimOf("tensor_split", x, given);
  const int64_t extent = x.shape()[dim];
  std::vector<DTensor> parts;
  int64_t start = 0;
  const auto cut_at = [&](int64_t end) {
    parts.push_back(Slice(x, dim, start, std::max<int64_t>(end - start, 0)));
    start = end;
  };
  for (const int64_t index : indices)
    cut_at(std::clamp<int64_t>(index < 0 ? index + extent : index, 0, extent));
  cut_at(extent);
  return parts;
}

std::vector<DTensor> HSplit(const DTensor& x, int64_t sections) {
  return EqualSplit("hsplit", x, sections, SplitDim("hsplit", x, 1, 1));
}
std::vector<DTensor> HSplitAt(const DTensor& x, const std::vector<int64_t>& indices) {
  return TensorSplitAt(x, indices, SplitDim("hsplit", x, 1, 1));
}
std::vector<DTensor> VSplit(const DTensor& x, int64_t sections) {
  return EqualSplit("vsplit", x, sections, SplitDim("vsplit", x, 2, 0));
}
std::vector<DTensor> VSplitAt(const DTensor& x, const std::vector<int64_t>& indices) {
  return TensorSplitAt(x, indices, SplitDim("vsplit", x, 2, 0));
}
std::vector<DTensor> DSplit(const DTensor& x, int64_t sections) {
  return EqualSplit("dsplit", x, sections, SplitDim("dsplit", x, 3, 2));
}
std::vector<DTensor> DSplitAt(const DTensor& x, const std::vector<int64_t>& indices) {
  return TensorSplitAt(x, indices, SplitDim("dsplit", x, 3, 2));
}

}  // namespace shardmesh
