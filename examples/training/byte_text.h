// SPDX-License-Identifier: Apache-2.0
//
// The text to train on: bytes in memory, and which windows of it a step sees.
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

/// Immutable; any number of ranks may read it at once.
class ByteText {
 public:
  /// Reads the whole file.
  /// Errors: one line that names `path`: kNotFound if it cannot be read, kInvalidArgument if it is
  /// empty or a directory.
  static absl::StatusOr<ByteText> Open(const std::string& path);

  /// `name` stands for the text in messages.
  explicit ByteText(std::string bytes, std::string name = "the text")
      : bytes_(std::move(bytes)), name_(std::move(name)) {}

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& name() const { return name_; }
  int64_t operator[](int64_t index) const { return static_cast<uint8_t>(bytes_[index]); }

  /// kInvalidArgument naming both lengths unless a sequence and the byte after it fit.
  absl::Status CheckHolds(int64_t sequence) const;

  /// Where row `row` of the global batch of step `step` begins: floor(u (size() - sequence)) with
  /// u = CounterHash(seed, step, row) / 2^64, so inputs [start, start + sequence) and targets one
  /// byte further on lie within the text. Whatever the mesh, a row is the same.
  int64_t WindowStart(uint64_t seed, int64_t step, int64_t row, int64_t sequence) const;

 private:
  std::string bytes_;
  std::string name_;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_BYTE_TEXT_H_
