// SPDX-License-Identifier: Apache-2.0
//
// What ops over windows share: options per spatial dim, and tensors [batch, channels, spatial..].
#ifndef SHARDMESH_DTENSOR_INTERNAL_SPATIAL_H_
#define SHARDMESH_DTENSOR_INTERNAL_SPATIAL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::internal {

/// Windows along one dim, of which `before` and `after` are the padding; negative ones crop.
struct Windows {
  int64_t size = 1, step = 1, dilation = 1, before = 0, after = 0;

  /// From the first element of a window to its last.
  int64_t Span() const { return size == 0 ? 0 : dilation * (size - 1) + 1; }
  /// How many fit `extent` elements; none if negative.
  int64_t CountIn(int64_t extent) const {
    const int64_t room = extent + before + after - Span();
    return room < 0 ? 0 : room / step + 1;
  }
};

/// `values` of an option, one for each of `rank` spatial dims, where a single one stands for all.
/// Errors: throws Error(kInvalidArgument) naming `op`, x, the option and the value unless each is
/// in [least, 2^31).
std::vector<int64_t> PerSpatialDim(const char* op, const DTensor& x, const char* option,
                                   const std::vector<int64_t>& values, int rank, int64_t least);

/// Throws Error(kInvalidArgument) naming `op` unless x is of a floating dtype and has `rank`
/// spatial dims after the channels, with or without a batch.
void CheckSpatial(const char* op, const DTensor& x, int rank);
/// The first spatial dim.
inline int FirstSpatial(const DTensor& x, int rank) { return x.num_dims() - rank; }

/// x with a batch of one if it has none; and a result for x without it.
DTensor WithBatch(const DTensor& x, int rank);
DTensor WithoutBatch(const DTensor& y, const DTensor& x, int rank);

/// Throws Error(kInvalidArgument) naming `op` if no window fits some spatial dim.
void CheckWindowsFit(const char* op, const DTensor& x, std::span<const Windows> windows);
/// Unfold of `dim`, without checks, with the elements of windows as dim `place` of the result; and
/// its adjoint. Long runs in memory stay long where `place` comes before `dim`. Paddings are 0.
DTensor UnfoldAt(const DTensor& x, int dim, int place, const Windows& windows);
DTensor FoldAt(const DTensor& x, int dim, int place, int64_t extent, const Windows& windows);

/// Zeros around the last dims of x, one for each of `windows`; and their windows, whose elements
/// are the dims from `place` on. Shape: [.., spatial..] -> [.., sizes.., .., counts..].
DTensor PadLast(const DTensor& x, std::span<const Windows> windows);
DTensor UnfoldSpatial(const DTensor& x, std::span<const Windows> windows, int place);

/// Window i of `count` over `extent` elements, as adaptive pooling cuts them.
inline int64_t AdaptiveBegin(int64_t i, int64_t extent, int64_t count) {
  return i * extent / count;
}
inline int64_t AdaptiveEnd(int64_t i, int64_t extent, int64_t count) {
  return ((i + 1) * extent + count - 1) / count;
}
/// Means over these windows along `dim`.
DTensor AdaptiveMean(const DTensor& x, int dim, int64_t count);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_SPATIAL_H_
