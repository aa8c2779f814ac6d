// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/safetensors_header.h"

namespace shardmesh {
namespace {

constexpr const char* kMetadata = "__metadata__";

absl::StatusOr<std::string> JsonText(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError(absl::StrCat("the text ", Quoted(text), " is not UTF-8"));
  }
}

}  // namespace

std::string SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kBool:
      return "BOOL";
  }
  return "";
}

std::optional<DType> DTypeOfSafetensors(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32,
                            DType::kI64, DType::kBool}) {
    if (SafetensorsName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

absl::StatusOr<SafetensorsPlan> PlanSafetensors(
    std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SizeOf(tensors[a].dtype) > SizeOf(tensors[b].dtype);
  });
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, value] : metadata) {
      SHARDMESH_ASSIGN_OR_RETURN(const std::string key_text, JsonText(key));
      SHARDMESH_ASSIGN_OR_RETURN(const std::string value_text, JsonText(value));
      texts.push_back(absl::StrCat(key_text, ":", value_text));
    }
    members.push_back(absl::StrCat("\"", kMetadata, "\":{", absl::StrJoin(texts, ","), "}"));
  }
  SafetensorsPlan plan;
  plan.begin.resize(tensors.size());
  std::unordered_set<std::string> names = {kMetadata};
  int64_t end = 0;
  for (size_t i : order) {
    const TensorToWrite& tensor = tensors[i];
    if (!names.insert(tensor.name).second)
      return absl::InvalidArgumentError(
          absl::StrCat("the name ", Quoted(tensor.name), " is there twice, or no tensor's"));
    SHARDMESH_ASSIGN_OR_RETURN(const std::string name, JsonText(tensor.name));
    plan.begin[i] = end;
    end += tensor.shape.NumElements() * SizeOf(tensor.dtype);
    members.push_back(absl::StrCat(name, ":{\"dtype\":\"", SafetensorsName(tensor.dtype),
                                   "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                   "],\"data_offsets\":[", plan.begin[i], ",", end, "]}"));
  }
  std::string json = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderBytes) {
    return absl::OutOfRangeError(absl::StrCat("a safetensors header of ", json.size(),
                                              " bytes; readers accept ",
                                              kMaxSafetensorsHeaderBytes));
  }
  const uint64_t length = json.size();
  plan.header.resize(sizeof(length));
  for (size_t i = 0; i < sizeof(length); ++i)
    plan.header[i] = static_cast<char>(length >> (8 * i) & 0xff);
  plan.header += json;
  const auto data_begin = static_cast<int64_t>(plan.header.size());
  for (int64_t& begin : plan.begin) begin += data_begin;
  plan.file_bytes = data_begin + end;
  return plan;
}

}  // namespace shardmesh
