// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/checksum.h"

#include <charconv>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr std::string_view kBegin = "{\"checksum\":\"";
constexpr size_t kDigits = 16;

}  // namespace

struct Checksum::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh3); }
Checksum::~Checksum() = default;
void Checksum::Add(const void* bytes, size_t count) {
  XXH3_64bits_update(state_->xxh3, bytes, count);
}
uint64_t Checksum::value() const { return XXH3_64bits_digest(state_->xxh3); }

uint64_t ChecksumOf(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string ChecksumText(uint64_t checksum) {
  return absl::StrCat(absl::Hex(checksum, absl::kZeroPad16));
}

std::optional<uint64_t> ParseChecksum(std::string_view text) {
  uint64_t checksum = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, checksum, 16);
  if (text.size() != kDigits || result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return checksum;
}

std::string WithChecksum(std::string_view json) {
  const std::string rest = "\"," + std::string(json.substr(1));
  return std::string(kBegin) + ChecksumText(ChecksumOf(rest)) + rest;
}

absl::StatusOr<std::string_view> CheckedText(std::string_view text) {
  if (text.substr(0, kBegin.size()) != kBegin || text.size() < kBegin.size() + kDigits)
    return absl::DataLossError("the index does not begin with its checksum");
  const std::optional<uint64_t> expected = ParseChecksum(text.substr(kBegin.size(), kDigits));
  const uint64_t found = ChecksumOf(text.substr(kBegin.size() + kDigits));
  if (expected == found) return text;
  return absl::DataLossError(absl::StrCat("the index is damaged: its checksum is ",
                                          ChecksumText(found), ", and it says ",
                                          expected ? ChecksumText(*expected) : "none"));
}

}  // namespace shardmesh::checkpoint::internal
