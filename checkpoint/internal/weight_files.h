// SPDX-License-Identifier: Apache-2.0
//
// How whole tensors are spread over files, and Hugging Face's names and index of these.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_WEIGHT_FILES_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_WEIGHT_FILES_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/safetensors_writer.h"

namespace shardmesh::checkpoint::internal {

inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

/// A file, with the tensors of it by their positions in a list.
struct WeightFile {
  std::string name;
  std::vector<size_t> tensors;
  SafetensorsPlan plan;
};

/// Consecutive tensors; a file ends before the one with which it would be larger than
/// `max_file_bytes`, and has at least one. No file if there is no tensor.
std::vector<std::vector<size_t>> SplitIntoFiles(std::span<const TensorToWrite> tensors,
                                                int64_t max_file_bytes);

/// "model.safetensors", or "model-00001-of-0000n.safetensors" and so on. At least one file.
/// Errors: those of PlanSafetensors.
absl::StatusOr<std::vector<WeightFile>> PlanWeightFiles(
    std::span<const TensorToWrite> tensors, int64_t max_file_bytes,
    const std::map<std::string, std::string>& metadata);

/// The text of kWeightsIndex, which goes with more than one file.
std::string WeightsIndex(std::span<const TensorToWrite> tensors, std::span<const WeightFile> files);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_WEIGHT_FILES_H_
