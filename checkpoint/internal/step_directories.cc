// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/step_directories.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/checkpoint/contents.h"

namespace shardmesh::checkpoint::internal {

std::optional<int64_t> StepOf(std::string_view name) {
  if (name.substr(0, kStepPrefix.size()) != kStepPrefix) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_canonical = result.ec == std::errc() &&
                            result.ptr == digits.data() + digits.size() &&
                            std::to_string(step) == digits;
  return is_canonical && step >= 0 ? std::optional(step) : std::nullopt;
}

bool IsWhole(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(absl::StrCat(path, "/", kIndexName), error)) return false;
  const absl::StatusOr<Contents> contents = Contents::Open(path);
  if (!contents.ok()) return false;
  return std::all_of(contents->files.begin(), contents->files.end(), [&](const StoredFile& file) {
    const auto bytes = std::filesystem::file_size(absl::StrCat(path, "/", file.name), error);
    return !error && static_cast<int64_t>(bytes) == file.bytes;
  });
}

}  // namespace shardmesh::checkpoint::internal
