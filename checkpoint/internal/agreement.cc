// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/agreement.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr const char* kGather = "checkpoint_gather";
constexpr const char* kAgree = "checkpoint_agree";

int64_t Words(int64_t bytes) { return (bytes + 3) / 4; }

}  // namespace

std::vector<std::string> GatherTexts(Communicator* ranks, const std::string& own) {
  if (ranks == nullptr || ranks->size() == 1) return {own};
  ExecutionContext& context = ranks->context();
  AllGatherItem lengths;
  lengths.source = Tensor::FromValues<int64_t>(context, {1}, {static_cast<int64_t>(own.size())});
  for (int r = 0; r < ranks->size(); ++r)
    lengths.targets.push_back(Tensor::Empty(context, {1}, DType::kI64));
  const std::vector<Tensor> received = lengths.targets;
  ranks->AllGather({std::move(lengths)}, kGather).Wait();

  // No dtype is a byte.
  AllGatherItem texts;
  texts.source = Tensor::Empty(context, {Words(static_cast<int64_t>(own.size()))}, DType::kI32);
  if (!own.empty()) std::memcpy(texts.source.mutable_raw_data(), own.data(), own.size());
  std::vector<int64_t> sizes;
  for (const Tensor& length : received) {
    sizes.push_back(length.IntegerItem());
    texts.targets.push_back(Tensor::Empty(context, {Words(sizes.back())}, DType::kI32));
  }
  const std::vector<Tensor> words = texts.targets;
  ranks->AllGather({std::move(texts)}, kGather).Wait();
  std::vector<std::string> all;
  for (size_t r = 0; r < words.size(); ++r) {
    std::string text(static_cast<size_t>(sizes[r]), '\0');
    if (sizes[r] > 0) std::memcpy(text.data(), words[r].raw_data(), text.size());
    all.push_back(std::move(text));
  }
  return all;
}

absl::Status Agree(Communicator* ranks, const absl::Status& own) {
  if (ranks == nullptr || ranks->size() == 1) return own;
  Tensor failed = Tensor::FromValues<int32_t>(ranks->context(), {1}, {own.ok() ? 0 : 1});
  ranks->AllReduce({{failed, failed}}, ReduceOp::kMax, kAgree).Wait();
  if (failed.IntegerItem() == 0) return absl::OkStatus();
  const std::vector<std::string> all = GatherTexts(
      ranks,
      own.ok() ? "" : absl::StrCat(static_cast<int>(own.code()), " ", std::string(own.message())));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const size_t space = all[r].find(' ');
    return absl::Status(
        static_cast<absl::StatusCode>(std::stoi(all[r].substr(0, space))),
        absl::StrCat("rank ", ranks->world_ranks()[r], ": ", all[r].substr(space + 1)));
  }
  return absl::InternalError("checkpoint: a rank failed and did not say why");
}

}  // namespace shardmesh::checkpoint::internal
