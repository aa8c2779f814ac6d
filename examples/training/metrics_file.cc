// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::examples {
namespace {

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write metrics file ", Quoted(path)));
}

/// Returns 0, or errno of the write that failed.
int WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

/// Of a line of StepMetrics::ToJson; nothing if it is none.
std::optional<int64_t> StepOf(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (line.substr(0, kBegin.size()) != kBegin || line.back() != '}') return std::nullopt;
  int64_t step = 0;
  const char* const end = line.data() + line.size();
  const std::from_chars_result result = std::from_chars(line.data() + kBegin.size(), end, step);
  return result.ec == std::errc() ? std::optional(step) : std::nullopt;
}

}  // namespace

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path) {
  // Non-blocking for the opening alone, which would wait for the reader of a pipe.
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const int descriptor = ::open(path.c_str(), kFlags, 0666);
  if (descriptor < 0 && errno == ENXIO) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write metrics file ", Quoted(path), ": nobody reads this pipe"));
  }
  if (descriptor < 0) return CannotWrite(path, errno);
  MetricsFile file(path, descriptor);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return CannotWrite(path, errno);
  file.whole_lines_ = status.st_size;
  if (::fcntl(descriptor, F_SETFL, O_APPEND) != 0) return CannotWrite(path, errno);
  return file;
}

MetricsFile::MetricsFile(MetricsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      whole_lines_(other.whole_lines_) {}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsFile::KeepBefore(int64_t step) {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) ThrowIfError(CannotWrite(path_, errno));
  if (!S_ISREG(status.st_mode)) return;
  whole_lines_ = 0;
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  int64_t last = -1;
  // A line that the disk cut has no end.
  while (std::getline(in, line) && !in.eof()) {
    const std::optional<int64_t> of_line = StepOf(line);
    if (!of_line || *of_line <= last || *of_line >= step) break;
    last = *of_line;
    whole_lines_ += static_cast<off_t>(line.size()) + 1;
  }
  if (::ftruncate(descriptor_, whole_lines_) != 0) ThrowIfError(CannotWrite(path_, errno));
}

void MetricsFile::Append(const StepMetrics& metrics) {
  const std::string line = metrics.ToJson() + "\n";
  if (const int error = WriteAll(descriptor_, line); error != 0) {
    // Fails where there is nothing to cut: for a pipe or a device.
    (void)!::ftruncate(descriptor_, whole_lines_);
    ThrowIfError(CannotWrite(path_, error));
  }
  whole_lines_ += static_cast<off_t>(line.size());
}

}  // namespace shardmesh::examples
