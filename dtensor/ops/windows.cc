// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/windows.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/internal/spatial.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::Windows;

namespace {

constexpr Op kUnfold{"unfold"}, kFold{"fold"};

// x, of `dim` the windows, whose elements are the new dim `place` of the result, as a view.
Tensor WindowsOf(const Tensor& x, int dim, int place, int64_t count, const Windows& windows) {
  Dims shape = x.shape(), strides = x.strides();
  const int64_t stride = strides[dim];
  shape[dim] = count;
  strides[dim] *= windows.step;
  shape.insert(place, windows.size);
  strides.insert(place, stride * windows.dilation);
  if (shape.NumElements() == 0) strides = ContiguousStrides(shape);
  return x.AsStrided(shape, strides, x.offset());
}

// Element `offset` of each of `count` windows along `dim`, as a view.
Tensor ElementOfEach(const Tensor& x, int dim, int64_t count, int64_t offset,
                     const Windows& windows) {
  Dims shape = x.shape(), strides = x.strides();
  shape[dim] = count;
  const bool is_empty = shape.NumElements() == 0;
  const int64_t begin =
      is_empty ? x.offset() : x.offset() + offset * windows.dilation * strides[dim];
  strides[dim] *= windows.step;
  return x.AsStrided(shape, is_empty ? ContiguousStrides(shape) : strides, begin);
}

// `dim` whole and others free; on the side of the windows neither their number nor their elements
// are shardable.
OpRule WindowsRule(const Dims& whole, int dim, int place, int64_t count, int64_t size, bool folds) {
  Rule rule = internal::FactorsOf(whole, {dim});
  Rule::FactorOfDim split = rule.inputs[0];
  Dims windows = whole;
  split[dim] = Rule::kNotShardable;
  windows[dim] = count;
  split.insert(split.begin() + place, Rule::kNotShardable);
  windows.insert(place, size);
  rule.outputs = {folds ? rule.inputs[0] : split};
  if (folds) rule.inputs = {split};
  rule.linear = {1u};
  return {std::move(rule), {folds ? whole : windows}};
}

void CheckWindows(const char* op, const DTensor& x, int dim, int64_t extent,
                  const Windows& windows) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  const bool is_sane = windows.size >= 0 && windows.size <= kLimit && windows.step >= 1 &&
                       windows.dilation >= 1 && windows.dilation <= kLimit;
  if (is_sane && windows.Span() <= extent) return;
  ThrowInvalid(op, ": windows of ", windows.size, " every ", windows.step, ", of elements ",
               windows.dilation, " apart, do not fit an extent of ", extent, " (dim ", dim, " of ",
               x.ToString(), ")");
}

}  // namespace

namespace internal {

DTensor UnfoldAt(const DTensor& x, int dim, int place, const Windows& windows) {
  const int64_t extent = x.shape()[dim], count = windows.CountIn(extent);
  OpCall call(kUnfold, {&x});
  call.Attribute(dim, place, windows.size, windows.step, windows.dilation).Decide([&] {
    return WindowsRule(x.shape(), dim, place, count, windows.size, /*folds=*/false);
  });
  // PyTorch's aliases x.
  DTensor y = call.Result(
      ops::Clone(call.context(), WindowsOf(call.local(0), dim, place, count, windows)), 0,
      /*may_write=*/false);
  call.Record({&y}, [=](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, FoldAt(grads[0], dim, place, extent, windows));
  });
  return y;
}

DTensor FoldAt(const DTensor& x, int dim, int place, int64_t extent, const Windows& windows) {
  const int64_t count = windows.CountIn(extent);
  OpCall call(kFold, {&x});
  call.Attribute(dim, place, extent, windows.step, windows.dilation).Decide([&] {
    Dims shape = x.shape();
    shape.erase(place);
    shape[dim] = extent;
    return WindowsRule(shape, dim, place, count, windows.size, /*folds=*/true);
  });
  ExecutionContext& context = call.context();
  const DType dtype = IsSmall(x.dtype()) ? DType::kF32 : x.dtype();
  Tensor sum = ops::Zeros(context, call.output_layout().LocalShape(x.mesh().coord()), dtype);
  for (int64_t i = 0; i < windows.size; ++i) {
    Tensor target = ElementOfEach(sum, dim, count, i, windows);
    ops::Accumulate(context, call.local(0).Narrow(place, i, 1).Squeeze(place), target);
  }
  DTensor y = call.ResultOf(x.dtype(), std::move(sum));
  call.Record({&y}, [=](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, UnfoldAt(grads[0], dim, place, windows));
  });
  return y;
}

}  // namespace internal

DTensor Unfold(const DTensor& x, int given, int64_t size, int64_t step, int64_t dilation) {
  internal::CheckUsable(kUnfold.name, x);
  const int dim = internal::DimOf(kUnfold.name, x, given);
  const Windows windows{size, step, dilation};
  CheckWindows(kUnfold.name, x, dim, x.shape()[dim], windows);
  return internal::UnfoldAt(x, dim, x.num_dims(), windows);
}

DTensor Unfold(const DTensor& x, int given, int64_t size, int64_t step) {
  internal::CheckUsable(kUnfold.name, x);
  if (x.num_dims() > 0) return Unfold(x, given, size, step, 1);
  CheckWindows(kUnfold.name, x, NormalizeDim(given, 1, kUnfold.name), 1, {size, step});
  return Slice(Unsqueeze(x, 0), 0, 0, size);
}

DTensor Fold(const DTensor& x, int given, int64_t extent, int64_t step, int64_t dilation) {
  internal::CheckUsable(kFold.name, x);
  internal::CheckRankAtLeast(kFold.name, x, 2);
  if (x.dtype() == DType::kBool)
    ThrowInvalid(kFold.name, ": ", x.ToString(), " cannot be summed; cast it");
  const int last = x.num_dims() - 1, dim = NormalizeDim(given, last, kFold.name);
  const Windows windows{x.shape()[last], step, dilation};
  CheckWindows(kFold.name, x, dim, extent, windows);
  if (x.shape()[dim] != windows.CountIn(extent)) {
    ThrowInvalid(kFold.name, ": expected ", windows.CountIn(extent), " windows for an extent of ",
                 extent, " in dim ", dim, " of ", x.ToString());
  }
  return internal::FoldAt(x, dim, last, extent, windows);
}

DTensor Im2Col(const DTensor& x, const Im2ColOptions& options) {
  constexpr const char* kName = "im2col";
  constexpr int kRank = 2;
  internal::CheckSpatial(kName, x, kRank);
  const auto values = [&](const char* name, const std::vector<int64_t>& given, int64_t least) {
    return internal::PerSpatialDim(kName, x, name, given, kRank, least);
  };
  const auto kernel = values("kernel", options.kernel, 1);
  const auto dilation = values("dilation", options.dilation, 1);
  const auto padding = values("padding", options.padding, 0);
  const auto stride = values("stride", options.stride, 1);
  std::vector<Windows> windows;
  for (int d = 0; d < kRank; ++d)
    windows.push_back({kernel[d], stride[d], dilation[d], padding[d], padding[d]});
  internal::CheckWindowsFit(kName, x, windows);
  const DTensor y = internal::UnfoldSpatial(internal::WithBatch(x, kRank), windows, 2);
  const DTensor columns = Flatten(Flatten(y, 4, 5), 1, 3);
  return internal::WithoutBatch(columns, x, kRank);
}

namespace internal {

std::vector<int64_t> PerSpatialDim(const char* op, const DTensor& x, const char* option,
                                   const std::vector<int64_t>& values, int rank, int64_t least) {
  const auto count = static_cast<int>(values.size());
  if (count != 1 && count != rank) {
    ThrowInvalid(op, ": ", count, " values of `", option, "`, expected one, or one for each of ",
                 rank, " spatial dims of ", x.ToString());
  }
  for (const int64_t value : values) {
    if (value < least || value > std::numeric_limits<int32_t>::max()) {
      ThrowInvalid(op, ": `", option, "` is ", value, ", expected a number of at least ", least,
                   ", for ", x.ToString());
    }
  }
  return count == rank ? values : std::vector<int64_t>(static_cast<size_t>(rank), values[0]);
}

void CheckSpatial(const char* op, const DTensor& x, int rank) {
  CheckUsable(op, x);
  if (!IsFloating(x.dtype()))
    ThrowInvalid(op, ": ", x.ToString(), " is not of a floating-point dtype; cast it");
  if (x.num_dims() != rank + 1 && x.num_dims() != rank + 2) {
    ThrowInvalid(op, ": ", x.ToString(), " has ", x.num_dims(), " dims, expected ", rank + 2,
                 " (batch, channels, ", rank, " spatial dims), or ", rank + 1,
                 " without the batch");
  }
}

DTensor WithBatch(const DTensor& x, int rank) {
  return x.num_dims() == rank + 1 ? Unsqueeze(x, 0) : x;
}

DTensor WithoutBatch(const DTensor& y, const DTensor& x, int rank) {
  return x.num_dims() == rank + 1 ? Squeeze(y, {0}) : y;
}

void CheckWindowsFit(const char* op, const DTensor& x, std::span<const Windows> windows) {
  const auto rank = static_cast<int>(windows.size());
  for (int d = 0; d < rank; ++d) {
    const int dim = FirstSpatial(x, rank) + d;
    if (windows[d].CountIn(x.shape()[dim]) > 0) continue;
    ThrowInvalid(op, ": a window of ", windows[d].size, " elements ", windows[d].dilation,
                 " apart is larger than dim ", dim, " of ", x.ToString(), ", padded by ",
                 windows[d].before, " and ", windows[d].after);
  }
}

DTensor PadLast(const DTensor& x, std::span<const Windows> windows) {
  std::vector<int64_t> pads;
  for (auto w = windows.rbegin(); w != windows.rend(); ++w) {
    pads.push_back(w->before);
    pads.push_back(w->after);
  }
  return Pad(x, pads);
}

DTensor UnfoldSpatial(const DTensor& x, std::span<const Windows> windows, int place) {
  DTensor y = PadLast(x, windows);
  for (int d = static_cast<int>(windows.size()) - 1; d >= 0; --d) {
    const Windows w{windows[d].size, windows[d].step, windows[d].dilation};
    y = UnfoldAt(y, x.num_dims() - 1, place, w);
  }
  return y;
}

DTensor AdaptiveMean(const DTensor& x, int dim, int64_t count) {
  const int64_t extent = x.shape()[dim];
  if (count == extent) return x;
  if (extent % count == 0) return Mean(Unflatten(x, dim, {count, extent / count}), {dim + 1});
  std::vector<DTensor> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = AdaptiveBegin(i, extent, count), end = AdaptiveEnd(i, extent, count);
    means.push_back(Mean(Slice(x, dim, begin, end - begin), {dim}, /*keepdim=*/true));
  }
  return Concat(means, dim);
}

}  // namespace internal
}  // namespace shardmesh
