// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/inprocess/inprocess_communicator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shardmesh/tensor/time_profile.h"

namespace shardmesh::inprocess {
namespace {

class PostedWork final : public Work::State {
 public:
  PostedWork(std::shared_ptr<World> world, std::shared_ptr<Collective> collective, int member,
             std::shared_ptr<RankContext> context)
      : world_(std::move(world)),
        collective_(std::move(collective)),
        member_(member),
        context_(std::move(context)) {}

  ~PostedWork() override {
    if (!is_settled_) world_->Drop(*collective_, member_, context_->execution);
  }

  void Wait() override {
    if (is_settled_ && !world_->HasFailed()) return;
    is_settled_ = true;  // Also if this throws.
    const TimeProfile::Span span(context_->execution, TimeKind::kCommunication);
    world_->Wait(*collective_, member_);
  }

  bool IsDone() override {
    if (is_settled_) return true;
    const TimeProfile::Span span(context_->execution, TimeKind::kCommunication);
    return world_->Poll(*collective_, member_, polls_);
  }

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Collective> collective_;
  const int member_;
  const std::shared_ptr<RankContext> context_;  // Of the rank that posted.
  bool is_settled_ = false;
  std::optional<PollRecord> polls_;
};

}  // namespace

InprocessCommunicator::InprocessCommunicator(std::shared_ptr<World> world,
                                             std::shared_ptr<Group> group, int member,
                                             std::shared_ptr<RankContext> context)
    : Communicator(member, group->identity->world_ranks, group->identity->name, std::move(context)),
      world_(std::move(world)),
      group_(std::move(group)) {}

Work InprocessCommunicator::Post(PostedCall call) {
  auto collective = world_->Post(group_, rank(), next_sequence_, std::move(call));
  ++next_sequence_;
  Work work(std::make_shared<PostedWork>(world_, std::move(collective), rank(), rank_context()));
  if (rank_context()->synchronous) work.Wait();
  return work;
}

Work InprocessCommunicator::DoAllGather(std::vector<AllGatherItem> batch, std::string_view op) {
  return Post({std::move(batch), std::nullopt, op});
}

Work InprocessCommunicator::DoReduceScatter(std::vector<ReduceScatterItem> batch,
                                            ReduceOp reduction, std::string_view op) {
  return Post({std::move(batch), reduction, op});
}

Work InprocessCommunicator::DoAllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                                        std::string_view op) {
  return Post({std::move(batch), reduction, op});
}

Work InprocessCommunicator::DoAllToAll(std::vector<AllToAllItem> batch, std::string_view op) {
  return Post({std::move(batch), std::nullopt, op});
}

Work InprocessCommunicator::DoBroadcast(std::vector<Tensor> tensors, int root,
                                        std::string_view op) {
  return Post({BroadcastRequest{std::move(tensors), root}, std::nullopt, op});
}

void InprocessCommunicator::DoBarrier(std::string_view op) {
  Post({BarrierRequest{}, std::nullopt, op}).Wait();
}

std::unique_ptr<Communicator> InprocessCommunicator::DoSubgroup(const std::vector<int>& members,
                                                                std::string name, int ordinal) {
  const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
  return std::make_unique<InprocessCommunicator>(world_,
                                                 world_->Subgroup(*group_, members, name, ordinal),
                                                 static_cast<int>(own), rank_context());
}

std::unique_ptr<Communicator> InprocessCommunicator::Split(int color, int key, std::string name) {
  std::shared_ptr<Group> group;
  int member = 0;
  if (size() > 1) {
    auto collective = world_->Post(group_, rank(), next_sequence_++,
                                   {SplitRequest{color, key, name}, std::nullopt, name});
    world_->Wait(*collective, rank());
    std::tie(group, member) = collective->SplitResult(rank());
  } else {
    world_->ThrowIfFailed();
    if (color >= 0) group = std::make_shared<Group>(std::move(name), group_->identity->world_ranks);
  }
  if (group == nullptr) return nullptr;
  return std::make_unique<InprocessCommunicator>(world_, std::move(group), member, rank_context());
}

}  // namespace shardmesh::inprocess
