// SPDX-License-Identifier: Apache-2.0
//
// The plans that a rank has used, with what the rank itself sends and receives in each step.
//
//   PlanCache cache;
//   std::shared_ptr<PlanCache::Entry> entry = cache.Get(source, target, /*element_bytes=*/4);
//   entry->TransfersOf(/*step=*/0, mesh.coord());
#ifndef SHARDMESH_PLACEMENT_PLAN_CACHE_H_
#define SHARDMESH_PLACEMENT_PLAN_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {

/// Bounded; a full cache is emptied. Thread-compatible.
class PlanCache {
 public:
  /// Holds as long as someone has it, whatever becomes of the cache.
  class Entry {
   public:
    Entry(Layout from, Layout to, Plan plan);

    const Plan& plan() const { return plan_; }
    /// Transfers of step `step`, an all-to-all, for the rank at `coord`; kept for the coordinate
    /// that was asked for last. The reference holds until another coordinate is asked for.
    const RankTransfers& TransfersOf(size_t step, const Coord& coord);

   private:
    Layout from_, to_;  // Their ids are the key.
    Plan plan_;
    Coord coord_;
    std::vector<std::unique_ptr<const RankTransfers>> transfers_;
  };

  explicit PlanCache(size_t max_entries = 1 << 16) : max_entries_(max_entries) {}

  /// MakePlan with `element_bytes` and the other options at their defaults.
  const std::shared_ptr<Entry>& Get(const Layout& from, const Layout& to, int64_t element_bytes) {
    const auto found = entries_.find(Key{from.id(), to.id(), element_bytes});
    return found != entries_.end() ? found->second : Add(from, to, element_bytes);
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Key {
    const void* from;
    const void* to;
    int64_t element_bytes;
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.from, key.to, key.element_bytes);
    }
  };

  const std::shared_ptr<Entry>& Add(const Layout& from, const Layout& to, int64_t element_bytes);

  size_t max_entries_;
  absl::flat_hash_map<Key, std::shared_ptr<Entry>> entries_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_PLAN_CACHE_H_
