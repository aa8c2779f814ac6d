// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/box.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/check.h"

namespace shardmesh {

Box Box::Whole(const Dims& shape) { return {Dims::Filled(shape.size(), 0), shape}; }

Dims Box::Extents() const {
  Dims extents = end;
  for (int d = 0; d < num_dims(); ++d) extents[d] -= begin[d];
  return extents;
}

bool Box::Contains(const Box& other) const {
  SHARDMESH_CHECK(num_dims() == other.num_dims()) << *this << " and " << other << " differ in rank";
  if (other.IsEmpty()) return true;
  for (int d = 0; d < num_dims(); ++d) {
    if (other.begin[d] < begin[d] || other.end[d] > end[d]) return false;
  }
  return true;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int d = 0; d < num_dims(); ++d)
    absl::StrAppend(&text, d > 0 ? ", " : "", begin[d], ":", end[d]);
  return text + "]";
}

Box Intersect(const Box& a, const Box& b) {
  SHARDMESH_CHECK(a.num_dims() == b.num_dims()) << a << " and " << b << " differ in rank";
  Box common = a;
  for (int d = 0; d < a.num_dims(); ++d) {
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    common.end[d] = std::max(common.begin[d], std::min(a.end[d], b.end[d]));
  }
  return common;
}

Box Relative(const Box& inner, const Box& outer) {
  SHARDMESH_CHECK(outer.Contains(inner)) << inner << " is not inside " << outer;
  Box relative = inner;
  for (int d = 0; d < inner.num_dims(); ++d) {
    // Only an empty box can be outside `outer`; it moves to the nearest position inside.
    const int64_t extent = outer.end[d] - outer.begin[d];
    relative.begin[d] = std::clamp<int64_t>(inner.begin[d] - outer.begin[d], 0, extent);
    relative.end[d] = std::clamp<int64_t>(inner.end[d] - outer.begin[d], 0, extent);
  }
  return relative;
}

ChunkRange Chunk(ChunkRange whole, int index, int count) {
  SHARDMESH_CHECK(whole.begin <= whole.end && index >= 0 && index < count)
      << "chunk " << index << " of " << count << " of " << whole.begin << ".." << whole.end;
  const int64_t length = whole.end - whole.begin;
  const int64_t chunk = length / count + (length % count != 0);  // ceil(length / count)
  const int64_t begin = std::min(whole.begin + index * chunk, whole.end);
  return {begin, std::min(begin + chunk, whole.end)};
}

std::ostream& operator<<(std::ostream& out, const Box& box) { return out << box.ToString(); }

}  // namespace shardmesh
