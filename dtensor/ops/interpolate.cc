// SPDX-License-Identifier: Apache-2.0
//
// Each dim by itself: elements are taken by index, and in all modes but the nearest a few
// neighbours are summed with weights. A product with a matrix of weights would be one call, and
// spread an infinity over the whole line, as 0 times it is nan.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/from_indices.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/internal/spatial.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"

namespace shardmesh {

using internal::InF32IfSmall;
using internal::Operands;

namespace {

constexpr Op kInterpolate{"interpolate"};

// From places of the result to places of x, along one dim.
struct Line {
  int64_t extent, count;
  double scale;   // Elements of x per element of the result.
  bool is_ratio;  // The scale is extent / count.

  // The element at the beginning of element i, or at its middle.
  int64_t Nearest(int64_t i, bool middle) const {
    const int64_t halves = 2 * i + (middle ? 1 : 0);
    if (is_ratio) return halves * extent / (2 * count);
    const auto place = static_cast<int64_t>(static_cast<double>(halves) / 2 * scale);
    return std::min(place, extent - 1);
  }
  // Where the centre of element i lies, or with aligned corners its first edge.
  double Place(int64_t i, bool align_corners) const {
    const auto place = static_cast<double>(i);
    return align_corners ? place * scale : (place + 0.5) * scale - 0.5;
  }
};

// Keys' kernel of four elements around a place `t` beyond the second, with a = -0.75.
void CubicWeights(double t, double (&weights)[4]) {
  constexpr double kA = -0.75;
  const auto near = [](double d) { return ((kA + 2) * d - (kA + 3)) * d * d + 1; };
  const auto far = [](double d) { return ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA; };
  weights[0] = far(1 + t);
  weights[1] = near(t);
  weights[2] = near(1 - t);
  weights[3] = far(2 - t);
}

// For each element of the result the neighbours in x, and what they count.
struct Neighbours {
  int count;  // Of the four.
  std::array<std::vector<int64_t>, 4> places;
  std::array<std::vector<double>, 4> weights;
};

Neighbours NeighboursOf(const Line& line, InterpolateMode mode, bool align_corners) {
  const bool is_cubic = mode == InterpolateMode::kCubic;
  Neighbours result{is_cubic ? 4 : 2, {}, {}};
  for (int64_t i = 0; i < line.count; ++i) {
    double place = line.Place(i, align_corners);
    if (!is_cubic) place = std::clamp(place, 0.0, static_cast<double>(line.extent - 1));
    const auto below = static_cast<int64_t>(std::floor(place));
    const double t = place - static_cast<double>(below);
    double weights[4] = {1 - t, t};
    if (is_cubic) CubicWeights(t, weights);
    for (int k = 0; k < result.count; ++k) {
      const int64_t neighbour = is_cubic ? below - 1 + k : below + k;
      result.places[k].push_back(std::clamp<int64_t>(neighbour, 0, line.extent - 1));
      result.weights[k].push_back(weights[k]);
    }
  }
  return result;
}

// A constant vector along `dim`, that broadcasts to x.
DTensor VectorAlong(const DTensor& x, int dim, const std::vector<double>& values) {
  Dims shape;
  for (int d = 0; d < x.num_dims(); ++d)
    shape.push_back(d == dim ? static_cast<int64_t>(values.size()) : 1);
  const std::vector<Placement> replicated(static_cast<size_t>(x.layout().num_axes()));
  return FromBoxes(x.mesh(), shape, x.dtype(), replicated, [&](const Box& box, Tensor& local) {
    internal::FillFromIndices(
        box, [&](const Dims& index) { return values[static_cast<size_t>(index[dim])]; }, local);
  });
}

DTensor WeightedNeighbours(const DTensor& x, int dim, const Line& line, InterpolateMode mode,
                           bool align_corners) {
  const Neighbours neighbours = NeighboursOf(line, mode, align_corners);
  DTensor sum;
  for (int k = 0; k < neighbours.count; ++k) {
    const DTensor taken = internal::TakeRuns(kInterpolate, x, dim,
                                             internal::RunsOf(neighbours.places[k]), line.count);
    const DTensor term = Mul(taken, VectorAlong(x, dim, neighbours.weights[k]));
    sum = sum ? Add(sum, term) : term;
  }
  return sum;
}

DTensor AlongLine(const DTensor& x, int dim, const Line& line, InterpolateMode mode,
                  bool align_corners) {
  if (mode == InterpolateMode::kArea) return internal::AdaptiveMean(x, dim, line.count);
  if (mode == InterpolateMode::kNearest || mode == InterpolateMode::kNearestExact) {
    std::vector<int64_t> map;
    for (int64_t i = 0; i < line.count; ++i)
      map.push_back(line.Nearest(i, mode == InterpolateMode::kNearestExact));
    return internal::TakeRuns(kInterpolate, x, dim, internal::RunsOf(map), line.count);
  }
  return WeightedNeighbours(x, dim, line, mode, align_corners);
}

int SpatialRank(const DTensor& x) {
  internal::CheckUsable(kInterpolate.name, x);
  const int rank = x.num_dims() - 2;
  if (rank < 1) {
    ThrowInvalid(kInterpolate.name, ": ", x.ToString(),
                 ", expected dims beyond batch and channels");
  }
  internal::CheckSpatial(kInterpolate.name, x, rank);
  return rank;
}

// `factors` are empty where the ratio of the extents holds.
DTensor InterpolateTo(const DTensor& x, const std::vector<int64_t>& sizes,
                      const std::vector<double>& factors, InterpolateMode mode,
                      bool align_corners) {
  const int rank = x.num_dims() - 2;
  if (align_corners && mode != InterpolateMode::kLinear && mode != InterpolateMode::kCubic) {
    ThrowInvalid(kInterpolate.name, ": `align_corners` is for linear and cubic modes alone, for ",
                 x.ToString());
  }
  std::vector<Line> lines;
  for (int d = 0; d < rank; ++d) {
    const int64_t extent = x.shape()[2 + d], count = sizes[d];
    if (extent < 1) {
      ThrowInvalid(kInterpolate.name, ": dim ", 2 + d, " of ", x.ToString(),
                   " is empty, expected elements");
    }
    const auto from = static_cast<double>(extent), to = static_cast<double>(count);
    const double scale = align_corners     ? (count > 1 ? (from - 1) / (to - 1) : 0)
                         : factors.empty() ? from / to
                                           : 1 / factors[d];
    lines.push_back({extent, count, scale, factors.empty()});
  }
  return InF32IfSmall(kInterpolate.name, {x}, [&](const Operands& o) {
    DTensor y = o[0];
    for (int d = 0; d < rank; ++d) y = AlongLine(y, 2 + d, lines[d], mode, align_corners);
    return y;
  });
}

}  // namespace

DTensor Interpolate(const DTensor& x, const std::vector<int64_t>& given, InterpolateMode mode,
                    bool align_corners) {
  const int rank = SpatialRank(x);
  return InterpolateTo(x, internal::PerSpatialDim(kInterpolate.name, x, "sizes", given, rank, 1),
                       {}, mode, align_corners);
}

DTensor InterpolateBy(const DTensor& x, const std::vector<double>& given, InterpolateMode mode,
                      bool align_corners) {
  const int rank = SpatialRank(x);
  const auto count = static_cast<int>(given.size());
  if (count != 1 && count != rank) {
    ThrowInvalid(kInterpolate.name, ": ", count, " values of `factors`, expected one, or one for ",
                 "each of ", rank, " spatial dims of ", x.ToString());
  }
  std::vector<double> factors;
  std::vector<int64_t> sizes;
  for (int d = 0; d < rank; ++d) {
    factors.push_back(given[count == 1 ? 0 : d]);
    const double size = std::floor(static_cast<double>(x.shape()[2 + d]) * factors[d]);
    if (!(size >= 1 && size < 0x1p31)) {
      ThrowInvalid(kInterpolate.name, ": `factors` is ", factors[d], " for dim ", 2 + d, " of ",
                   x.ToString(), ", expected a positive number that leaves an element");
    }
    sizes.push_back(static_cast<int64_t>(size));
  }
  return InterpolateTo(x, sizes, factors, mode, align_corners);
}

}  // namespace shardmesh
