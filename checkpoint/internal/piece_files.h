// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint, opened when a piece of them is read.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::checkpoint::internal {

/// For one Load or Verify.
class PieceFiles {
 public:
  /// `contents` must outlive it.
  explicit PieceFiles(const Contents& contents) : contents_(contents) {}

  /// The elements of `box` (of the array), which lies within the piece, into `out`, a contiguous
  /// tensor of the box's extents on the CPU.
  /// Errors: kDataLoss if the file is not what the contents say; those of SafetensorsFile.
  absl::Status Read(const StoredArray& array, const StoredPiece& piece, const Box& box,
                    Tensor& out);
  /// Reads all its bytes. Errors: as Read, and kDataLoss if the checksum is another.
  absl::Status Verify(const StoredArray& array, const StoredPiece& piece);
  /// Of one file. Errors: kDataLoss if length or checksum of the header are others.
  absl::Status VerifyHeader(int file);

 private:
  std::string PathOf(int file) const;
  absl::StatusOr<const SafetensorsFile*> FileOf(const StoredArray& array, const StoredPiece& piece);

  const Contents& contents_;
  std::map<int, SafetensorsFile> open_;
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_
