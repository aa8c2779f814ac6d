// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/communicator.h"

#include <algorithm>
#include <utility>

#include "shardmesh/comm/internal/operands.h"
#include "shardmesh/tensor/time_profile.h"

namespace shardmesh {

using internal::BumpVersions;
using internal::BytesSent;
using internal::CallSite;
using internal::CheckOperands;

struct Communicator::ObserverList {
  std::vector<CollectiveObserver*> observers;
};

namespace {

CallSite SiteOf(const Communicator& communicator, std::string_view kind, std::string_view op) {
  return {kind,
          op,
          communicator.name(),
          communicator.rank(),
          communicator.size(),
          communicator.context().device()};
}

}  // namespace

Communicator::Communicator(int rank, std::vector<int> world_ranks, std::string name)
    : rank_(rank), world_ranks_(std::move(world_ranks)), name_(std::move(name)) {}

Work Communicator::AllGather(std::vector<AllGatherItem> batch, std::string_view op) {
  const CallSite site = SiteOf(*this, "all_gather", op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  return DoAllGather(std::move(batch), op);
}

Work Communicator::ReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                                 std::string_view op) {
  const CallSite site = SiteOf(*this, "reduce_scatter", op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  return DoReduceScatter(std::move(batch), reduction, op);
}

Work Communicator::AllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                             std::string_view op) {
  const CallSite site = SiteOf(*this, "all_reduce", op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  return DoAllReduce(std::move(batch), reduction, op);
}

Work Communicator::AllToAll(std::vector<AllToAllItem> batch, std::string_view op) {
  const CallSite site = SiteOf(*this, "all_to_all", op);
  CheckOperands(site, batch);
  Observe(site.kind, op, [&] { return BytesSent(site, batch); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(batch);
  return DoAllToAll(std::move(batch), op);
}

Work Communicator::Broadcast(std::vector<Tensor> tensors, int root, std::string_view op) {
  const CallSite site = SiteOf(*this, "broadcast", op);
  CheckOperands(site, tensors, root);
  Observe(site.kind, op, [&] { return BytesSent(site, tensors, root); });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  BumpVersions(tensors);
  return DoBroadcast(std::move(tensors), root, op);
}

void Communicator::Barrier(std::string_view op) {
  Observe("barrier", op, [] { return int64_t{0}; });
  const TimeProfile::Span span(context(), TimeKind::kCommunication);
  DoBarrier(op);
}

Communicator::ObserverList& Communicator::Observers() {
  if (observers_ == nullptr) observers_ = locals().Share<ObserverList>();
  return *observers_;
}

void Communicator::AddObserver(CollectiveObserver* observer) {
  Observers().observers.push_back(observer);
}

void Communicator::RemoveObserver(CollectiveObserver* observer) {
  std::erase(Observers().observers, observer);
}

void Communicator::Observe(std::string_view kind, std::string_view op,
                           absl::FunctionRef<int64_t()> bytes_sent) {
  if (size() == 1) return;
  const std::vector<CollectiveObserver*>& observers = Observers().observers;
  if (observers.empty()) return;
  const CollectiveEvent event = {name_, size(), kind, op, bytes_sent()};
  for (CollectiveObserver* observer : observers) observer->OnCollective(event);
}

}  // namespace shardmesh
