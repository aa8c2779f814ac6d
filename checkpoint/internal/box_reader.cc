// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/box_reader.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/box_runs.h"
#include "shardmesh/checkpoint/internal/convert_elements.h"

namespace shardmesh::internal {
namespace {

// A gap shorter than a page contains no whole page, so reading it costs no further page of the
// disk.
constexpr int64_t kPageBytes = 4096;
// A multiple of every element's size; small enough for the data to stay in the cache between the
// read and the conversion.
constexpr int64_t kBufferBytes = 256 * 1024;

}  // namespace

BoxReader::BoxReader(const ByteSource& file, int64_t begin, DType from, DType to, void* target)
    : file_(file),
      tensor_begin_(begin),
      from_(from),
      to_(to),
      target_(static_cast<char*>(target)) {}

absl::Status BoxReader::Read(const Dims& shape, const Box& box) {
  BoxRuns runs(shape, box);
  const int64_t element_bytes = SizeOf(from_);
  const int64_t run_bytes = runs.run_elements() * element_bytes;
  // Bools always take the converting path, which checks that each byte is 0 or 1.
  const bool is_direct = from_ == to_ && from_ != DType::kBool && run_bytes >= kPageBytes;
  while (const std::optional<int64_t> first = runs.Next()) {
    const int64_t run_begin = tensor_begin_ + *first * element_bytes;
    if (is_direct) {
      SHARDMESH_RETURN_IF_ERROR(file_.ReadAt(run_begin, target_, run_bytes));
      target_ += run_bytes;
      continue;
    }
    for (int64_t done = 0; done < run_bytes; done += kBufferBytes) {
      SHARDMESH_RETURN_IF_ERROR(
          Add({.begin = run_begin + done, .bytes = std::min(kBufferBytes, run_bytes - done)}));
    }
  }
  return Flush();
}

absl::Status BoxReader::Add(Piece piece) {
  if (!pieces_.empty()) {
    const int64_t gap = piece.begin - (pieces_.back().begin + pieces_.back().bytes);
    const int64_t span = piece.begin + piece.bytes - pieces_.front().begin;
    if (gap >= kPageBytes || span > kBufferBytes) SHARDMESH_RETURN_IF_ERROR(Flush());
  }
  pieces_.push_back(piece);
  return absl::OkStatus();
}

absl::Status BoxReader::Flush() {
  if (pieces_.empty()) return absl::OkStatus();
  const int64_t begin = pieces_.front().begin;
  const int64_t bytes = pieces_.back().begin + pieces_.back().bytes - begin;
  if (static_cast<int64_t>(buffer_.size()) < bytes) buffer_.resize(static_cast<size_t>(bytes));
  SHARDMESH_RETURN_IF_ERROR(file_.ReadAt(begin, buffer_.data(), bytes));

  const int64_t element_bytes = SizeOf(from_);
  for (const Piece& piece : pieces_) {
    const char* source = buffer_.data() + (piece.begin - begin);
    const int64_t count = piece.bytes / element_bytes;
    if (const std::optional<int64_t> bad = ConvertElements(from_, source, to_, target_, count)) {
      return BadElement((piece.begin - tensor_begin_) / element_bytes + *bad,
                        source + *bad * element_bytes);
    }
    target_ += count * SizeOf(to_);
  }
  pieces_.clear();
  return absl::OkStatus();
}

absl::Status BoxReader::BadElement(int64_t index, const char* source) const {
  const bool is_invalid_bool = from_ == DType::kBool && *source != 0 && *source != 1;
  const std::string problem =
      IsFloating(to_) && !is_invalid_bool ? "would become infinite in " : "is not a valid ";
  return absl::OutOfRangeError(
      absl::StrCat("element ", index, " (row-major) is ", ElementToString(from_, source),
                   ", which ", problem, std::string(Name(is_invalid_bool ? DType::kBool : to_))));
}

}  // namespace shardmesh::internal
