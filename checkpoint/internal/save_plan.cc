// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/save_plan.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/internal/share.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr const char* kDcpShardingInfo = "DCP_SHARDING_INFO";

std::optional<Box> ShareOf(const TensorToSave& tensor, int rank, ShareMaker& shares) {
  if (tensor.layout)
    return shares.Next(tensor.layout, tensor.coord, SizeOf(tensor.dtype), tensor.region);
  return rank == 0 ? std::optional(tensor.region) : std::nullopt;
}

StoredArray ArrayOf(const TensorToSave& tensor) {
  StoredArray array;
  array.name = tensor.name;
  array.aliases = tensor.aliases;
  array.dtype = tensor.dtype;
  array.file_dtype = SafetensorsName(tensor.dtype);
  array.shape = tensor.region.Extents();
  array.layout = tensor.layout ? tensor.layout.ToString() : "";
  return array;
}

// Places the pieces in the file, and names it.
absl::Status PlanFile(const nlohmann::json& offsets, std::span<const TensorToWrite> to_write,
                      std::map<std::string, std::string> metadata, const std::string& name,
                      SavePlan& plan) {
  metadata.emplace("format", "pt");  // What transformers asks for.
  try {
    metadata[kDcpShardingInfo] = offsets.dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("the name of a tensor is not UTF-8");
  }
  SHARDMESH_ASSIGN_OR_RETURN(plan.file, PlanSafetensors(to_write, metadata));
  plan.contents.files.push_back({name, plan.file.file_bytes, ChecksumOf(plan.file.header)});
  size_t next = 0;
  for (StoredArray& array : plan.contents.arrays) {
    for (StoredPiece& piece : array.pieces) piece.begin = plan.file.begin[next++];
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavePlan> PlanSave(std::span<const TensorToSave> tensors, int rank, int num_ranks,
                                  std::map<std::string, std::string> metadata) {
  SavePlan plan;
  ShareMaker shares;
  std::vector<TensorToWrite> to_write;
  nlohmann::json offsets = nlohmann::json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorToSave& tensor = tensors[i];
    StoredArray array = ArrayOf(tensor);
    if (const std::optional<Box> share = ShareOf(tensor, rank, shares)) {
      Box box = *share;
      for (int d = 0; d < box.num_dims(); ++d) {
        box.begin[d] -= tensor.region.begin[d];
        box.end[d] -= tensor.region.begin[d];
      }
      array.pieces.push_back({0, box, 0, box.NumElements() * SizeOf(tensor.dtype), {}});
      to_write.push_back({tensor.name, tensor.dtype, box.Extents()});
      offsets[tensor.name] = {
          {"saved_offsets", std::vector<int64_t>(box.begin.begin(), box.begin.end())}};
      plan.boxes.emplace_back(i, *share);
    }
    plan.contents.arrays.push_back(std::move(array));
  }
  if (plan.boxes.empty()) return plan;
  const std::string name = absl::StrFormat("shard-%05d-of-%05d.safetensors", rank + 1, num_ranks);
  SHARDMESH_RETURN_IF_ERROR(PlanFile(offsets, to_write, std::move(metadata), name, plan));
  return plan;
}

}  // namespace shardmesh::checkpoint::internal
