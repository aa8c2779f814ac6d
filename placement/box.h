// SPDX-License-Identifier: Apache-2.0
//
// A half-open hyper-rectangle of global indices: the part of a tensor that one rank holds. May be
// empty.
#ifndef SHARDMESH_PLACEMENT_BOX_H_
#define SHARDMESH_PLACEMENT_BOX_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>

#include "shardmesh/base/dims.h"

namespace shardmesh {

/// Value type. begin[d] <= end[d] in every dim.
struct Box {
  Dims begin;
  Dims end;

  static Box Whole(const Dims& shape);

  int num_dims() const { return begin.size(); }
  Dims Extents() const;
  int64_t NumElements() const { return Extents().NumElements(); }
  bool IsEmpty() const { return NumElements() == 0; }
  /// True if every index of `other` is in this box; an empty box is contained in any.
  bool Contains(const Box& other) const;
  /// "[0:3, 4:8]".
  std::string ToString() const;

  friend bool operator==(const Box&, const Box&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Box& box) {
    return H::combine(std::move(h), box.begin, box.end);
  }
};

/// The intersection; empty (begin == end in some dim) if the boxes are disjoint.
Box Intersect(const Box& a, const Box& b);

/// The position of `inner` in the local tensor of `outer`, which contains it: indices relative to
/// the beginning of `outer`. An empty box may be anywhere; the result is inside `outer` and keeps
/// its extents as far as they fit.
Box Relative(const Box& inner, const Box& outer);

/// One chunk of ceil-chunking.
struct ChunkRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Chunk `index` of [begin, end) split into `count` chunks of ceil((end - begin) / count). Unlike
/// torch.chunk there are always `count` chunks: trailing ones may be short or empty. An empty chunk
/// is at `end`. 0 <= index < count.
ChunkRange Chunk(ChunkRange whole, int index, int count);

std::ostream& operator<<(std::ostream& out, const Box& box);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_BOX_H_
