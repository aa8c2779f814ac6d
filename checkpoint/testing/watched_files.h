// SPDX-License-Identifier: Apache-2.0
//
// For tests: a FileSystem that counts what is read, and may refuse it.
#ifndef SHARDMESH_CHECKPOINT_TESTING_WATCHED_FILES_H_
#define SHARDMESH_CHECKPOINT_TESTING_WATCHED_FILES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/checkpoint/file_system.h"

namespace shardmesh::checkpoint::testing {

/// Thread-safe. All else goes to the system's files.
class WatchedFiles final : public FileSystem {
 public:
  using Refuse = std::function<absl::Status(const std::string& path)>;
  explicit WatchedFiles(Refuse refuse = nullptr) : refuse_(std::move(refuse)) {}

  absl::Status BeforeRead(const std::string& path, int64_t offset, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    // The length of the header, and the header behind it.
    constexpr int64_t kLengthBytes = 8;
    if (offset > kLengthBytes) {
      ++reads_;
      bytes_[path] += bytes;
    }
    return refuse_ && offset > kLengthBytes ? refuse_(path) : absl::OkStatus();
  }

  /// Without those of headers.
  int64_t reads() const { return reads_; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [path, bytes] : bytes_) sum += bytes;
    return sum;
  }

  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override {
    return SystemFiles().CreateFile(path);
  }
  absl::StatusOr<std::unique_ptr<OutputFile>> OpenFile(const std::string& path) override {
    return SystemFiles().OpenFile(path);
  }
  absl::Status CreateDirectory(const std::string& path) override {
    return SystemFiles().CreateDirectory(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return SystemFiles().SyncDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return SystemFiles().Rename(from, to);
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    return SystemFiles().Exchange(a, b);
  }
  absl::Status RemoveAll(const std::string& path) override { return SystemFiles().RemoveAll(path); }
  bool Exists(const std::string& path) override { return SystemFiles().Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return SystemFiles().List(path);
  }

 private:
  Refuse refuse_;
  std::mutex mutex_;
  int64_t reads_ = 0;
  std::map<std::string, int64_t> bytes_;
};

}  // namespace shardmesh::checkpoint::testing

#endif  // SHARDMESH_CHECKPOINT_TESTING_WATCHED_FILES_H_
