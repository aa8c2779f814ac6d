// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::internal {
namespace {

int64_t ModifiedNs(const struct stat& facts) {
  return int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  if (path.find('\0') != path.npos) {  // The system would open what precedes it.
    return absl::InvalidArgumentError("a file name with a NUL byte in it");
  }
  int descriptor;
  do {
    // Non-blocking, for a pipe without a writer; it changes nothing for regular files.
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  std::unique_ptr<InputFile> file(new InputFile(path, descriptor));

  struct stat facts;
  if (::fstat(descriptor, &facts) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot stat"));
  }
  if (S_ISDIR(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a directory, not a file"));
  }
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  file->size_ = facts.st_size;
  file->modified_ns_ = ModifiedNs(facts);
  return file;
}

InputFile::~InputFile() { ::close(descriptor_); }

absl::Status InputFile::ReadAt(int64_t offset, void* target, int64_t bytes) const {
  char* next = static_cast<char*>(target);
  while (bytes > 0) {
    // One call moves 2 GiB at most.
    const ssize_t count = ::pread(descriptor_, next, static_cast<size_t>(bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", bytes, " bytes at ", offset));
    }
    if (count == 0) {
      return absl::DataLossError(absl::StrCat("the file ends at byte ", offset, ", ", bytes,
                                              " bytes early; it had ", size_,
                                              " bytes when it was opened"));
    }
    bytes_read_.fetch_add(count, std::memory_order_relaxed);
    next += count;
    offset += count;
    bytes -= count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InputFile::ReadAll(int64_t limit) const {
  if (size_ > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(size_, " bytes, more than the limit of ", limit));
  }
  std::string content(static_cast<size_t>(size_), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadAt(0, content.data(), size_));
  return content;
}

absl::Status InputFile::CheckUnchanged() const {
  struct stat facts;
  if (::fstat(descriptor_, &facts) != 0) {
    return absl::ErrnoToStatus(errno, "cannot stat");
  }
  if (facts.st_size != size_ || ModifiedNs(facts) != modified_ns_) {
    return absl::DataLossError(absl::StrCat("the file was written to after it was opened (", size_,
                                            " bytes then, ", int64_t{facts.st_size},
                                            " now); open it again"));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::internal
