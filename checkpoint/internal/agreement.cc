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

// No dtype is a byte.
Tensor EmptyWords(ExecutionContext& context, int64_t bytes) {
  return Tensor::Empty(context, {(bytes + 3) / 4}, DType::kI32);
}

Tensor WordsOf(ExecutionContext& context, const std::string& text) {
  Tensor words = EmptyWords(context, static_cast<int64_t>(text.size()));
  if (!text.empty()) std::memcpy(words.mutable_raw_data(), text.data(), text.size());
  return words;
}

std::vector<std::string> TextsOf(const std::vector<Tensor>& words,
                                 const std::vector<int64_t>& sizes) {
  std::vector<std::string> texts;
  for (size_t r = 0; r < words.size(); ++r) {
    std::string text(static_cast<size_t>(sizes[r]), '\0');
    if (sizes[r] > 0) std::memcpy(text.data(), words[r].raw_data(), text.size());
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<int64_t> GatherSizes(Communicator& ranks, const std::string& own) {
  ExecutionContext& context = ranks.context();
  AllGatherItem lengths;
  lengths.source = Tensor::FromValues<int64_t>(context, {1}, {static_cast<int64_t>(own.size())});
  Tensor all = Tensor::Empty(context, {ranks.size()}, DType::kI64);
  for (int r = 0; r < ranks.size(); ++r)
    lengths.targets.push_back(Tensor::Over(all.storage(), {1}, DType::kI64, all.offset() + r));
  ranks.AllGather({std::move(lengths)}, kGather).Wait();
  return all.ToVector<int64_t>();
}

}  // namespace

std::vector<std::string> GatherTexts(Communicator* ranks, const std::string& own) {
  if (ranks == nullptr || ranks->size() == 1) return {own};
  const std::vector<int64_t> sizes = GatherSizes(*ranks, own);
  AllGatherItem texts;
  texts.source = WordsOf(ranks->context(), own);
  for (int64_t size : sizes) texts.targets.push_back(EmptyWords(ranks->context(), size));
  const std::vector<Tensor> words = texts.targets;
  ranks->AllGather({std::move(texts)}, kGather).Wait();
  return TextsOf(words, sizes);
}

std::vector<std::string> GatherTextsToFirst(Communicator* ranks, const std::string& own) {
  if (ranks == nullptr || ranks->size() == 1) return {own};
  const std::vector<int64_t> sizes = GatherSizes(*ranks, own);
  const bool is_first = ranks->rank() == 0;
  AllToAllItem texts;
  for (int r = 0; r < ranks->size(); ++r) {
    texts.sends.push_back(WordsOf(ranks->context(), r == 0 ? own : ""));
    texts.receives.push_back(EmptyWords(ranks->context(), is_first ? sizes[r] : 0));
  }
  const std::vector<Tensor> words = texts.receives;
  ranks->AllToAll({std::move(texts)}, kGather).Wait();
  return is_first ? TextsOf(words, sizes) : std::vector<std::string>();
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
