// SPDX-License-Identifier: Apache-2.0
//
// A mean over windows is a product of means along each dim. A maximum is found among the windows
// outside the graph, as an index; the values are then gathered, and backward adds them where they
// came from.
#include <algorithm>
#include <limits>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/from_indices.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/internal/spatial.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"

namespace shardmesh {

using internal::AdaptiveBegin;
using internal::AdaptiveEnd;
using internal::InF32IfSmall;
using internal::Operands;
using internal::PerSpatialDim;
using internal::Windows;

namespace {

constexpr Op kPoolWindows{"max_pool_windows"};

// `after` is what the windows need beyond the last element, which may be less than the padding.
std::vector<Windows> PoolWindows(const char* op, const DTensor& x, int rank,
                                 const std::vector<int64_t>& given_kernel,
                                 const std::vector<int64_t>& given_stride,
                                 const std::vector<int64_t>& given_padding,
                                 const std::vector<int64_t>& given_dilation, bool ceil_mode) {
  internal::CheckSpatial(op, x, rank);
  const auto kernel = PerSpatialDim(op, x, "kernel", given_kernel, rank, 1);
  const auto stride =
      given_stride.empty() ? kernel : PerSpatialDim(op, x, "stride", given_stride, rank, 1);
  const auto padding = PerSpatialDim(op, x, "padding", given_padding, rank, 0);
  const auto dilation = PerSpatialDim(op, x, "dilation", given_dilation, rank, 1);
  std::vector<Windows> windows;
  for (int d = 0; d < rank; ++d) {
    if (padding[d] > kernel[d] / 2) {
      ThrowInvalid(op, ": `padding` is ", padding[d], " for ", x.ToString(),
                   ", expected half of the kernel ", kernel[d], " at most");
    }
    windows.push_back({kernel[d], stride[d], dilation[d], padding[d], padding[d]});
  }
  internal::CheckWindowsFit(op, x, windows);
  for (int d = 0; d < rank; ++d) {
    Windows& w = windows[d];
    const int64_t extent = x.shape()[internal::FirstSpatial(x, rank) + d];
    int64_t count = w.CountIn(extent);
    const bool has_rest = (count - 1) * w.step + w.Span() < w.before + extent + w.after;
    if (ceil_mode && has_rest && count * w.step < w.before + extent) ++count;
    w.after = (count - 1) * w.step + w.Span() - w.before - extent;
  }
  return windows;
}

// ---- means --------------------------------------------------------------------------------------

// How many elements each window along one dim counts.
std::vector<double> Counts(const Windows& w, int64_t extent, int64_t padding, bool counts_pad) {
  std::vector<double> counts;
  for (int64_t i = 0; i < w.CountIn(extent); ++i) {
    const int64_t begin = i * w.step - w.before, end = begin + w.size;
    const int64_t inside = counts_pad ? std::min(end, extent + padding) - begin
                                      : std::min(end, extent) - std::max<int64_t>(begin, 0);
    counts.push_back(static_cast<double>(std::max<int64_t>(inside, 1)));
  }
  return counts;
}

// The products of one number per dim, at every place of the last dims of y.
DTensor ProductsOf(const DTensor& y, const std::vector<std::vector<double>>& factors) {
  Dims shape;
  for (const auto& f : factors) shape.push_back(static_cast<int64_t>(f.size()));
  const std::vector<Placement> replicated(static_cast<size_t>(y.layout().num_axes()));
  return FromBoxes(y.mesh(), shape, y.dtype(), replicated, [&](const Box& box, Tensor& local) {
    const auto product = [&](const Dims& index) {
      double value = 1;
      for (int d = 0; d < index.size(); ++d) value *= factors[d][index[d]];
      return value;
    };
    internal::FillFromIndices(box, product, local);
  });
}

DTensor AvgPool(const char* op, int rank, const DTensor& x, const AvgPoolOptions& options) {
  const std::vector<Windows> windows =
      PoolWindows(op, x, rank, options.kernel, options.stride, options.padding,
                  /*given_dilation=*/{1}, options.ceil_mode);
  if (options.divisor == 0) ThrowInvalid(op, ": `divisor` is 0 for ", x.ToString());
  const int first = internal::FirstSpatial(x, rank);
  return InF32IfSmall(op, {x}, [&](const Operands& o) {
    std::vector<std::vector<double>> counts;
    DTensor y = internal::PadLast(o[0], windows);
    for (int d = 0; d < rank; ++d) {
      const Windows& w = windows[d];
      y = Sum(internal::UnfoldAt(y, first + d, first + d, {w.size, w.step, w.dilation}),
              {first + d});
      counts.push_back(Counts(w, x.shape()[first + d], w.before, options.count_include_pad));
    }
    if (options.divisor) return Div(y, static_cast<double>(*options.divisor));
    return Div(y, ProductsOf(y, counts));
  });
}

// ---- maxima -------------------------------------------------------------------------------------

// The indices of one dim that each of `count` windows holds, `size` for each, where those outside
// are the first one again.
struct Sources {
  Sources(int64_t count, int64_t size)
      : count(count), size(size), indices(static_cast<size_t>(count * size)) {}
  // Element k of window i. Windows are next to each other, for long runs.
  int64_t& At(int64_t i, int64_t k) { return indices[k * count + i]; }
  int64_t At(int64_t i, int64_t k) const { return indices[k * count + i]; }

  int64_t count, size;
  std::vector<int64_t> indices;
};

Sources SourcesOf(const char* op, const DTensor& x, int dim, const Windows& w) {
  const int64_t extent = x.shape()[dim];
  Sources sources(w.CountIn(extent), w.size);
  for (int64_t i = 0; i < sources.count; ++i) {
    const int64_t begin = i * w.step - w.before;
    const int64_t skipped = begin < 0 ? (-begin + w.dilation - 1) / w.dilation : 0;
    const int64_t first = begin + skipped * w.dilation;
    if (skipped >= w.size || first >= extent) {
      ThrowInvalid(op, ": window ", i, " of dim ", dim, " of ", x.ToString(),
                   " holds padding alone");
    }
    for (int64_t k = 0; k < w.size; ++k) {
      const int64_t index = begin + k * w.dilation;
      sources.At(i, k) = index < 0 || index >= extent ? first : index;
    }
  }
  return sources;
}

Sources AdaptiveSources(int64_t extent, int64_t count) {
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i)
    size = std::max(size, AdaptiveEnd(i, extent, count) - AdaptiveBegin(i, extent, count));
  Sources sources(count, size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = AdaptiveBegin(i, extent, count), end = AdaptiveEnd(i, extent, count);
    for (int64_t k = 0; k < size; ++k) sources.At(i, k) = begin + k < end ? begin + k : begin;
  }
  return sources;
}

// The elements of each window as dim 2. Shape: [n, c, spatial..] -> [n, c, all, counts..].
DTensor ElementsOf(const DTensor& x, const std::vector<Sources>& sources) {
  const auto rank = static_cast<int>(sources.size());
  DTensor y = x;
  for (int d = 0; d < rank; ++d) {
    const auto extent = static_cast<int64_t>(sources[d].indices.size());
    y = internal::TakeRuns(kPoolWindows, y, 2 + d, internal::RunsOf(sources[d].indices), extent);
  }
  for (int d = rank - 1; d >= 0; --d) y = Unflatten(y, 2 + d, {sources[d].size, sources[d].count});
  std::vector<int> order = {0, 1};
  for (int d = 0; d < rank; ++d) order.push_back(2 + 2 * d);
  for (int d = 0; d < rank; ++d) order.push_back(3 + 2 * d);
  return Flatten(Permute(y, order), 2, 1 + rank);
}

// Where these elements come from, in row-major order of the spatial dims. Shape: [all, counts..].
DTensor PlacesOf(const DTensor& x, const std::vector<Sources>& sources) {
  const auto rank = static_cast<int>(sources.size());
  Dims shape = {1};
  for (const Sources& s : sources) {
    shape[0] *= s.size;
    shape.push_back(s.count);
  }
  const auto place = [&](const Dims& index) {
    int64_t rest = index[0], result = 0, stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      result += sources[d].At(index[1 + d], rest % sources[d].size) * stride;
      rest /= sources[d].size;
      stride *= x.shape()[2 + d];
    }
    return result;
  };
  const std::vector<Placement> replicated(static_cast<size_t>(x.layout().num_axes()));
  return FromBoxes(x.mesh(), shape, DType::kI64, replicated, [&](const Box& box, Tensor& local) {
    internal::FillFromIndices(box, place, local);
  });
}

MaxPoolResult MaxOver(const DTensor& given, int rank, const std::vector<Sources>& sources) {
  DTensor x = internal::WithBatch(given, rank);
  // Of summands the sum is needed: reduced here, and not once per window that an element is in.
  if (x.layout().HasPartial()) x = Maximum(x, -std::numeric_limits<double>::infinity());
  const DTensor elements = ElementsOf(x.Detach(), sources);
  const DTensor max = Max(elements, {2}, /*keepdim=*/true);
  const DTensor hits = LogicalOr(Compare(CompareOp::kEqual, elements, max), IsNan(elements));
  const DTensor lines = Flatten(x, 2);
  const DTensor none = internal::ScalarOn(x, DType::kI64, static_cast<double>(lines.dim(2)));
  const DTensor indices = Min(Where(hits, PlacesOf(x, sources), none), {2});
  const DTensor values = Reshape(Gather(lines, 2, Flatten(indices, 2)), indices.shape());
  return {internal::WithoutBatch(values, given, rank),
          internal::WithoutBatch(indices, given, rank)};
}

MaxPoolResult MaxPool(const char* op, int rank, const DTensor& x, const MaxPoolOptions& options) {
  const std::vector<Windows> windows =
      PoolWindows(op, x, rank, options.kernel, options.stride, options.padding, options.dilation,
                  options.ceil_mode);
  std::vector<Sources> sources;
  for (int d = 0; d < rank; ++d)
    sources.push_back(SourcesOf(op, x, internal::FirstSpatial(x, rank) + d, windows[d]));
  return MaxOver(x, rank, sources);
}

// ---- adaptive -----------------------------------------------------------------------------------

// The numbers of windows per spatial dim.
std::vector<int64_t> AdaptiveSizes(const char* op, const DTensor& x, int rank,
                                   const std::vector<int64_t>& given) {
  internal::CheckSpatial(op, x, rank);
  std::vector<int64_t> sizes = PerSpatialDim(op, x, "sizes", given, rank, -1);
  for (int d = 0; d < rank; ++d) {
    const int64_t extent = x.shape()[internal::FirstSpatial(x, rank) + d];
    if (sizes[d] == -1) sizes[d] = extent;
    if (sizes[d] < 1 || extent < 1) {
      ThrowInvalid(op, ": `sizes` is ", sizes[d], " for an extent of ", extent, " of ",
                   x.ToString(), ", expected both to be positive");
    }
  }
  return sizes;
}

DTensor AdaptiveAvgPool(const char* op, int rank, const DTensor& x,
                        const std::vector<int64_t>& given) {
  const std::vector<int64_t> sizes = AdaptiveSizes(op, x, rank, given);
  return InF32IfSmall(op, {x}, [&](const Operands& o) {
    DTensor y = o[0];
    for (int d = 0; d < rank; ++d)
      y = internal::AdaptiveMean(y, internal::FirstSpatial(x, rank) + d, sizes[d]);
    return y;
  });
}

MaxPoolResult AdaptiveMaxPool(const char* op, int rank, const DTensor& x,
                              const std::vector<int64_t>& given) {
  const std::vector<int64_t> sizes = AdaptiveSizes(op, x, rank, given);
  std::vector<Sources> sources;
  for (int d = 0; d < rank; ++d)
    sources.push_back(AdaptiveSources(x.shape()[internal::FirstSpatial(x, rank) + d], sizes[d]));
  return MaxOver(x, rank, sources);
}

}  // namespace

DTensor AvgPool1d(const DTensor& x, const AvgPoolOptions& options) {
  return AvgPool("avg_pool1d", 1, x, options);
}
DTensor AvgPool2d(const DTensor& x, const AvgPoolOptions& options) {
  return AvgPool("avg_pool2d", 2, x, options);
}
DTensor AvgPool3d(const DTensor& x, const AvgPoolOptions& options) {
  return AvgPool("avg_pool3d", 3, x, options);
}

MaxPoolResult MaxPool1d(const DTensor& x, const MaxPoolOptions& options) {
  return MaxPool("max_pool1d", 1, x, options);
}
MaxPoolResult MaxPool2d(const DTensor& x, const MaxPoolOptions& options) {
  return MaxPool("max_pool2d", 2, x, options);
}
MaxPoolResult MaxPool3d(const DTensor& x, const MaxPoolOptions& options) {
  return MaxPool("max_pool3d", 3, x, options);
}

DTensor AdaptiveAvgPool1d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveAvgPool("adaptive_avg_pool1d", 1, x, sizes);
}
DTensor AdaptiveAvgPool2d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveAvgPool("adaptive_avg_pool2d", 2, x, sizes);
}
DTensor AdaptiveAvgPool3d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveAvgPool("adaptive_avg_pool3d", 3, x, sizes);
}

MaxPoolResult AdaptiveMaxPool1d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveMaxPool("adaptive_max_pool1d", 1, x, sizes);
}
MaxPoolResult AdaptiveMaxPool2d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveMaxPool("adaptive_max_pool2d", 2, x, sizes);
}
MaxPoolResult AdaptiveMaxPool3d(const DTensor& x, const std::vector<int64_t>& sizes) {
  return AdaptiveMaxPool("adaptive_max_pool3d", 3, x, sizes);
}

}  // namespace shardmesh
