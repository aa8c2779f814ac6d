// SPDX-License-Identifier: Apache-2.0
//
// Reads many parts of many arrays: in the order of the files, by several threads, and small ones
// that are near each other together.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_PART_READER_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_PART_READER_H_

#include <vector>

#include "absl/status/status.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh::checkpoint::internal {

/// A box of an array that lies within a piece, and where it goes: a box of a row-major tensor.
struct PartToRead {
  const StoredArray* array = nullptr;
  const StoredPiece* piece = nullptr;
  Box box;
  DType dtype = DType::kF32;  ///< Of the tensor; other elements are converted.
  char* data = nullptr;
  Dims shape;
  Box at;  ///< Of the tensor, with the extents of `box`.
};

struct PartReadOptions {
  int threads = 1;
  bool read_gaps = true;  ///< ReadOptions::read_gaps.
};

/// Parts do not overlap in memory. Memory: 5 MiB per thread.
/// Errors: those of PieceFiles::FileOf and SafetensorsFile::ReadBox; the same for any number of
///         threads.
absl::Status ReadParts(PieceFiles& files, const std::vector<PartToRead>& parts,
                       const PartReadOptions& options);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_PART_READER_H_
