// SPDX-License-Identifier: Apache-2.0
//
// Writes whole tensors from many ranks, in the files that Hugging Face's tools read.
//
//   absl::Status status = checkpoint::ExportHuggingFace("exported", nn::State(model),
//                                                       {.dtype = DType::kBF16});
#ifndef SHARDMESH_CHECKPOINT_EXPORT_H_
#define SHARDMESH_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint {

struct ExportOptions {
  /// A file ends before the tensor with which it would be larger. At least one tensor a file.
  int64_t max_file_bytes = 5'000'000'000;
  /// Of all floating-point tensors; default: as they are.
  std::optional<DType> dtype = std::nullopt;
  /// Further files of the directory, by name: "config.json".
  std::map<std::string, std::string> texts = {};
  /// Of these, `metadata` is for each file.
  SaveOptions save = {};
};

/// Writes `directory`: model.safetensors, or model-00001-of-0000n.safetensors and
/// model.safetensors.index.json. Tensors are whole and in the order of the state, a tied one under
/// its first name; plain values are left out. Each rank writes its boxes straight to where they
/// belong, so nothing is gathered, and the bytes are those that one rank would write. It is there
/// once it is whole, or not at all.
///
/// Collective over the ranks. Memory: 1 MiB a rank, with `dtype` 3 MiB.
/// Errors: as Save; kInvalidArgument if `dtype` is not floating-point or a text has the name of
///         another file.
absl::Status ExportHuggingFace(const std::string& directory, const StateDict& state,
                               const ExportOptions& options = {});

}  // namespace shardmesh::checkpoint

#endif  // SHARDMESH_CHECKPOINT_EXPORT_H_
