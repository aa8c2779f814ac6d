// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/communicator.h"

#include <algorithm>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"
#include "shardmesh/comm/internal/operands.h"
#include "shardmesh/comm/internal/strided_view.h"
#include "shardmesh/tensor/time_profile.h"

namespace shardmesh {

using internal::BumpVersions;
using internal::BytesSent;
using internal::CallSite;
using internal::CheckOperands;

namespace {

CallSite SiteOf(const Communicator& communicator, CollectiveKind kind, std::string_view op) {
  return {kind,
          op,
          communicator.name(),
          communicator.rank(),
          communicator.size(),
          communicator.context().device()};
}

// In a group of one: the result is the source.
void CopyLocal(const Tensor& source, const Tensor& target) {
  const internal::StridedView from(source);
  internal::StridedView::Copy(from, internal::StridedView(target), 0, from.elements());
}

}  // namespace

Communicator::Communicator(int rank, std::vector<int> world_ranks, std::string name,
                           std::shared_ptr<RankContext> context)
    : rank_(rank),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      context_(std::move(context)) {}

Work Communicator::AllGather(std::vector<AllGatherItem> batch, std::string_view op) {
  const CallSite site = SiteOf(*this, CollectiveKind::kAllGather, op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  if (size() == 1) {
    ThrowIfFailed();
    for (const AllGatherItem& item : batch) CopyLocal(item.source, item.targets[0]);
    return Work();
  }
  return DoAllGather(std::move(batch), op);
}

Work Communicator::ReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                                 std::string_view op) {
  const CallSite site = SiteOf(*this, CollectiveKind::kReduceScatter, op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  if (size() == 1) {
    ThrowIfFailed();
    for (const ReduceScatterItem& item : batch) CopyLocal(item.sources[0], item.target);
    return Work();
  }
  return DoReduceScatter(std::move(batch), reduction, op);
}

Work Communicator::AllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                             std::string_view op) {
  const CallSite site = SiteOf(*this, CollectiveKind::kAllReduce, op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  if (size() == 1) {
    ThrowIfFailed();
    for (const AllReduceItem& item : batch) CopyLocal(item.source, item.target);
    return Work();
  }
  return DoAllReduce(std::move(batch), reduction, op);
}

Work Communicator::AllToAll(std::vector<AllToAllItem> batch, std::string_view op) {
  const CallSite site = SiteOf(*this, CollectiveKind::kAllToAll, op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  if (size() == 1) {
    ThrowIfFailed();
    for (const AllToAllItem& item : batch) CopyLocal(item.sends[0], item.receives[0]);
    return Work();
  }
  return DoAllToAll(std::move(batch), op);
}

Work Communicator::Broadcast(std::vector<Tensor> tensors, int root, std::string_view op) {
  const CallSite site = SiteOf(*this, CollectiveKind::kBroadcast, op);
  CheckOperands(site, tensors, root);
  Observe(site.kind, op, [&] { return BytesSent(site, tensors, root); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(tensors);
  if (size() == 1) {
    ThrowIfFailed();
    return Work();
  }
  return DoBroadcast(std::move(tensors), root, op);
}

void Communicator::Barrier(std::string_view op) {
  Observe(CollectiveKind::kBarrier, op, [] { return int64_t{0}; });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  if (size() == 1) {
    ThrowIfFailed();
    return;
  }
  DoBarrier(op);
}

std::unique_ptr<Communicator> Communicator::Subgroup(const std::vector<int>& members,
                                                     std::string name) {
  bool has_own = false;
  std::vector<bool> seen(world_ranks_.size());
  for (const int member : members) {
    if (member < 0 || member >= size() || seen[member]) {
      ThrowInvalid(
          "Subgroup \"", name, "\" of group \"", name_, "\": member ", member,
          member < 0 || member >= size() ? " is not one of its " : " is given twice; it has ",
          size());
    }
    seen[member] = true;
    has_own = has_own || member == rank_;
  }
  if (!has_own) {
    ThrowInvalid("Subgroup \"", name, "\" of group \"", name_, "\": rank ", rank_,
                 " is not one of its members ", RankList(members));
  }
  const int ordinal = num_subgroups_[{members, name}]++;
  return DoSubgroup(members, std::move(name), ordinal);
}

void Communicator::AddObserver(CollectiveObserver* observer) {
  context_->observers.push_back(observer);
}

void Communicator::RemoveObserver(CollectiveObserver* observer) {
  std::erase(context_->observers, observer);
}

void Communicator::Observe(CollectiveKind kind, std::string_view op,
                           absl::FunctionRef<int64_t()> bytes_sent) {
  if (size() == 1) return;
  const std::vector<CollectiveObserver*>& observers = context_->observers;
  if (observers.empty()) return;
  const CollectiveEvent event = {name_, size(), kind, op, bytes_sent()};
  for (CollectiveObserver* observer : observers) observer->OnCollective(event);
}

}  // namespace shardmesh
