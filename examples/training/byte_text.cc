// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/byte_text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/examples/training/counter_hash.h"

namespace shardmesh::examples {

absl::StatusOr<ByteText> ByteText::Open(const std::string& path) {
  std::error_code no_error;
  if (std::filesystem::is_directory(path, no_error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", path, " is a directory; expected a file of text"));
  }
  const auto cannot_read = [&] {
    return absl::NotFoundError(
        absl::StrCat("cannot read data file ", path, ": ", std::strerror(errno)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return cannot_read();
  std::string bytes;
  char piece[1 << 16];
  for (size_t count; (count = std::fread(piece, 1, sizeof(piece), file.get())) > 0;) {
    bytes.append(piece, count);
  }
  if (std::ferror(file.get())) return cannot_read();
  if (bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", path, " is empty"));
  }
  return ByteText(std::move(bytes), absl::StrCat("data file ", path));
}

absl::Status ByteText::CheckHolds(int64_t sequence) const {
  if (size() > sequence) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name_, " has ", size(), " bytes; a sequence of ",
                                                 sequence, " and its next byte need at least ",
                                                 sequence + 1));
}

int64_t ByteText::WindowStart(uint64_t seed, int64_t step, int64_t row, int64_t sequence) const {
  const uint64_t bits = CounterHash(seed, static_cast<uint64_t>(step), static_cast<uint64_t>(row));
  const auto starts = static_cast<uint64_t>(size() - sequence);
  return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * starts) >> 64);
}

}  // namespace shardmesh::examples
