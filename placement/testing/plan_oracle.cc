// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/testing/plan_oracle.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace shardmesh::testing {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// Every layout of R, P(op) and S(0), S(1), .. on each axis, in every split order.
std::vector<Layout> AllLayouts(const MeshShape& mesh, const Dims& shape, ReduceOp op) {
  std::vector<Placement> choices = {Replicate(), Partial(op)};
  for (int dim = 0; dim < shape.size(); ++dim) choices.push_back(Shard(dim));
  std::vector<Placements> all = {{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Placements> longer;
    for (const Placements& placements : all) {
      for (const Placement& choice : choices) {
        longer.push_back(placements);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  std::vector<Layout> layouts;
  for (const Placements& placements : all) {
    std::vector<int> order;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (placements[axis].IsShard()) order.push_back(axis);
    }
    do {
      layouts.push_back(Layout::Make(mesh, placements, shape, order));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return layouts;
}

/// What decides the box of a rank along `axis`: its placement and the splits outside it.
std::pair<Placement, std::vector<int>> PlaceOf(const Layout& layout, int axis) {
  const Placement& placement = layout.placement(axis);
  std::vector<int> outside;
  if (placement.IsShard()) {
    const AxisList& splits = layout.SplitAxes(placement.dim());
    outside.assign(splits.begin(), std::find(splits.begin(), splits.end(), axis));
  }
  return {placement, outside};
}

/// ceil(log2(size)).
int Rounds(int64_t size) {
  int rounds = 0;
  for (int64_t reached = 1; reached < size; reached *= 2) ++rounds;
  return rounds;
}

}  // namespace

PlanOracle::PlanOracle(const MeshShape& mesh, const Dims& shape, const std::vector<ReduceOp>& ops,
                       const PlanOptions& options)
    : mesh_(mesh), options_(options) {
  std::set<std::string> seen;
  for (const ReduceOp op : ops.empty() ? std::vector<ReduceOp>{ReduceOp::kSum} : ops) {
    for (const Layout& layout : AllLayouts(mesh, shape, op)) {
      if (ops.empty() && layout.HasPartial()) continue;
      if (seen.insert(layout.ToString()).second) layouts_.push_back(layout);
    }
  }
  for (const Layout& from : layouts_) {
    for (const Layout& to : layouts_) edges_.push_back(EdgeCost(from, to));
  }
}

double PlanOracle::EdgeCost(const Layout& from, const Layout& to) const {
  int64_t group = 1, copies = 1;
  double latency = 0, seconds_per_byte = 0;
  int changed = 0, gathered = 0, sliced = 0, reduced = 0, scattered = 0, made = 0, partial = 0;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (PlaceOf(from, axis) == PlaceOf(to, axis)) continue;
    const Placement &before = from.placement(axis), &after = to.placement(axis);
    ++changed;
    gathered += before.IsShard() && after.IsReplicate();
    sliced += before.IsReplicate() && after.IsShard();
    reduced += before.IsPartial() && after.IsReplicate();
    scattered += before.IsPartial() && after.IsShard();
    made += before.IsReplicate() && after.IsPartial();
    partial += before.IsPartial() || after.IsPartial();
    group *= mesh_.size(axis);
    if (after.IsReplicate()) copies *= mesh_.size(axis);
    const LinkCost link = options_.links.empty() ? LinkCost() : options_.links[axis];
    latency = std::max(latency, link.latency_seconds);
    seconds_per_byte = std::max(seconds_per_byte, 1 / link.bytes_per_second);
  }
  if (changed == 0) return kNone;
  const int64_t elements_before = from.MaxLocalShape().NumElements();
  const int64_t elements_after = to.MaxLocalShape().NumElements();
  const auto bytes = static_cast<double>(options_.element_bytes);
  if (options_.max_peak_bytes &&
      (elements_before + elements_after) * options_.element_bytes > *options_.max_peak_bytes) {
    return kNone;
  }
  const auto p = static_cast<double>(group);
  const auto before = static_cast<double>(elements_before),
             after = static_cast<double>(elements_after);
  const double charge = kSecondsPerStep + kSecondsPerAxis * changed;
  const auto sends = [&](double elements, int rounds) {
    return latency * rounds + elements * bytes * seconds_per_byte + charge;
  };
  if (sliced == changed) return after * bytes / options_.local_bytes_per_second + charge;
  if (made == changed) return before * bytes / options_.local_bytes_per_second + charge;
  if (gathered == changed) return sends((p - 1) * before, Rounds(group));
  if (scattered == changed) return sends((p - 1) * after, Rounds(group));
  if (reduced == changed) {
    const auto whole_chunk = (elements_before + group - 1) / group;
    const auto chunk = static_cast<double>(whole_chunk);
    return sends(before - chunk + (p - 1) * chunk, 2 * Rounds(group));
  }
  if (partial > 0) return kNone;
  return sends(static_cast<double>(copies) * before * (p - 1) / p, Rounds(group));
}

std::vector<double> PlanOracle::Costs(int source) const {
  const size_t count = layouts_.size();
  std::vector<double> costs(count, kNone);
  std::vector<bool> settled(count, false);
  costs[source] = 0;
  while (true) {
    size_t nearest = count;
    for (size_t i = 0; i < count; ++i) {
      if (!settled[i] && costs[i] < kNone && (nearest == count || costs[i] < costs[nearest]))
        nearest = i;
    }
    if (nearest == count) return costs;
    settled[nearest] = true;
    for (size_t to = 0; to < count; ++to)
      costs[to] = std::min(costs[to], costs[nearest] + edges_[nearest * count + to]);
  }
}

}  // namespace shardmesh::testing
