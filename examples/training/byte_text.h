// SPDX-License-Identifier: Apache-2.0
//
// The text to train on: its bytes in memory, and the windows of it that each step uses.
//
//   SHARDMESH_ASSIGN_OR_RETURN(ByteText text, ByteText::Open("kjv.txt"));
//   int64_t start = text.WindowStart(/*seed=*/1, /*step=*/0, /*row=*/3, /*sequence=*/128);
#ifndef SHARDMESH_EXAMPLES_TRAINING_BYTE_TEXT_H_
#define SHARDMESH_EXAMPLES_TRAINING_BYTE_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::examples {

/// The longest text that is read: it is held in memory.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

/// Immutable; any number of ranks may read it at once.
class ByteText {
 public:
  /// Reads the whole file; does not wait, whatever `path` is.
  /// Errors: one line that names `path`: the system's (kNotFound, kPermissionDenied, ...),
  /// kInvalidArgument if it is empty, longer than kMaxTextBytes or no regular file.
  static absl::StatusOr<ByteText> Open(const std::string& path);

  /// Messages call the text `name`.
  explicit ByteText(std::string bytes, std::string name = "the text")
      : bytes_(std::move(bytes)), name_(std::move(name)) {}

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& name() const { return name_; }
  int64_t operator[](int64_t index) const { return static_cast<uint8_t>(bytes_[index]); }

  /// kInvalidArgument naming both lengths unless a sequence and the byte after it fit.
  absl::Status CheckHolds(int64_t sequence) const;

  /// Where row `row` of the global batch of step `step` begins: floor(u (size() - sequence)) with
  /// u = CounterHash(seed, step, row) / 2^64, so that the inputs [start, start + sequence) and the
  /// targets, one byte later, are within the text. Rows do not depend on the mesh.
  int64_t WindowStart(uint64_t seed, int64_t step, int64_t row, int64_t sequence) const;

 private:
  std::string bytes_;
  std::string name_;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_BYTE_TEXT_H_
