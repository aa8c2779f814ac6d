// SPDX-License-Identifier: Apache-2.0
//
// Which rank writes what: every box of a tensor once over all its replicas, which share the bytes.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "shardmesh/placement/box.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh::checkpoint::internal {

/// A box that the ranks of some mesh axes hold alike, and how they share it.
struct ReplicaShare {
  std::vector<int> axes;  ///< Of more than one rank each; none if there is one replica.
  int replicas = 1;
  int replica = 0;  ///< This rank's number, row-major over the axes in mesh order.
  Box box;
  int dim = -1;   ///< The dim that is split between all, or -1: one replica has the box.
  int owner = 0;  ///< The one that has it.

  bool HasPart(int of_replica) const { return dim >= 0 || of_replica == owner; }
  /// Of one that has a part; may be empty.
  Box PartOf(int of_replica) const;
};

/// Goes through the tensors of a state in one order on all ranks, and needs nothing of other ranks:
/// the layouts say it all.
class ShareMaker {
 public:
  /// The part of `region` (of the whole tensor) that the rank at `coord` writes, if any. The
  /// parts of all ranks cover the region once, and a rank's part lies within its box. A box of many
  /// bytes is split between its replicas; one of few goes to the one that has the fewest so far.
  /// The layout has no Partial. A tensor without elements is written by the rank at coordinate 0.
  std::optional<Box> Next(const Layout& layout, std::span<const int> coord, int64_t element_bytes,
                          const Box& region);
  /// The same for all replicas of this rank's box. The two are not to be mixed.
  ReplicaShare NextShare(const Layout& layout, std::span<const int> coord, int64_t element_bytes,
                         const Box& region);

 private:
  /// Bytes given to a replica, boxes counted as the largest, and its number. The least first.
  using Given = std::pair<int64_t, int>;
  using Queue = std::priority_queue<Given, std::vector<Given>, std::greater<>>;
  /// By the axes along which they are replicas, and their number: meshes differ.
  std::map<std::pair<std::vector<int>, int>, Queue> given_;
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_
