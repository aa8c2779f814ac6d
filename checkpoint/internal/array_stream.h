// SPDX-License-Identifier: Apache-2.0
//
// Reads an array of a checkpoint in row-major order through buffers of a fixed size, whatever its
// size and its boxes are.
//
//   ArrayStream stream(context, files, array, DType::kF32, /*max_elements=*/1 << 20);
//   while (true) {
//     SHARDMESH_ASSIGN_OR_RETURN(const ArrayStream::Part part, stream.Next());
//     if (part.count == 0) break;
//     Use(part.data, part.count);   // Elements [part.first, part.first + part.count).
//   }
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_ARRAY_STREAM_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_ARRAY_STREAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/piece_files.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::checkpoint::internal {

/// Consecutive parts of at most `max_elements` elements. Arrays of one shape are cut alike. A part
/// is a box: as many whole rows of an outer dim as fit, or a range of one row.
///
/// Memory: 2 * max_elements elements and what one read takes.
class ArrayStream {
 public:
  struct Part {
    const char* data = nullptr;  ///< Until the next call.
    int64_t first = 0;           ///< Row-major index in the array.
    int64_t count = 0;           ///< 0 at the end.
  };

  /// The array has a dtype and its boxes cover it (Contents::Check). Elements are converted to
  /// `dtype` as SafetensorsFile::ReadBox does. `context`, `files` and `array` must outlive it.
  ArrayStream(ExecutionContext& context, PieceFiles& files, const StoredArray& array, DType dtype,
              int64_t max_elements);

  /// Errors: those of PieceFiles::Read.
  absl::StatusOr<Part> Next();

 private:
  /// The part that begins at next_.
  Box NextBox() const;
  /// Pieces that may have elements of `box`, which begins where the last one ended.
  void UpdateNear(const Box& box);
  absl::Status ReadFrom(const StoredPiece& piece, const Box& box);

  ExecutionContext& context_;
  PieceFiles& files_;
  const StoredArray& array_;
  DType dtype_;
  int64_t num_elements_;
  int64_t max_elements_;
  int64_t next_ = 0;
  std::vector<const StoredPiece*> pieces_;  // By their begin along dim 0.
  size_t next_piece_ = 0;                   // The first that no part has reached.
  std::vector<const StoredPiece*> near_;
  Tensor buffer_;
  Tensor staging_;  // Of a piece's share of a part, if it is not contiguous in the part.
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_ARRAY_STREAM_H_
