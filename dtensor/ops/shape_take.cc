// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/from_indices.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {

using internal::IndexRun;
using internal::TakeRuns;

namespace {

constexpr Op kFlip{"flip"}, kRoll{"roll"}, kRepeat{"repeat"};
constexpr Op kRepeatInterleave{"repeat_interleave"}, kSliceScatter{"slice_scatter"};

}  // namespace

DTensor Flip(const DTensor& x, const std::vector<int>& dims) {
  internal::CheckUsable(kFlip.name, x);
  uint64_t flipped = 0;
  DTensor y = x;
  for (const int given : dims) {
    const int dim = internal::DimOf(kFlip.name, x, given);
    if (((flipped >> dim) & 1u) != 0)
      ThrowInvalid(kFlip.name, ": dim ", given, " of ", x.ToString(), " is given twice");
    flipped |= uint64_t{1} << dim;
    const int64_t n = x.shape()[dim];
    if (n > 1) y = TakeRuns(kFlip, y, dim, {{0, n - 1, -1, n}}, n);
  }
  return y;
}

DTensor FlipLr(const DTensor& x) {
  internal::CheckUsable("fliplr", x);
  internal::CheckRankAtLeast("fliplr", x, 2);
  return Flip(x, {1});
}

DTensor FlipUd(const DTensor& x) {
  internal::CheckUsable("flipud", x);
  internal::CheckRankAtLeast("flipud", x, 1);
  return Flip(x, {0});
}

DTensor Roll(const DTensor& x, const std::vector<int64_t>& shifts, const std::vector<int>& dims) {
  internal::CheckUsable(kRoll.name, x);
  if (shifts.size() != dims.size()) {
    ThrowInvalid(kRoll.name, ": ", shifts.size(), " shifts for ", dims.size(), " dims of ",
                 x.ToString());
  }
  DTensor y = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int dim = internal::DimOf(kRoll.name, x, dims[i]);
    const int64_t n = x.shape()[dim];
    if (n == 0) continue;
    const int64_t shift = (shifts[i] % n + n) % n;
    if (shift == 0) continue;
    y = TakeRuns(kRoll, y, dim, {{0, n - shift, 1, shift}, {shift, 0, 1, n - shift}}, n);
  }
  return y;
}

DTensor Roll(const DTensor& x, int64_t shift) {
  internal::CheckUsable(kRoll.name, x);
  return Reshape(Roll(Ravel(x), {shift}, {0}), x.shape());
}

DTensor Rot90(const DTensor& x, int64_t times, int given0, int given1) {
  internal::CheckUsable("rot90", x);
  const int dim0 = internal::DimOf("rot90", x, given0);
  const int dim1 = internal::DimOf("rot90", x, given1);
  if (dim0 == dim1)
    ThrowInvalid("rot90: dims ", given0, " and ", given1, " of ", x.ToString(), " are the same");
  switch ((times % 4 + 4) % 4) {
    case 1:
      return Transpose(Flip(x, {dim1}), dim0, dim1);
    case 2:
      return Flip(x, {dim0, dim1});
    case 3:
      return Flip(Transpose(x, dim0, dim1), {dim1});
    default:
      return x;
  }
}

DTensor Repeat(const DTensor& x, const std::vector<int64_t>& counts) {
  internal::CheckUsable(kRepeat.name, x);
  const int num_dims = static_cast<int>(counts.size()), lead = num_dims - x.num_dims();
  if (lead < 0) {
    ThrowInvalid(kRepeat.name, ": ", num_dims, " counts, expected at least as many as dims of ",
                 x.ToString());
  }
  Dims shape;
  for (int d = 0; d < num_dims; ++d) shape.push_back(d < lead ? 1 : x.shape()[d - lead]);
  DTensor y = lead > 0 ? Reshape(x, shape) : x;
  for (int d = 0; d < num_dims; ++d) {
    const int64_t n = shape[d], count = counts[d];
    if (count < 0) ThrowInvalid(kRepeat.name, ": negative count ", count, " for ", x.ToString());
    if (count == 1) continue;
    std::vector<IndexRun> runs;
    if (n == 1 && count > 0) runs.push_back({0, 0, 0, count});
    for (int64_t i = 0; i < count && n > 1; ++i) runs.push_back({i * n, 0, 1, n});
    y = TakeRuns(kRepeat, y, d, runs, n * count);
  }
  return y;
}

DTensor Tile(const DTensor& x, const std::vector<int64_t>& counts) {
  internal::CheckUsable("tile", x);
  std::vector<int64_t> all = counts;
  while (static_cast<int>(all.size()) < x.num_dims()) all.insert(all.begin(), 1);
  return Repeat(x, all);
}

DTensor RepeatInterleave(const DTensor& x, int64_t repeats, std::optional<int> given) {
  internal::CheckUsable(kRepeatInterleave.name, x);
  if (!given) return RepeatInterleave(Ravel(x), repeats, 0);
  const int dim = internal::DimOf(kRepeatInterleave.name, x, *given);
  if (repeats < 0)
    ThrowInvalid(kRepeatInterleave.name, ": ", repeats, " repetitions of ", x.ToString());
  Dims shape = x.shape();
  shape.insert(dim + 1, repeats);
  return Flatten(Expand(Unsqueeze(x, dim + 1), shape), dim, dim + 1);
}

DTensor RepeatInterleave(const DTensor& x, const std::vector<int64_t>& repeats,
                         std::optional<int> given) {
  internal::CheckUsable(kRepeatInterleave.name, x);
  if (!given) return RepeatInterleave(Ravel(x), repeats, 0);
  const int dim = internal::DimOf(kRepeatInterleave.name, x, *given);
  if (repeats.size() == 1) return RepeatInterleave(x, repeats[0], dim);
  if (static_cast<int64_t>(repeats.size()) != x.shape()[dim]) {
    ThrowInvalid(kRepeatInterleave.name, ": ", repeats.size(), " numbers of repetitions for dim ",
                 dim, " of ", x.ToString());
  }
  std::vector<IndexRun> runs;
  int64_t extent = 0;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] < 0)
      ThrowInvalid(kRepeatInterleave.name, ": ", repeats[i], " repetitions of ", x.ToString());
    if (repeats[i] > 0) runs.push_back({extent, static_cast<int64_t>(i), 0, repeats[i]});
    extent += repeats[i];
  }
  return TakeRuns(kRepeatInterleave, x, dim, runs, extent);
}

DTensor SliceScatter(const DTensor& x, const DTensor& source, int given,
                     std::optional<int64_t> given_start, std::optional<int64_t> given_end,
                     int64_t step) {
  internal::CheckUsable(kSliceScatter.name, x);
  internal::CheckUsable(kSliceScatter.name, source);
  const int dim = internal::DimOf(kSliceScatter.name, x, given);
  const int64_t n = x.shape()[dim];
  const auto bound = [n](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + n : index, 0, n);
  };
  const int64_t start = bound(given_start.value_or(0)), end = bound(given_end.value_or(n));
  if (step < 1) ThrowInvalid(kSliceScatter.name, ": expected a positive step, got ", step);
  const int64_t count = end > start ? (end - start - 1) / step + 1 : 0;
  Dims expected = x.shape();
  expected[dim] = count;
  if (!(source.shape() == expected)) {
    ThrowInvalid(kSliceScatter.name, ": ", source.ToString(), " does not fit ", expected.ToString(),
                 ", the slice of ", x.ToString());
  }
  const auto is_replaced = [=](int64_t i) {
    return i >= start && i < start + count * step && (i - start) % step == 0;
  };
  std::vector<IndexRun> runs;
  if (step == 1 && count > 0) runs.push_back({start, 0, 1, count});
  for (int64_t k = 0; k < count && step > 1; ++k) runs.push_back({start + k * step, k, 1, 1});
  const DTensor placed = TakeRuns(kSliceScatter, source, dim, runs, n);
  Dims mask_shape = Dims::Filled(x.num_dims() - dim, 1);
  mask_shape[0] = n;
  const DTensor mask =
      FromBoxes(x.mesh(), mask_shape, DType::kBool, std::vector<Placement>(x.layout().num_axes()),
                [&](const Box& box, Tensor& local) {
                  internal::FillFromIndices(
                      box, [&](const Dims& index) { return is_replaced(index[0]); }, local);
                });
  return Where(mask, placed, x);
}

DTensor SelectScatter(const DTensor& x, const DTensor& source, int given, int64_t index) {
  internal::CheckUsable("select_scatter", x);
  internal::CheckUsable("select_scatter", source);
  const int dim = internal::DimOf("select_scatter", x, given);
  const int64_t n = x.shape()[dim];
  if (index < -n || index >= n)
    ThrowInvalid("select_scatter: index ", index, " is not within dim ", dim, " of ", x.ToString());
  const int64_t start = index < 0 ? index + n : index;
  Dims expected = x.shape();
  expected.erase(dim);
  if (!(source.shape() == expected)) {
    ThrowInvalid("select_scatter: ", source.ToString(), " does not fit ", expected.ToString(),
                 ", an index of ", x.ToString());
  }
  return SliceScatter(x, Unsqueeze(source, dim), dim, start, start + 1);
}

}  // namespace shardmesh
