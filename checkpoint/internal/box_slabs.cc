// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/box_slabs.h"

#include <algorithm>

namespace shardmesh::internal {
namespace {

void Append(const Box& box, int dim, int64_t max_elements, std::vector<Box>& slabs) {
  const int64_t elements = box.NumElements();
  if (elements <= max_elements) {
    slabs.push_back(box);
    return;
  }
  // There are several elements, so some dim is longer than 1.
  while (box.end[dim] - box.begin[dim] == 1) ++dim;
  const int64_t extent = box.end[dim] - box.begin[dim];
  const int64_t rows = std::max<int64_t>(1, max_elements / (elements / extent));
  for (int64_t begin = box.begin[dim]; begin < box.end[dim]; begin += rows) {
    Box slab = box;
    slab.begin[dim] = begin;
    slab.end[dim] = std::min(begin + rows, box.end[dim]);
    Append(slab, dim, max_elements, slabs);
  }
}

}  // namespace

std::vector<Box> SlabsOf(const Box& box, int64_t max_elements) {
  std::vector<Box> slabs;
  if (!box.IsEmpty()) Append(box, 0, max_elements, slabs);
  return slabs;
}

}  // namespace shardmesh::internal
