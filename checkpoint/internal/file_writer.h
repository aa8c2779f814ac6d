// SPDX-License-Identifier: Apache-2.0
//
// Writes runs of bytes into a file: long ones straight, short ones that follow each other together.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_FILE_WRITER_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_FILE_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/checkpoint/internal/checksum.h"

namespace shardmesh::checkpoint::internal {

/// `file` must outlive it. Flush must be called at the end.
class FileWriter {
 public:
  FileWriter(OutputFile& file, int64_t offset) : file_(file), offset_(offset) {}

  /// At the position where the last bytes ended.
  absl::Status Add(const char* bytes, int64_t count);
  /// What is added next begins at `offset`.
  absl::Status SeekTo(int64_t offset);
  absl::Status Flush();
  /// Of what was added since the last call.
  uint64_t TakeChecksum();

 private:
  OutputFile& file_;
  int64_t offset_;  // Of the buffer's first byte.
  std::string buffer_;
  std::unique_ptr<Checksum> checksum_ = std::make_unique<Checksum>();
};

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_FILE_WRITER_H_
