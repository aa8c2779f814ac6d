// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/share.h"

#include <algorithm>

namespace shardmesh::checkpoint::internal {
namespace {

// Of each replica's part; smaller ones are not worth a piece of their own.
constexpr int64_t kMinPartBytes = 64 * 1024;

// The outermost dim that all replicas can share, whose parts are the longest runs; -1 if none.
int DimToSplit(const Box& box, int replicas) {
  for (int d = 0; d < box.num_dims(); ++d) {
    if (box.end[d] - box.begin[d] >= replicas) return d;
  }
  return -1;
}

}  // namespace

std::optional<Box> ShareMaker::Next(const Layout& layout, std::span<const int> coord,
                                    int64_t element_bytes, const Box& region) {
  std::vector<int> axes;
  int replicas = 1, replica = 0;
  bool is_origin = true;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    is_origin &= coord[axis] == 0;
    const int size = layout.mesh().size(axis);
    if (!layout.placement(axis).IsReplicate() || size == 1) continue;
    axes.push_back(axis);
    replicas *= size;
    replica = replica * size + coord[axis];
  }
  if (region.IsEmpty()) return is_origin ? std::optional(region) : std::nullopt;
  Box box = Intersect(layout.LocalBox(coord), region);
  // A region takes part with the bytes of the whole tensor: only the balance depends on it.
  const int64_t largest = layout.MaxLocalShape().NumElements() * element_bytes;
  const auto unless_empty = [&] { return box.IsEmpty() ? std::nullopt : std::optional(box); };
  if (replicas == 1) return unless_empty();

  // All replicas have this box, so all decide alike.
  const int dim = DimToSplit(box, replicas);
  const bool is_split = largest >= replicas * kMinPartBytes && !box.IsEmpty() && dim >= 0;
  if (is_split) {
    const ChunkRange part = Chunk({box.begin[dim], box.end[dim]}, replica, replicas);
    box.begin[dim] = part.begin;
    box.end[dim] = part.end;
    return unless_empty();
  }
  std::vector<int64_t>& given = given_[axes];
  given.resize(static_cast<size_t>(replicas), 0);
  const auto least = std::min_element(given.begin(), given.end());
  *least += largest;
  return least - given.begin() == replica ? unless_empty() : std::nullopt;
}

}  // namespace shardmesh::checkpoint::internal
