// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/located.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/checkpoint/internal/step_directories.h"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::checkpoint::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDcpShardingInfo = "DCP_SHARDING_INFO";

bool HasBoxes(const std::string& path) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  return file.ok() && file->metadata().count(kDcpShardingInfo) > 0;
}

absl::StatusOr<Located> LatestStep(const std::string& path, std::vector<int64_t> steps,
                                   Console& console) {
  std::sort(steps.begin(), steps.end(), std::greater<>());
  for (const int64_t step : steps) {
    const std::string own = absl::StrCat(path, "/", std::string(internal::kStepPrefix), step);
    if (internal::IsWhole(own)) return Located{own, Format::kShardmesh};
    console.err << "checkpoint: note: " << Quoted(own) << " is not whole and is passed over\n";
  }
  return absl::NotFoundError(
      absl::StrCat(Quoted(path), ": none of its ", steps.size(), " checkpoints is whole"));
}

}  // namespace

std::string ToString(Format format) {
  switch (format) {
    case Format::kShardmesh:
      return "Shardmesh";
    case Format::kPyTorch:
      return "PyTorch distributed";
    case Format::kHuggingFace:
      return "Hugging Face";
  }
  return "";
}

absl::StatusOr<Located> Locate(const std::string& path, Console& console) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(Quoted(path), ": ", error ? error.message() : "there is no such file"));
  }
  if (!fs::is_directory(path, error))
    return Located{path, HasBoxes(path) ? Format::kPyTorch : Format::kHuggingFace};
  if (fs::exists(absl::StrCat(path, "/", kIndexName), error))
    return Located{path, Format::kShardmesh};
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, SystemFiles().List(path));
  bool has_files = false, has_boxes = false;
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = internal::StepOf(name)) steps.push_back(*step);
    if (absl::EndsWith(name, ".safetensors")) {
      has_files = true;
      has_boxes = has_boxes || HasBoxes(absl::StrCat(path, "/", name));
    }
    has_files = has_files || absl::EndsWith(name, ".index.json");
  }
  if (has_files) return Located{path, has_boxes ? Format::kPyTorch : Format::kHuggingFace};
  if (!steps.empty()) return LatestStep(path, std::move(steps), console);
  const absl::Status status = Contents::Open(path).status();  // Says what there is instead.
  if (!status.ok()) return status;
  return absl::NotFoundError(absl::StrCat(Quoted(path), ": there is no checkpoint"));
}

absl::StatusOr<Contents> OpenContents(const Located& located) {
  return Contents::Open(located.path);
}

std::string PathOf(const Contents& contents, const StoredFile& file) {
  std::error_code error;
  const fs::path path(contents.path);
  return ((fs::is_directory(path, error) ? path : path.parent_path()) / file.name).string();
}

int64_t SaturatingSum(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t BytesOf(const StoredArray& array) {
  int64_t bytes = 0;
  for (const StoredPiece& piece : array.pieces) bytes = SaturatingSum(bytes, piece.bytes);
  return bytes;
}

int64_t BytesOf(const Contents& contents) {
  int64_t bytes = 0;
  for (const StoredArray& array : contents.arrays) bytes = SaturatingSum(bytes, BytesOf(array));
  return bytes;
}

}  // namespace shardmesh::checkpoint::tool
