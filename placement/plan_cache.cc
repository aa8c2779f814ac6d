// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/plan_cache.h"

namespace shardmesh {

PlanCache::Entry::Entry(Layout from, Layout to, Plan plan)
    : from_(std::move(from)),
      to_(std::move(to)),
      plan_(std::move(plan)),
      transfers_(plan_.steps.size()) {}

const RankTransfers& PlanCache::Entry::TransfersOf(size_t step, const Coord& coord) {
  if (coord_ != coord) {
    coord_ = coord;
    for (auto& transfers : transfers_) transfers.reset();
  }
  if (transfers_[step] == nullptr) {
    const Step& of = plan_.steps[step];
    transfers_[step] =
        std::make_unique<const RankTransfers>(TransfersOfRank(of.from, of.to, of.axes, coord));
  }
  return *transfers_[step];
}

const std::shared_ptr<PlanCache::Entry>& PlanCache::Add(const Layout& from, const Layout& to,
                                                        int64_t element_bytes) {
  auto entry =
      std::make_shared<Entry>(from, to, MakePlan(from, to, {.element_bytes = element_bytes}));
  if (entries_.size() >= max_entries_) entries_.clear();
  return entries_.emplace(Key{from.id(), to.id(), element_bytes}, std::move(entry)).first->second;
}

}  // namespace shardmesh
