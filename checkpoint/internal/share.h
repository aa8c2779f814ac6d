// SPDX-License-Identifier: Apache-2.0
//
// Which rank writes what: every box of a tensor once over all its replicas, which share the bytes.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "shardmesh/placement/box.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh::checkpoint::internal {

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

 private:
  /// By the axes along which they are replicas: bytes given to each, boxes counted as the largest.
  std::map<std::vector<int>, std::vector<int64_t>> given_;
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_SHARE_H_
