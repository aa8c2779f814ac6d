// SPDX-License-Identifier: Apache-2.0
//
// Elementwise updates that are put together from several ops: tile by tile, so that temporaries are
// small and stay in the cache.
//
//   ForTiles({update.gradient, update.value}, [&](std::vector<Tensor>& tile) {
//     ops::BinaryInto(context, BinaryOp::kMul, tile[1], 0.5);
//   });
#ifndef SHARDMESH_OPTIM_INTERNAL_TILES_H_
#define SHARDMESH_OPTIM_INTERNAL_TILES_H_

#include <algorithm>
#include <vector>

#include "shardmesh/tensor/tensor.h"

namespace shardmesh::optim::internal {

/// Calls fn with the same elements of each of `tensors`, as 1-d views. The tensors are contiguous
/// and have the same number of elements. Where that is 0, fn is called once with empty views, so
/// that versions rise on every rank.
template <typename Fn>
void ForTiles(const std::vector<Tensor>& tensors, const Fn& fn) {
  constexpr int64_t kPerTile = 1 << 15;
  const int64_t count = tensors[0].NumElements();
  int64_t begin = 0;
  do {
    const int64_t length = std::min(kPerTile, count - begin);
    std::vector<Tensor> tile;
    for (const Tensor& x : tensors) {
      tile.push_back(x.TryView({count})->Narrow(/*dim=*/0, begin, length));
    }
    fn(tile);
    begin += length;
  } while (begin < count);
}

}  // namespace shardmesh::optim::internal

#endif  // SHARDMESH_OPTIM_INTERNAL_TILES_H_
