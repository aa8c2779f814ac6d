// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <unordered_set>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

/// The leaves with gradients that live on one mesh.
struct MeshGroup {
  DeviceMesh mesh;
  std::vector<DTensor> leaves;
};

std::vector<MeshGroup> GroupByMesh(const std::vector<nn::Parameter>& parameters) {
  std::vector<MeshGroup> groups;
  std::unordered_set<const void*> seen;
  for (const nn::Parameter& parameter : parameters) {
    const DTensor& leaf = parameter.data();
    if (!leaf.grad() || !seen.insert(parameter.id()).second) continue;
    if (leaf.grad().layout().HasPartial()) {
      Throw(absl::StatusCode::kFailedPrecondition, "ClipGradNorm: the gradient of ",
            parameter.ToString(), " is ", leaf.grad().ToString(), ", not reduced");
    }
    MeshGroup* group = nullptr;
    for (MeshGroup& candidate : groups) {
      if (candidate.mesh == leaf.mesh()) group = &candidate;
    }
    if (group == nullptr) group = &groups.emplace_back(MeshGroup{leaf.mesh(), {}});
    group->leaves.push_back(leaf);
  }
  return groups;
}

/// The axes of more than one rank along which some gradient is sharded.
AxisList ShardedAxes(const MeshGroup& group) {
  AxisList axes;
  for (int axis = 0; axis < group.mesh.shape().num_axes(); ++axis) {
    if (group.mesh.shape().size(axis) == 1) continue;
    for (const DTensor& leaf : group.leaves) {
      if (!leaf.grad().layout().placement(axis).IsShard()) continue;
      axes.push_back(axis);
      break;
    }
  }
  return axes;
}

/// Whether this rank contributes the gradient to a sum over `axes`: of replicas the first does.
bool Counts(const Layout& layout, const AxisList& axes, const Coord& coord) {
  for (int axis : axes) {
    if (!layout.placement(axis).IsShard() && coord[axis] != 0) return false;
  }
  return true;
}

double SumOfSquares(const MeshGroup& group) {
  const DeviceMesh& mesh = group.mesh;
  const AxisList axes = ShardedAxes(group);
  double local = 0;
  for (const DTensor& leaf : group.leaves) {
    if (!Counts(leaf.grad().layout(), axes, mesh.coord())) continue;
    local += ops::SumOfSquares(mesh.context(), leaf.grad().local()).Item();
  }
  if (axes.empty()) return local;
  Tensor sum = Tensor::FromValues<double>(mesh.context(), {}, {local});
  Communicator& members = axes.size() == 1
                              ? mesh.Group(axes[0])
                              : mesh.Group(std::span<const int>(axes.data(), axes.size()));
  members.AllReduce({{.source = sum, .target = sum}}, ReduceOp::kSum, "clip_grad_norm").Wait();
  return sum.Item();
}

/// The leaves whose gradients may not be scaled in place, as that would also write something else:
/// a gradient may lie in memory with stride 0, or overlap another (y = a + b gives both the same).
std::vector<DTensor> DeduplicateShared(const std::vector<MeshGroup>& groups) {
  struct Range {
    const char* begin;
    const char* end;
    DTensor leaf;
    bool shared;
  };
  std::vector<Range> ranges;
  std::vector<DTensor> result;
  for (const MeshGroup& group : groups) {
    for (const DTensor& leaf : group.leaves) {
      const Tensor& gradient = leaf.grad().local();
      if (gradient.NumElements() == 0) continue;
      if (!gradient.IsContiguous()) {
        result.push_back(leaf);
        continue;
      }
      const char* begin = static_cast<const char*>(gradient.raw_data());
      ranges.push_back({begin, begin + gradient.Bytes(), leaf, false});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::less<>()(a.begin, b.begin); });
  Range* furthest = nullptr;
  for (Range& range : ranges) {
    if (furthest != nullptr && std::less<>()(range.begin, furthest->end)) {
      furthest->shared = range.shared = true;
    }
    if (furthest == nullptr || std::less<>()(furthest->end, range.end)) furthest = &range;
  }
  for (const Range& range : ranges) {
    if (range.shared) result.push_back(range.leaf);
  }
  return result;
}

void Scale(const std::vector<MeshGroup>& groups, double factor) {
  std::unordered_set<const void*> done;
  for (DTensor& leaf : DeduplicateShared(groups)) {
    ExecutionContext& context = leaf.mesh().context();
    leaf.SetGrad(DTensor(leaf.mesh(), leaf.grad().layout(),
                         ops::Binary(context, BinaryOp::kMul, leaf.grad().local(), factor)));
    done.insert(leaf.impl().get());
  }
  for (const MeshGroup& group : groups) {
    for (const DTensor& leaf : group.leaves) {
      if (done.contains(leaf.impl().get())) continue;
      Tensor gradient = leaf.grad().local();
      ops::BinaryInto(group.mesh.context(), BinaryOp::kMul, gradient, factor);
    }
  }
}

}  // namespace

double ClipGradNorm(const std::vector<nn::Parameter>& parameters, double max_norm, double eps) {
  if (!(max_norm >= 0) || !(eps >= 0)) {
    ThrowInvalid("ClipGradNorm: max_norm is ", max_norm, " and eps ", eps, ", expected 0 or more");
  }
  const std::vector<MeshGroup> groups = GroupByMesh(parameters);
  double total = 0;
  for (const MeshGroup& group : groups) total += SumOfSquares(group);
  const double norm = std::sqrt(total);
  const double factor = max_norm / (norm + eps);
  // A nan compares false and is carried into the gradients.
  if (!(factor >= 1)) Scale(groups, factor);
  return norm;
}

}  // namespace shardmesh::optim
