// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: which tensors it holds and where. The format:
// docs/checkpoint_format.md.
#ifndef SHARDMESH_CHECKPOINT_SAFETENSORS_HEADER_H_
#define SHARDMESH_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh {

/// A tensor in a file.
struct StoredTensor {
  std::string name;
  std::string file_dtype;  ///< As the file spells it: "F32", "U8", "F8_E4M3", ...
  /// Absent for dtypes that Shardmesh does not compute with; such a tensor cannot be read.
  std::optional<DType> dtype;
  /// May have more than Dims::kMaxRank dims; such a tensor cannot be read either.
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< Its bytes are [begin, end) of the file.
  int64_t end = 0;

  int64_t Bytes() const { return end - begin; }
  int64_t NumElements() const;
  /// "f32[3,5]"; "U8[4]" where there is no DType.
  std::string ToString() const;
};

/// The header of one file.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< In the order of their bytes in the file.
  std::map<std::string, std::string> metadata;  ///< The free text under "__metadata__", or none.
};

/// The longest header that is read, in bytes: the limit of the format's own library.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Parses the JSON of a header. The tensors must cover the bytes [data_begin, file_bytes) of the
/// file exactly once.
///
/// Errors: kInvalidArgument; the message names the tensor, not the file.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_begin,
                                                         int64_t file_bytes);

}  // namespace shardmesh

#endif  // SHARDMESH_CHECKPOINT_SAFETENSORS_HEADER_H_
