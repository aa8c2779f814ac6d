// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint, opened when a piece of them is read.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::checkpoint::internal {

/// For one Load or Verify. Thread-safe.
class PieceFiles {
 public:
  /// `contents` must outlive it, and `seam`, which sees each read of tensors, if it is given.
  explicit PieceFiles(const Contents& contents, FileSystem* seam = nullptr)
      : contents_(contents), seam_(seam) {}

  /// The file that has the piece. It lives as long as this.
  /// Errors: kDataLoss if the file is not what the contents say; those of SafetensorsFile::Open.
  absl::StatusOr<const SafetensorsFile*> FileOf(const StoredArray& array, const StoredPiece& piece);
  /// The elements of `box` (of the array), which lies within the piece, into `out`, a contiguous
  /// tensor of the box's extents on the CPU.
  /// Errors: as FileOf, and those of SafetensorsFile::ReadBox.
  absl::Status Read(const StoredArray& array, const StoredPiece& piece, const Box& box,
                    Tensor& out);
  /// Reads all its bytes. Errors: as FileOf, and kDataLoss if the checksum is another.
  absl::Status Verify(const StoredArray& array, const StoredPiece& piece);
  /// Of one file. Errors: kDataLoss if length or checksum of the header are others.
  absl::Status VerifyHeader(int file);

 private:
  std::string PathOf(int file) const;

  // Opened by the first that needs it.
  struct OpenFile {
    std::mutex mutex;
    std::optional<SafetensorsFile> file;
  };

  const Contents& contents_;
  FileSystem* seam_;
  std::mutex mutex_;
  std::map<int, OpenFile> open_;  // By their number. Guarded by mutex_; each by its own.
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_PIECE_FILES_H_
