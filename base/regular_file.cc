// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh {

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  if (path.find('\0') != path.npos) {  // The system would open what precedes it.
    return absl::InvalidArgumentError("a file name with a NUL byte in it");
  }
  int descriptor;
  do {
    // Non-blocking, for a pipe without a writer; it changes nothing for regular files.
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, "cannot open");
  RegularFile file(descriptor);

  struct stat facts;
  if (::fstat(descriptor, &facts) != 0) return absl::ErrnoToStatus(errno, "cannot stat");
  if (S_ISDIR(facts.st_mode)) return absl::InvalidArgumentError("a directory, not a file");
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError("not a regular file, but a pipe, socket or device");
  }
  SHARDMESH_ASSIGN_OR_RETURN(file.identity_, file.CurrentIdentity());
  return file;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), identity_(other.identity_) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(identity_, other.identity_);
  return *this;
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::StatusOr<RegularFile::Identity> RegularFile::CurrentIdentity() const {
  struct stat facts;
  if (::fstat(descriptor_, &facts) != 0) return absl::ErrnoToStatus(errno, "cannot stat");
  return Identity{
      .device = facts.st_dev,
      .inode = facts.st_ino,
      .bytes = facts.st_size,
      .modified_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec};
}

absl::Status RegularFile::ReadAt(int64_t offset, void* target, int64_t bytes) const {
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
                                              " bytes early; it had ", size(),
                                              " bytes when it was opened"));
    }
    next += count;
    offset += count;
    bytes -= count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RegularFile::ReadAll(int64_t limit) const {
  if (size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(size(), " bytes, more than the limit of ", limit));
  }
  std::string content;
  try {
    content.resize(static_cast<size_t>(size()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: cannot hold its ", size(), " bytes"));
  }
  SHARDMESH_RETURN_IF_ERROR(ReadAt(0, content.data(), size()));
  return content;
}

}  // namespace shardmesh
