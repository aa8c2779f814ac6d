// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/file_system.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::checkpoint {
namespace {

absl::Status SystemError(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", Quoted(path)));
}

template <typename Call>
auto Retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class SystemFile final : public OutputFile {
 public:
  SystemFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~SystemFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  absl::Status WriteAt(int64_t offset, const void* source, int64_t bytes) override {
    const char* next = static_cast<const char*>(source);
    while (bytes > 0) {
      // One call moves 2 GiB at most.
      const ssize_t count =
          Retried([&] { return ::pwrite(descriptor_, next, static_cast<size_t>(bytes), offset); });
      if (count < 0) return SystemError("write to", path_);
      if (count == 0)
        return absl::DataLossError(
            absl::StrCat("cannot write to ", Quoted(path_), ": no progress"));
      BeginWriteback(offset, count);
      next += count;
      offset += count;
      bytes -= count;
    }
    return absl::OkStatus();
  }

  absl::Status Resize(int64_t bytes) override {
    if (Retried([&] { return ::ftruncate(descriptor_, bytes); }) < 0)
      return SystemError("resize", path_);
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (Retried([&] { return ::fsync(descriptor_); }) < 0) return SystemError("sync", path_);
    return absl::OkStatus();
  }

  // The descriptor is gone whatever close() returns.
  absl::Status Close() override {
    if (::close(std::exchange(descriptor_, -1)) < 0 && errno != EINTR)
      return SystemError("close", path_);
    return absl::OkStatus();
  }

 private:
  // The disk begins with what has been written while the rest is still being copied and summed up:
  // Sync then finds less to do. A hint; what goes wrong here, Sync reports.
  void BeginWriteback(int64_t offset, int64_t bytes) {
    if (offset != unsent_end_) unsent_begin_ = offset;
    unsent_end_ = offset + bytes;
    if (unsent_end_ - unsent_begin_ < kWritebackBytes) return;
    ::sync_file_range(descriptor_, unsent_begin_, unsent_end_ - unsent_begin_,
                      SYNC_FILE_RANGE_WRITE);
    unsent_begin_ = unsent_end_;
  }

  static constexpr int64_t kWritebackBytes = 8 << 20;
  std::string path_;
  int descriptor_;
  int64_t unsent_begin_ = 0, unsent_end_ = 0;
};

class OperatingSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override {
    const int descriptor = Retried(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (descriptor < 0) return SystemError("create", path);
    return std::make_unique<SystemFile>(path, descriptor);
  }

  absl::StatusOr<std::unique_ptr<OutputFile>> OpenFile(const std::string& path) override {
    const int descriptor = Retried([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC); });
    if (descriptor < 0) return SystemError("open", path);
    return std::make_unique<SystemFile>(path, descriptor);
  }

  absl::Status CreateDirectory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) < 0) return SystemError("create directory", path);
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int descriptor =
        Retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) return SystemError("open directory", path);
    absl::Status status;
    if (Retried([&] { return ::fsync(descriptor); }) < 0)
      status = SystemError("sync directory", path);
    ::close(descriptor);
    return status;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return RenameWith(RENAME_NOREPLACE, from, to);
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    return RenameWith(RENAME_EXCHANGE, a, b);
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (!error) return absl::OkStatus();
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", Quoted(path)));
  }

  bool Exists(const std::string& path) override {
    struct stat facts;
    return ::lstat(path.c_str(), &facts) == 0;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(path, error), end;
    while (!error && it != end) {
      names.push_back(it->path().filename().string());
      it.increment(error);
    }
    if (error)
      return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", Quoted(path)));
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  static absl::Status RenameWith(unsigned flags, const std::string& from, const std::string& to) {
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0)
      return absl::OkStatus();
    // Network file systems may lack the flags. A plain rename replaces no directory that is not
    // empty.
    const bool lacks_flag = errno == EINVAL || errno == ENOSYS;
    if (lacks_flag && flags == RENAME_NOREPLACE && ::rename(from.c_str(), to.c_str()) == 0)
      return absl::OkStatus();
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot rename ", Quoted(from), " to ", Quoted(to),
                            flags == RENAME_EXCHANGE ? " and back in one step" : ""));
  }
};

}  // namespace

FileSystem& SystemFiles() {
  static OperatingSystem system;
  return system;
}

}  // namespace shardmesh::checkpoint
