// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/cost_model.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"

namespace shardmesh::internal {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// Rounds of a tree over `size` members: ceil(log2(size)). A merged group never takes more than its
/// axes one by one.
int TreeRounds(uint64_t size) { return std::bit_width(size - 1); }

bool IsSame(const PlanOptions& a, const PlanOptions& b) {
  return a.element_bytes == b.element_bytes &&
         a.local_bytes_per_second == b.local_bytes_per_second &&
         a.max_peak_bytes == b.max_peak_bytes && a.links == b.links;
}

/// Whether meshes cost the same: names do not matter.
bool IsSame(const MeshShape& a, const MeshShape& b) {
  if (a.num_axes() != b.num_axes()) return false;
  for (int axis = 0; axis < a.num_axes(); ++axis) {
    if (a.size(axis) != b.size(axis) || a.axis(axis).link != b.axis(axis).link) return false;
  }
  return true;
}

}  // namespace

AxisSet SetOf(const AxisList& axes) {
  AxisSet set = 0;
  for (const int axis : axes) set |= 1u << axis;
  return set;
}

bool IsLocal(StepKind kind) { return kind == StepKind::kSlice || kind == StepKind::kMakePartial; }

std::optional<StepKind> FindStepKind(AxisSet axes, const PlanState& from, const PlanState& to) {
  // Those that replicate, are Partial and shard, before and after.
  AxisSet replicated[2] = {}, partial[2] = {}, sharded[2] = {};
  for (AxisSet rest = axes; rest != 0; rest &= rest - 1) {
    const int axis = std::countr_zero(rest);
    const AxisSet bit = rest & -rest;
    const PlanState* states[] = {&from, &to};
    for (int i = 0; i < 2; ++i) {
      AxisSet& set = states[i]->IsReplicate(axis) ? replicated[i]
                     : states[i]->IsShard(axis)   ? sharded[i]
                                                  : partial[i];
      set |= bit;
    }
  }
  if (replicated[0] == axes && sharded[1] == axes) return StepKind::kSlice;
  if (replicated[0] == axes && partial[1] == axes) return StepKind::kMakePartial;
  if (sharded[0] == axes && replicated[1] == axes) return StepKind::kAllGather;
  if (partial[0] == axes && replicated[1] == axes) return StepKind::kAllReduce;
  if (partial[0] == axes && sharded[1] == axes) return StepKind::kReduceScatter;
  if ((partial[0] | partial[1]) == 0) return StepKind::kAllToAll;
  return std::nullopt;
}

StepKind StepKindOf(AxisSet axes, const PlanState& from, const PlanState& to) {
  const std::optional<StepKind> kind = FindStepKind(axes, from, to);
  SHARDMESH_CHECK(kind.has_value()) << "no step changes these placements at once";
  return *kind;
}

CostModel::CostModel(const MeshShape& mesh, const Dims& shape, const PlanOptions& options)
    : mesh_(mesh), shape_(shape), options_(options) {
  if (!options.links.empty() && static_cast<int>(options.links.size()) != mesh.num_axes()) {
    ThrowInvalid("plan options have ", options.links.size(), " links, the mesh ", mesh.ToString(),
                 " has ", mesh.num_axes(), " axes");
  }
  bool sane = options.element_bytes > 0 && options.local_bytes_per_second > 0;
  for (const LinkCost& link : options.links)
    sane = sane && link.latency_seconds >= 0 && link.bytes_per_second > 0;
  if (!sane)
    ThrowInvalid(
        "plan options: element bytes and bandwidths must be positive, latencies not negative");
  local_seconds_per_byte_ = 1 / options.local_bytes_per_second;
  FillGroups();
  FillLayers();
  total_bytes_ = static_cast<double>(options.element_bytes);
  for (int dim = 0; dim < shape.size(); ++dim) {
    total_bytes_ *= static_cast<double>(shape[dim]);
    // ceil(ceil(n / p) / q) == ceil(n / pq), so the order of the splits does not matter.
    for (AxisSet splits = 0; splits < (1u << mesh.num_axes()); ++splits)
      extents_[dim][splits] = CeilDiv(shape[dim], groups_[splits].size);
  }
}

const CostModel& CostModel::Of(const MeshShape& mesh, const Dims& shape,
                               const PlanOptions& options) {
  // As many as the operands of an op differ in shape or dtype, as a rule.
  static constexpr size_t kNumKept = 4;
  static thread_local std::array<std::unique_ptr<const CostModel>, kNumKept> kept;
  static thread_local size_t oldest = 0;
  for (const std::unique_ptr<const CostModel>& costs : kept) {
    if (costs != nullptr && costs->shape_ == shape && IsSame(costs->options_, options) &&
        IsSame(costs->mesh_, mesh)) {
      return *costs;
    }
  }
  auto costs = std::make_unique<const CostModel>(mesh, shape, options);
  oldest = (oldest + 1) % kNumKept;
  kept[oldest] = std::move(costs);
  return *kept[oldest];
}

void CostModel::FillGroups() {
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    const LinkCost link = Link(axis);
    const double seconds_per_byte = 1 / link.bytes_per_second;
    if (mesh_.size(axis) > 1) real_axes_ |= 1u << axis;
    for (AxisSet set = 0; set < (1u << axis); ++set) {
      const Group& without = groups_[set];
      Group& group = groups_[set | (1u << axis)];
      group.num_axes = without.num_axes + 1;
      group.size = without.size * mesh_.size(axis);
      group.latency_seconds = std::max(without.latency_seconds, link.latency_seconds);
      group.seconds_per_byte = std::max(without.seconds_per_byte, seconds_per_byte);
      group.tree_seconds = group.latency_seconds * TreeRounds(group.size);
      group.part = 1.0 / group.size;
      group.kept_factor = static_cast<double>(group.size - 1) / group.size;
    }
  }
}

void CostModel::FillLayers() {
  const auto fill = [&](auto& layers, int& count, auto value_of) {
    double below = 0;
    AxisSet rest = real_axes_;
    while (rest != 0) {
      double least = -1;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (Has(rest, axis) && (least < 0 || value_of(axis) < least)) least = value_of(axis);
      }
      layers[count++] = {rest, least - below};
      below = least;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (value_of(axis) <= least) rest &= ~(1u << axis);
      }
    }
  };
  fill(latency_layers_, num_latency_layers_,
       [&](int axis) { return groups_[1u << axis].latency_seconds; });
  fill(bandwidth_layers_, num_bandwidth_layers_,
       [&](int axis) { return groups_[1u << axis].seconds_per_byte; });
}

int64_t CostModel::Elements(const PlanState& state) const {
  std::array<AxisSet, Dims::kMaxRank> splits{};
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (state.IsShard(axis)) splits[state.ShardDim(axis)] |= 1u << axis;
  }
  int64_t elements = 1;
  for (int dim = 0; dim < shape_.size(); ++dim) elements *= extents_[dim][splits[dim]];
  return elements;
}

int64_t CostModel::BytesSent(StepKind kind, AxisSet axes, const PlanState& from,
                             const PlanState& to) const {
  const int64_t before = Elements(from);
  switch (kind) {
    case StepKind::kSlice:
    case StepKind::kMakePartial:
      return 0;
    case StepKind::kAllGather:
      return (groups_[axes].size - 1) * Bytes(before);
    case StepKind::kReduceScatter:
      return Bytes(before - Elements(to));
    case StepKind::kAllReduce:
      return Bytes(AllReduceElements(axes, before));
    case StepKind::kAllToAll: {
      // Both boxes of coordinate 0 begin at 0: what stays is the smaller extent in every dim.
      int64_t copies = 1, stays = 1;
      std::array<AxisSet, Dims::kMaxRank> splits[2] = {};
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (Has(axes, axis) && to.IsReplicate(axis)) copies *= mesh_.size(axis);
        if (from.IsShard(axis)) splits[0][from.ShardDim(axis)] |= 1u << axis;
        if (to.IsShard(axis)) splits[1][to.ShardDim(axis)] |= 1u << axis;
      }
      for (int dim = 0; dim < shape_.size(); ++dim) {
        stays *= std::min(extents_[dim][splits[0][dim]], extents_[dim][splits[1][dim]]);
      }
      return Bytes(copies * before - stays);
    }
  }
  SHARDMESH_CHECK(false) << "step kind " << static_cast<int>(kind);
  return 0;
}

double CostModel::Seconds(StepKind kind, AxisSet axes, const PlanState& from,
                          const PlanState& to) const {
  switch (kind) {
    case StepKind::kSlice:
      return CopySeconds(Elements(to));
    case StepKind::kMakePartial:
      return CopySeconds(Elements(from));
    case StepKind::kAllGather:
      return AllGatherSeconds(axes, Elements(from));
    case StepKind::kReduceScatter:
      return ReduceScatterSeconds(axes, Elements(to));
    case StepKind::kAllReduce:
      return AllReduceSeconds(axes, Elements(from));
    case StepKind::kAllToAll:
      break;
  }
  AxisSet replicated = 0;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (Has(axes, axis) && to.IsReplicate(axis)) replicated |= 1u << axis;
  }
  // The rank at coordinate 0 may happen to keep everything; others do not.
  return AllToAllSeconds(axes, replicated, Elements(from));
}

double CostModel::MinLinkSeconds(const Work& work, AxisSet target_sharded, AxisSet sliced) const {
  const AxisSet gathered = work.sharded | work.reduced | (sliced & ~target_sharded);
  const AxisSet summed = work.scattered | work.reduced;
  const AxisSet once = gathered | summed;
  double seconds = 0;
  // Each of these axes is in some group, those to be reduced and gathered in two or in an
  // all-reduce, and the trees of all groups are together no lower than one tree over all.
  for (int i = 0; i < num_latency_layers_; ++i) {
    const Layer& layer = latency_layers_[i];
    const auto size = static_cast<uint64_t>(groups_[once & layer.axes].size);
    const auto again = static_cast<uint64_t>(groups_[work.reduced & layer.axes].size);
    seconds += layer.step * TreeRounds(size * again);
  }
  // What the links of a layer carry if faster axes make all boxes as small as they can before and
  // gather after: the target's boxes but for the part that was there, and what is reduced but for
  // the part that stays.
  for (int i = 0; i < num_bandwidth_layers_; ++i) {
    const Layer& layer = bandwidth_layers_[i];
    const AxisSet faster = real_axes_ & ~layer.axes;
    const double bytes =
        BytesOver(target_sharded | faster) * groups_[gathered & layer.axes].kept_factor +
        BytesOver(work.all_sharded | sliced | (work.all_partial & faster)) *
            groups_[summed & layer.axes].kept_factor;
    seconds += layer.step * bytes;
  }
  return seconds;
}

double CostModel::MinSeconds(const Work& work, AxisSet target_sharded,
                             AxisSet target_partial) const {
  double local = 0;
  // The last axis to become Partial does so when all of them replicate or are Partial.
  const AxisSet made = target_partial & ~(work.all_partial & ~work.reduced);
  if (made != 0) local = BytesOver(real_axes_ & ~made) * local_seconds_per_byte_;
  // What only has to be sliced ends as the box of the target, unless links are faster than copies.
  if (made == 0 && bandwidth_layers_[0].step >= local_seconds_per_byte_ &&
      (work.sharded | work.reduced | work.scattered) == 0 &&
      (target_sharded & ~work.all_sharded) != 0) {
    return BytesOver(target_sharded) * local_seconds_per_byte_;
  }
  const AxisSet replicated = real_axes_ & ~work.all_sharded & ~work.all_partial;
  double least = MinLinkSeconds(work, target_sharded, 0);
  if ((work.scattered | work.reduced) == 0) return local + least;
  // Less is reduced if axes that replicate are sliced before, and gathered after unless the target
  // shards them. If links are no faster than copies, they are sliced at once and before all of one
  // layer are reduced, or it does not pay.
  const bool slices_first = bandwidth_layers_[0].step >= local_seconds_per_byte_;
  const AxisSet before = work.all_sharded | (num_bandwidth_layers_ > 1 ? work.all_partial : 0);
  for (AxisSet sliced = replicated; sliced != 0; sliced = (sliced - 1) & replicated) {
    const double copy = slices_first ? BytesOver(before | sliced) * local_seconds_per_byte_ : 0;
    least = std::min(least, MinLinkSeconds(work, target_sharded, sliced) + copy);
  }
  return local + least;
}

}  // namespace shardmesh::internal
