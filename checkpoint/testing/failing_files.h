// SPDX-License-Identifier: Apache-2.0
//
// A FileSystem of which one operation fails, or ends the process.
#ifndef SHARDMESH_CHECKPOINT_TESTING_FAILING_FILES_H_
#define SHARDMESH_CHECKPOINT_TESTING_FAILING_FILES_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "shardmesh/checkpoint/file_system.h"

namespace shardmesh::checkpoint::testing {

enum class Failure {
  kIoError,     ///< EIO.
  kNoSpace,     ///< ENOSPC.
  kShortWrite,  ///< The first half of a write, then ENOSPC; other operations: ENOSPC.
  kDeath,       ///< The process ends at once, with kDeathCode; of a write the first half is done.
};
inline constexpr int kDeathCode = 97;

/// Counts the operations that change something: creating, writing, syncing, closing, renaming,
/// removing. Thread-safe.
class FailingFiles final : public FileSystem {
 public:
  /// The operation of this number (from 0) fails.
  FailingFiles(Failure failure, int at) : failure_(failure), left_(at) {}

  /// Whether the operation was reached.
  bool has_failed() const { return left_ < 0; }

  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<OutputFile>> OpenFile(const std::string& path) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Exchange(const std::string& a, const std::string& b) override;
  absl::Status RemoveAll(const std::string& path) override;
  bool Exists(const std::string& path) override { return SystemFiles().Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return SystemFiles().List(path);
  }

 private:
  class File;
  /// The error of this operation, if it is the one.
  absl::Status Next(const std::string& what);
  bool IsNext() { return left_.fetch_sub(1) == 0; }

  Failure failure_;
  std::atomic<int> left_;
};

}  // namespace shardmesh::checkpoint::testing

#endif  // SHARDMESH_CHECKPOINT_TESTING_FAILING_FILES_H_
