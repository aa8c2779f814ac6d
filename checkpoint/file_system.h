// SPDX-License-Identifier: Apache-2.0
//
// The operations with which checkpoints are written, and a view of what is read: a seam, so that
// tests can make each of them fail or end the process.
#ifndef SHARDMESH_CHECKPOINT_FILE_SYSTEM_H_
#define SHARDMESH_CHECKPOINT_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::checkpoint {

/// A file to be written. Errors name the path and the system's reason.
class OutputFile {
 public:
  virtual ~OutputFile() = default;  ///< Closes; errors are lost then.
  /// Writes all `bytes` bytes.
  virtual absl::Status WriteAt(int64_t offset, const void* source, int64_t bytes) = 0;
  /// Sets the length; what is new is zero.
  virtual absl::Status Resize(int64_t bytes) = 0;
  /// Returns once the content is on the device.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

/// Thread-safe. Errors: the system's (kNotFound, kPermissionDenied, kResourceExhausted, ...); they
/// name the path.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// kAlreadyExists if there is one.
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) = 0;
  /// To write into a file that is there.
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> OpenFile(const std::string& path) = 0;
  /// kAlreadyExists if there is one; kNotFound if its parent is not there.
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  /// Names in it are on the device after that.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  /// In one step. kAlreadyExists if `to` exists.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  /// In one step: each gets the name of the other.
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  /// With all that is in it; nothing if it does not exist.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  /// The names in a directory, ordered.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  /// Called before `bytes` bytes of a file with tensors are read, on the thread that reads them. An
  /// error fails the read. Reading itself is the operating system's.
  virtual absl::Status BeforeRead(const std::string& path, int64_t offset, int64_t bytes) {
    static_cast<void>(path), static_cast<void>(offset), static_cast<void>(bytes);
    return absl::OkStatus();
  }
};

/// That of the operating system. Lives as long as the process.
FileSystem& SystemFiles();

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_FILE_SYSTEM_H_
