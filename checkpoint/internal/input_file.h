// SPDX-License-Identifier: Apache-2.0
//
// A file to read from again and again. A checkpoint may have more shards than a process may have
// open files, so a file that was not used lately is closed, and opened again when it is.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/checkpoint/file_system.h"

namespace shardmesh::internal {

/// The process keeps at most so many InputFiles open between reads, the most recently used ones. In
/// addition, each thread that is reading keeps one open.
inline constexpr size_t kMaxOpenFiles = 64;

/// Bytes by their offset.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Exactly `bytes` bytes.
  virtual absl::Status ReadAt(int64_t offset, void* target, int64_t bytes) const = 0;
};

/// Thread-safe.
class InputFile {
 public:
  /// A file that stays open while this exists.
  class Reader final : public ByteSource {
   public:
    /// Errors: those of FileSystem::BeforeRead and RegularFile::ReadAt.
    absl::Status ReadAt(int64_t offset, void* target, int64_t bytes) const override;
    /// kDataLoss if the file was written to since InputFile::Open.
    absl::Status CheckUnchanged() const;

   private:
    friend class InputFile;
    Reader(std::shared_ptr<const RegularFile> open, const InputFile& file)
        : open_(std::move(open)), file_(file) {}

    std::shared_ptr<const RegularFile> open_;
    const InputFile& file_;
  };

  /// `seam` sees each read, if it is given. Errors: those of RegularFile::Open, naming `path`.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path,
                                                         checkpoint::FileSystem* seam = nullptr);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return identity_.bytes; }  ///< When it was opened first.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

  /// Must not outlive this object.
  /// Errors: kDataLoss if the file had to be opened again and is no longer the one that was opened
  /// first; the system's. No message of a Reader, or of this function, names the path.
  absl::StatusOr<Reader> StartReading() const;

 private:
  InputFile(std::string path, std::string absolute_path, checkpoint::FileSystem* seam)
      : path_(std::move(path)), absolute_path_(std::move(absolute_path)), seam_(seam) {}

  std::string path_;
  std::string absolute_path_;  // The working directory may change before it is opened again.
  checkpoint::FileSystem* seam_;
  RegularFile::Identity identity_;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_INPUT_FILE_H_
