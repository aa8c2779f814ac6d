// SPDX-License-Identifier: Apache-2.0
//
// Checksums of checkpoints: XXH3 with 64 bits.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_CHECKSUM_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shardmesh::checkpoint::internal {

uint64_t ChecksumOf(std::string_view bytes);

/// Of bytes that come in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void Add(const void* bytes, size_t count);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits.
std::string ChecksumText(uint64_t checksum);
std::optional<uint64_t> ParseChecksum(std::string_view text);

/// An index file: a JSON object whose first member is the checksum of all that follows it, up to
/// the end. `json` is an object of at least one member, without leading space.
std::string WithChecksum(std::string_view json);
/// The whole of such a text, once its checksum was found right. Errors: kDataLoss if it is not, or
/// there is none.
absl::StatusOr<std::string_view> CheckedText(std::string_view text);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_CHECKSUM_H_
