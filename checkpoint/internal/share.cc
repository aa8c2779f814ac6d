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

Box ReplicaShare::PartOf(int of_replica) const {
  Box part = box;
  if (dim >= 0) {
    const ChunkRange chunk = Chunk({box.begin[dim], box.end[dim]}, of_replica, replicas);
    part.begin[dim] = chunk.begin;
    part.end[dim] = chunk.end;
  }
  return part;
}

ReplicaShare ShareMaker::NextShare(const Layout& layout, std::span<const int> coord,
                                   int64_t element_bytes, const Box& region) {
  ReplicaShare share;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const int size = layout.mesh().size(axis);
    if (!layout.placement(axis).IsReplicate() || size == 1) continue;
    share.axes.push_back(axis);
    share.replicas *= size;
    share.replica = share.replica * size + coord[axis];
  }
  share.box = Intersect(layout.LocalBox(coord), region);
  if (share.replicas == 1) return share;

  // A region takes part with the bytes of the whole tensor: only the balance depends on it.
  const int64_t largest = layout.MaxLocalShape().NumElements() * element_bytes;
  // All replicas have this box, so all decide alike.
  const int dim = DimToSplit(share.box, share.replicas);
  if (largest >= share.replicas * kMinPartBytes && !share.box.IsEmpty() && dim >= 0) {
    share.dim = dim;
    return share;
  }
  Queue& given = given_[{share.axes, share.replicas}];
  for (int r = static_cast<int>(given.size()); r < share.replicas; ++r) given.emplace(0, r);
  const auto [bytes, least] = given.top();
  given.pop();
  given.emplace(bytes + largest, least);
  share.owner = least;
  return share;
}

std::optional<Box> ShareMaker::Next(const Layout& layout, std::span<const int> coord,
                                    int64_t element_bytes, const Box& region) {
  if (region.IsEmpty()) {
    const bool is_origin = std::all_of(coord.begin(), coord.end(), [](int c) { return c == 0; });
    return is_origin ? std::optional(region) : std::nullopt;
  }
  const ReplicaShare share = NextShare(layout, coord, element_bytes, region);
  if (!share.HasPart(share.replica)) return std::nullopt;
  const Box part = share.PartOf(share.replica);
  return part.IsEmpty() ? std::nullopt : std::optional(part);
}

}  // namespace shardmesh::checkpoint::internal
