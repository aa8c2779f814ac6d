// SPDX-License-Identifier: Apache-2.0
//
// Brings a box of a tensor from a file into memory.
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

/// One use: construct, Read. Long runs that need no conversion go straight to the target; others
/// are gathered in a buffer first.
class BoxReader {
 public:
  /// The tensor of `shape` and dtype `from` lies at byte `begin` of `file`, inside it. `target`
  /// takes the box's elements, row-major, as `to`.
  BoxReader(const InputFile& file, int64_t begin, DType from, DType to, void* target);

  /// Errors: those of InputFile; kOutOfRange for an element that `to` cannot take. They do not name
  /// file and tensor.
  absl::Status Read(const Dims& shape, const Box& box);

 private:
  /// Bytes of a run, or of a part of one, in the file.
  struct Piece {
    int64_t begin;
    int64_t bytes;
  };

  absl::Status Add(Piece piece);
  /// Reads the span of the pieces and takes them out of it.
  absl::Status Flush();
  absl::Status BadElement(int64_t index, const char* source) const;

  const InputFile& file_;
  const int64_t tensor_begin_;
  const DType from_;
  const DType to_;
  char* target_;  // Where the next piece goes.
  std::vector<Piece> pieces_;
  std::vector<char> buffer_;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_BOX_READER_H_
