// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/byte_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/examples/training/counter_hash.h"

namespace shardmesh::examples {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::string> bytes = file->ReadAll(kMaxTextBytes);
  if (bytes.ok() && bytes->empty()) return absl::InvalidArgumentError("it is empty");
  return bytes;
}

}  // namespace

absl::StatusOr<ByteText> ByteText::Open(const std::string& path) {
  std::string name = absl::StrCat("data file ", Quoted(path));
  absl::StatusOr<std::string> bytes = ReadText(path);
  if (bytes.ok()) return ByteText(*std::move(bytes), std::move(name));
  return absl::Status(bytes.status().code(), absl::StrCat(name, ": ", bytes.status().message()));
}

absl::Status ByteText::CheckHolds(int64_t sequence) const {
  if (size() > sequence) return absl::OkStatus();
  // Unsigned: the largest sequence is 2^63 - 1.
  return absl::InvalidArgumentError(absl::StrCat(name_, " has ", size(), " bytes; a sequence of ",
                                                 sequence, " and its next byte need at least ",
                                                 static_cast<uint64_t>(sequence) + 1));
}

int64_t ByteText::WindowStart(uint64_t seed, int64_t step, int64_t row, int64_t sequence) const {
  const uint64_t bits = CounterHash(seed, static_cast<uint64_t>(step), static_cast<uint64_t>(row));
  const auto starts = static_cast<uint64_t>(size() - sequence);
  return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * starts) >> 64);
}

}  // namespace shardmesh::examples
