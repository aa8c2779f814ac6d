// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/time_profile.h"
#include "xxhash.h"

namespace shardmesh::mpi {
namespace {

using internal::BarrierRequest;
using internal::BroadcastRequest;
using internal::PostedCall;
using internal::SplitRequest;

class PostedWork final : public Work::State {
 public:
  PostedWork(std::shared_ptr<ProcessWorld> world, std::shared_ptr<Exchange> exchange,
             std::shared_ptr<RankContext> context)
      : world_(std::move(world)), exchange_(std::move(exchange)), context_(std::move(context)) {}

  ~PostedWork() override {
    if (!is_settled_) world_->Drop(*exchange_);
  }

  void Wait() override {
    if (is_settled_ && !world_->HasFailed()) return;
    is_settled_ = true;  // Also if this throws.
    const TimeProfile::Span span(context_->execution, TimeKind::kCommunication);
    world_->Wait(*exchange_);
  }

  bool IsDone() override {
    if (is_settled_) return true;
    const TimeProfile::Span span(context_->execution, TimeKind::kCommunication);
    return world_->Poll(*exchange_, patience_);
  }

 private:
  const std::shared_ptr<ProcessWorld> world_;
  const std::shared_ptr<Exchange> exchange_;
  const std::shared_ptr<RankContext> context_;
  bool is_settled_ = false;
  std::optional<internal::Patience> patience_;
};

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<ProcessWorld> world,
                                 std::shared_ptr<const GroupIdentity> group, int member,
                                 std::shared_ptr<RankContext> context)
    : Communicator(member, group->world_ranks, group->name, std::move(context)),
      world_(std::move(world)),
      group_(std::move(group)) {}

Work MpiCommunicator::Post(PostedCall call) {
  auto exchange = world_->Post(context(), group_, rank(), next_sequence_, std::move(call));
  ++next_sequence_;
  Work work(std::make_shared<PostedWork>(world_, std::move(exchange), rank_context()));
  if (rank_context()->synchronous) work.Wait();
  return work;
}

Work MpiCommunicator::DoAllGather(std::vector<AllGatherItem> batch, std::string_view op) {
  return Post({std::move(batch), std::nullopt, op});
}

Work MpiCommunicator::DoReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                                      std::string_view op) {
  return Post({std::move(batch), reduction, op});
}

Work MpiCommunicator::DoAllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                                  std::string_view op) {
  return Post({std::move(batch), reduction, op});
}

Work MpiCommunicator::DoAllToAll(std::vector<AllToAllItem> batch, std::string_view op) {
  return Post({std::move(batch), std::nullopt, op});
}

Work MpiCommunicator::DoBroadcast(std::vector<Tensor> tensors, int root, std::string_view op) {
  return Post({BroadcastRequest{std::move(tensors), root}, std::nullopt, op});
}

void MpiCommunicator::DoBarrier(std::string_view op) {
  Post({BarrierRequest{}, std::nullopt, op}).Wait();
}

// Members find each other by the identity alone, which each of them computes.
std::unique_ptr<Communicator> MpiCommunicator::DoSubgroup(const std::vector<int>& members,
                                                          std::string name, int ordinal) {
  auto group = std::make_shared<GroupIdentity>();
  std::vector<int64_t> words = {static_cast<int64_t>(group_->id), -1, ordinal};
  words.insert(words.end(), members.begin(), members.end());
  group->id = XXH3_64bits_withSeed(words.data(), words.size() * sizeof(words[0]),
                                   XXH3_64bits(name.data(), name.size()));
  group->name = std::move(name);
  for (const int member : members) group->world_ranks.push_back(world_ranks()[member]);
  const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
  return std::make_unique<MpiCommunicator>(world_, std::move(group), static_cast<int>(own),
                                           rank_context());
}

std::unique_ptr<Communicator> MpiCommunicator::Split(int color, int key, std::string name) {
  const int64_t sequence = next_sequence_;
  std::vector<SplitRequest> requests = {{color, key, name}};
  if (size() > 1) {
    const auto exchange = world_->Post(context(), group_, rank(), next_sequence_,
                                       {SplitRequest{color, key, name}, std::nullopt, name});
    ++next_sequence_;
    world_->Wait(*exchange);
    requests = exchange->split_requests();
  } else {
    ThrowIfFailed();
    ++next_sequence_;
  }
  std::vector<int> members;
  for (int m = 0; m < size(); ++m) {
    if (requests[m].color < 0) continue;
    for (int other = 0; other < m; ++other) {
      if (requests[other].color != requests[m].color || requests[other].name == requests[m].name)
        continue;
      // All members see it, and fail alike.
      const std::string message =
          absl::StrCat("mismatch: rank ", world_ranks()[m], " names the group of color ",
                       requests[m].color, " \"", requests[m].name, "\", rank ",
                       world_ranks()[other], " \"", requests[other].name, "\"");
      world_->Fail(absl::InvalidArgumentError(message));
      Throw(absl::StatusCode::kInvalidArgument, message);
    }
    if (requests[m].color == color) members.push_back(m);
  }
  if (color < 0) return nullptr;
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return requests[a].key < requests[b].key; });
  auto group = std::make_shared<GroupIdentity>();
  const int64_t words[] = {static_cast<int64_t>(group_->id), sequence, color};
  group->id = XXH3_64bits(words, sizeof(words));
  group->name = std::move(name);
  int member = 0;
  for (const int m : members) {
    if (m == rank()) member = static_cast<int>(group->world_ranks.size());
    group->world_ranks.push_back(world_ranks()[m]);
  }
  return std::make_unique<MpiCommunicator>(world_, std::move(group), member, rank_context());
}

}  // namespace shardmesh::mpi
