// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/weight_files.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::checkpoint::internal {
namespace {

int64_t BytesOf(const TensorToWrite& tensor) {
  return tensor.shape.NumElements() * SizeOf(tensor.dtype);
}

}  // namespace

std::vector<std::vector<size_t>> SplitIntoFiles(std::span<const TensorToWrite> tensors,
                                                int64_t max_file_bytes) {
  std::vector<std::vector<size_t>> files;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (files.empty() || bytes + BytesOf(tensors[i]) > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += BytesOf(tensors[i]);
    files.back().push_back(i);
  }
  return files;
}

absl::StatusOr<std::vector<WeightFile>> PlanWeightFiles(
    std::span<const TensorToWrite> tensors, int64_t max_file_bytes,
    const std::map<std::string, std::string>& metadata) {
  std::vector<std::vector<size_t>> split = SplitIntoFiles(tensors, max_file_bytes);
  if (split.empty()) split.emplace_back();
  std::vector<WeightFile> files;
  for (std::vector<size_t>& own : split) {
    WeightFile file;
    file.name = split.size() == 1 ? "model.safetensors"
                                  : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                    files.size() + 1, split.size());
    std::vector<TensorToWrite> to_write;
    for (size_t i : own) to_write.push_back(tensors[i]);
    SHARDMESH_ASSIGN_OR_RETURN(file.plan, PlanSafetensors(to_write, metadata));
    file.tensors = std::move(own);
    files.push_back(std::move(file));
  }
  return files;
}

std::string WeightsIndex(std::span<const TensorToWrite> tensors,
                         std::span<const WeightFile> files) {
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0;
  for (const WeightFile& file : files) {
    for (size_t i : file.tensors) {
      map[tensors[i].name] = file.name;
      bytes += BytesOf(tensors[i]);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

}  // namespace shardmesh::checkpoint::internal
