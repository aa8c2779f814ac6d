// SPDX-License-Identifier: Apache-2.0
//
// Which boxes of a stored array a rank reads.
//
//   std::vector<ReadPart> parts;
//   absl::Status status = PlanRead(array, layout.LocalBox(coord), parts);
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_READ_PLAN_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_READ_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/placement/box.h"

namespace shardmesh::checkpoint::internal {

/// What is read of one piece.
struct ReadPart {
  const StoredPiece* piece = nullptr;
  Box box;  ///< Of the array; within the piece. Not empty.
};

/// Appends the parts that together are `wanted`, a box of the array, whose pieces have been
/// arranged (Contents::Arrange). Only this box is checked: if every rank plans its own, all of the
/// array has been checked.
///
/// Cost:   p + log n for p parts of n pieces that form a grid, as those of a layout do.
///         `*examined`, if given, grows by the number of pieces that were looked at.
/// Errors: kDataLoss naming a box that no piece has, or that two have.
absl::Status PlanRead(const StoredArray& array, const Box& wanted, std::vector<ReadPart>& parts,
                      int64_t* examined = nullptr);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_READ_PLAN_H_
