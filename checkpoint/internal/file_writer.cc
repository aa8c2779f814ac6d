// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/file_writer.h"

#include "shardmesh/base/status_macros.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr int64_t kBufferBytes = 1 << 20;

}  // namespace

absl::Status FileWriter::Add(const char* bytes, int64_t count) {
  checksum_->Add(bytes, static_cast<size_t>(count));
  if (static_cast<int64_t>(buffer_.size()) + count > kBufferBytes)
    SHARDMESH_RETURN_IF_ERROR(Flush());
  if (count >= kBufferBytes) {
    SHARDMESH_RETURN_IF_ERROR(file_.WriteAt(offset_, bytes, count));
    offset_ += count;
    return absl::OkStatus();
  }
  buffer_.append(bytes, static_cast<size_t>(count));
  return absl::OkStatus();
}

absl::Status FileWriter::SeekTo(int64_t offset) {
  if (offset == offset_ + static_cast<int64_t>(buffer_.size())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(Flush());
  offset_ = offset;
  return absl::OkStatus();
}

absl::Status FileWriter::Flush() {
  if (buffer_.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(buffer_.size());
  SHARDMESH_RETURN_IF_ERROR(file_.WriteAt(offset_, buffer_.data(), bytes));
  offset_ += bytes;
  buffer_.clear();
  return absl::OkStatus();
}

uint64_t FileWriter::TakeChecksum() {
  const uint64_t value = checksum_->value();
  checksum_ = std::make_unique<Checksum>();
  return value;
}

}  // namespace shardmesh::checkpoint::internal
