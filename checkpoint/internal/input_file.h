// SPDX-License-Identifier: Apache-2.0
//
// A regular file open for reading at any offset.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::internal {

/// Thread-safe: there is no position.
class InputFile {
 public:
  /// Errors: those of the system (kNotFound, kPermissionDenied, ...); kInvalidArgument if `path` is
  /// a directory or otherwise no regular file (nothing here waits for a pipe). These name the file,
  /// those of the methods do not.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< In bytes, when it was opened.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

  /// Reads exactly `bytes` bytes.
  /// Errors: kDataLoss if the file ends before; those of the system.
  absl::Status ReadAt(int64_t offset, void* target, int64_t bytes) const;
  /// The whole file, if it is not longer than `limit` bytes (else kInvalidArgument).
  absl::StatusOr<std::string> ReadAll(int64_t limit) const;
  /// kDataLoss if size or modification time are no longer those of Open.
  absl::Status CheckUnchanged() const;

 private:
  InputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_
