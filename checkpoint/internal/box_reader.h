// SPDX-License-Identifier: Apache-2.0
//
// Reads a box of a tensor from a file into memory.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_BOX_READER_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_BOX_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/checkpoint/internal/input_file.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh::internal {

/// For one Read. Long runs that need no conversion are read directly into the target; others are
/// collected in a buffer first.
class BoxReader {
 public:
  /// The tensor has dtype `from` and begins at byte `begin` of `file`, which holds all of it.
  /// `target` receives the box's elements in row-major order, converted to `to`.
  BoxReader(const ByteSource& file, int64_t begin, DType from, DType to, void* target);

  /// `shape` is that of the whole tensor.
  /// Errors: those of ByteSource; kOutOfRange for an element that ConvertElements refuses.
  /// They do not name the file and the tensor.
  absl::Status Read(const Dims& shape, const Box& box);

 private:
  /// Where a run, or a part of one, is in the file.
  struct Piece {
    int64_t begin;
    int64_t bytes;
  };

  absl::Status Add(Piece piece);
  /// Reads the range of bytes that spans the pieces, converts them and clears the list.
  absl::Status Flush();
  absl::Status BadElement(int64_t index, const char* source) const;

  const ByteSource& file_;
  const int64_t tensor_begin_;
  const DType from_;
  const DType to_;
  char* target_;  // Of the next piece.
  std::vector<Piece> pieces_;
  std::vector<char> buffer_;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_BOX_READER_H_
