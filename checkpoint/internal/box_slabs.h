// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_BOX_SLABS_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_BOX_SLABS_H_

#include <cstdint>
#include <vector>

#include "shardmesh/placement/box.h"

namespace shardmesh::internal {

/// Cuts a box into slabs of at most `max_elements` (at least 1) elements, along its outer dims, so
/// that in row-major order the elements of one follow those of the one before. None of an empty
/// box.
std::vector<Box> SlabsOf(const Box& box, int64_t max_elements);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_BOX_SLABS_H_
