// SPDX-License-Identifier: Apache-2.0
//
// One step's batch of byte sequences, split over the data-parallel axes.
#ifndef SHARDMESH_EXAMPLES_TRAINING_BATCH_H_
#define SHARDMESH_EXAMPLES_TRAINING_BATCH_H_

#include <cstdint>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/examples/training/byte_text.h"

namespace shardmesh::examples {

struct Batch {
  DTensor inputs;   ///< i64 [rows, sequence].
  DTensor targets;  ///< The bytes that follow each input byte.
};

struct BatchShape {
  int64_t rows;  ///< Of the global batch.
  int64_t sequence;
};

/// The placements of a batch: Replicate on axis tp, Shard(0) on all others.
std::vector<Placement> BatchPlacements(const MeshShape& mesh);

/// The batch of step `step`. Each rank creates only its own rows; a rank may have none.
/// Local. `text` must hold a sequence (ByteText::CheckHolds).
Batch MakeBatch(const DeviceMesh& mesh, const ByteText& text, BatchShape shape, uint64_t seed,
                int64_t step);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_BATCH_H_
