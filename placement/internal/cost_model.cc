// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/internal/cost_model.h"

#include <algorithm>
#include <bit>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"

namespace shardmesh::internal {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// Rounds of a tree over `size` members: ceil(log2(size)). A merged group never takes more than its
/// axes one by one.
int TreeRounds(int64_t size) { return std::bit_width(static_cast<uint64_t>(size - 1)); }

}  // namespace

bool IsLocal(StepKind kind) { return kind == StepKind::kSlice || kind == StepKind::kMakePartial; }

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
}

int64_t CostModel::GroupSize(std::span<const int> axes) const {
  int64_t size = 1;
  for (const int axis : axes) size *= AxisSize(axis);
  return size;
}

Dims CostModel::LocalShape(const PlanState& state) const {
  // ceil(ceil(n / p) / q) == ceil(n / pq), so the order of the splits does not matter.
  Dims extents = shape_;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (!state.IsShard(axis)) continue;
    int64_t& extent = extents[state.ShardDim(axis)];
    extent = CeilDiv(extent, AxisSize(axis));
  }
  return extents;
}

int64_t CostModel::LocalBytes(const PlanState& state) const {
  return LocalShape(state).NumElements() * options_.element_bytes;
}

int64_t CostModel::BytesAsked(std::span<const int> axes, const PlanState& from,
                              const PlanState& to) const {
  int64_t copies = 1;
  for (const int axis : axes) copies *= to.IsReplicate(axis) ? AxisSize(axis) : 1;
  return copies * LocalBytes(from);
}

int64_t CostModel::BytesSent(StepKind kind, std::span<const int> axes, const PlanState& from,
                             const PlanState& to) const {
  const int64_t group = GroupSize(axes);
  const Dims own = LocalShape(from);
  switch (kind) {
    case StepKind::kSlice:
    case StepKind::kMakePartial:
      return 0;
    case StepKind::kAllGather:
      return (group - 1) * LocalBytes(from);
    case StepKind::kReduceScatter:
      return LocalBytes(from) - LocalBytes(to);
    case StepKind::kAllReduce: {
      // Reduce-scatter and all-gather of the flattened elements: (whole - chunk) + (group - 1) *
      // chunk.
      const int64_t whole = own.NumElements();
      return (whole + (group - 2) * CeilDiv(whole, group)) * options_.element_bytes;
    }
    case StepKind::kAllToAll: {
      // Both boxes of coordinate 0 begin at 0: what stays is the smaller extent in every dim.
      Dims stays = LocalShape(to);
      for (int d = 0; d < own.size(); ++d) stays[d] = std::min(stays[d], own[d]);
      return BytesAsked(axes, from, to) - stays.NumElements() * options_.element_bytes;
    }
  }
  SHARDMESH_CHECK(false) << "step kind " << static_cast<int>(kind);
  return 0;
}

double CostModel::Seconds(StepKind kind, std::span<const int> axes, const PlanState& from,
                          const PlanState& to) const {
  if (IsLocal(kind)) {
    const int64_t copied = kind == StepKind::kSlice ? LocalBytes(to) : LocalBytes(from);
    return static_cast<double>(copied) / options_.local_bytes_per_second;
  }
  const int64_t group = GroupSize(axes);
  double bytes = 0;
  if (kind == StepKind::kAllToAll) {
    // The rank at coordinate 0 may happen to keep everything; others do not.
    bytes = static_cast<double>(BytesAsked(axes, from, to)) * static_cast<double>(group - 1) /
            static_cast<double>(group);
  } else {
    bytes = static_cast<double>(BytesSent(kind, axes, from, to));
  }
  const int rounds = TreeRounds(group) * (kind == StepKind::kAllReduce ? 2 : 1);
  double latency = 0, seconds_per_byte = 0;
  for (const int axis : axes) {
    latency = std::max(latency, Link(axis).latency_seconds);
    seconds_per_byte = std::max(seconds_per_byte, 1 / Link(axis).bytes_per_second);
  }
  return latency * rounds + bytes * seconds_per_byte;
}

bool CostModel::SameLinks(std::span<const int> axes) const {
  return std::all_of(axes.begin(), axes.end(), [&](int axis) {
    return Link(axis).latency_seconds == Link(axes[0]).latency_seconds &&
           Link(axis).bytes_per_second == Link(axes[0]).bytes_per_second;
  });
}

}  // namespace shardmesh::internal
