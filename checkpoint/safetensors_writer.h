// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file that is to be written, and where each tensor goes.
#ifndef SHARDMESH_CHECKPOINT_SAFETENSORS_WRITER_H_
#define SHARDMESH_CHECKPOINT_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh {

/// "F32", "BOOL", ...
std::string SafetensorsName(DType dtype);
std::optional<DType> DTypeOfSafetensors(std::string_view name);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
};

struct SafetensorsPlan {
  std::string header;          ///< The first bytes of the file, padded to a multiple of 8.
  std::vector<int64_t> begin;  ///< In the file, of each tensor as it was given.
  int64_t file_bytes = 0;
};

/// Wider elements come first, so that each tensor is aligned; equally wide ones keep their order.
/// Errors: kInvalidArgument naming a name or a metadata text that is not UTF-8, or a name that is
///         there twice or is "__metadata__"; kOutOfRange if the header is longer than readers
///         accept.
absl::StatusOr<SafetensorsPlan> PlanSafetensors(std::span<const TensorToWrite> tensors,
                                                const std::map<std::string, std::string>& metadata);

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_SAFETENSORS_WRITER_H_
