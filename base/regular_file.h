// SPDX-License-Identifier: Apache-2.0
//
// A regular file open for reading. Anything else that a path may name (a pipe, a terminal, a
// device such as /dev/zero, a directory) is refused: it could wait or yield bytes without end.
//
//   SHARDMESH_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open("config.json"));
//   SHARDMESH_ASSIGN_OR_RETURN(std::string text, file.ReadAll(/*limit=*/16 << 20));
#ifndef SHARDMESH_BASE_REGULAR_FILE_H_
#define SHARDMESH_BASE_REGULAR_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh {

/// Thread-safe: there is no position. No message names the path; callers add it.
class RegularFile {
 public:
  /// What tells one version of one file from all others.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t bytes = 0;
    int64_t modified_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  /// Does not wait, whatever `path` is.
  /// Errors: the system's (kNotFound, kPermissionDenied, ...); kInvalidArgument if `path` is no
  /// regular file or contains a NUL byte.
  static absl::StatusOr<RegularFile> Open(const std::string& path);
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  ~RegularFile();

  /// When it was opened.
  const Identity& identity() const { return identity_; }
  int64_t size() const { return identity_.bytes; }
  /// Now.
  absl::StatusOr<Identity> CurrentIdentity() const;

  /// Reads exactly `bytes` bytes.
  /// Errors: kDataLoss if the file ends earlier; the system's.
  absl::Status ReadAt(int64_t offset, void* target, int64_t bytes) const;
  /// Reads size() bytes.
  /// Errors: kInvalidArgument if these are more than `limit`; kResourceExhausted if memory does not
  /// hold them; those of ReadAt.
  absl::StatusOr<std::string> ReadAll(int64_t limit) const;

 private:
  explicit RegularFile(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;  // -1 once moved from.
  Identity identity_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_REGULAR_FILE_H_
