// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

/// The leaves on one mesh that have gradients.
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

/// Whether this rank adds the gradient to a sum over `axes`; of several replicas only the first
/// does.
bool Counts(const Layout& layout, const AxisList& axes, const Coord& coord) {
  for (int axis : axes) {
    if (!layout.placement(axis).IsShard() && coord[axis] != 0) return false;
  }
  return true;
}

/// `value` reduced over the ranks that hold different parts of the group's gradients.
double AllReduced(const MeshGroup& group, const AxisList& axes, double value, ReduceOp op) {
  if (axes.empty()) return value;
  const DeviceMesh& mesh = group.mesh;
  Tensor number = Tensor::FromValues<double>(mesh.context(), {}, {value});
  Communicator& members = axes.size() == 1
                              ? mesh.Group(axes[0])
                              : mesh.Group(std::span<const int>(axes.data(), axes.size()));
  members.AllReduce({{.source = number, .target = number}}, op, "clip_grad_norm").Wait();
  return number.Item();
}

/// Of the global gradients divided by `divisor`.
double SumOfSquares(const MeshGroup& group, double divisor) {
  const DeviceMesh& mesh = group.mesh;
  const AxisList axes = ShardedAxes(group);
  double local = 0;
  for (const DTensor& leaf : group.leaves) {
    if (!Counts(leaf.grad().layout(), axes, mesh.coord())) continue;
    Tensor gradient = leaf.grad().local();
    if (divisor != 1) gradient = ops::Binary(mesh.context(), BinaryOp::kDiv, gradient, divisor);
    local += ops::SumOfSquares(mesh.context(), gradient).Item();
  }
  return AllReduced(group, axes, local, ReduceOp::kSum);
}

/// The largest magnitude in the global gradients, none of which is nan.
double LargestOf(const MeshGroup& group) {
  ExecutionContext& context = group.mesh.context();
  double largest = 0;
  for (const DTensor& leaf : group.leaves) {
    const Tensor& gradient = leaf.grad().local();
    if (gradient.NumElements() == 0) continue;
    const Tensor magnitudes = ops::Unary(context, UnaryOp::kAbs, gradient);
    const Tensor most = ops::Reduce(context, ReduceOp::kMax, magnitudes, {}, /*keepdim=*/false);
    largest = std::max(largest, most.Item());
  }
  return AllReduced(group, ShardedAxes(group), largest, ReduceOp::kMax);
}

bool HasF64(const MeshGroup& group) {
  return std::any_of(group.leaves.begin(), group.leaves.end(),
                     [](const DTensor& leaf) { return leaf.grad().dtype() == DType::kF64; });
}

/// Squares of f64 gradients may overflow or vanish where the norm is an f64: then those of the
/// gradients divided by the largest are summed. Which way is taken depends on a sum that all ranks
/// of the group have.
double NormOf(const MeshGroup& group) {
  constexpr double kLeast = 0x1p-900;  // Squares that vanish do not count beside it.
  const double sum = SumOfSquares(group, /*divisor=*/1);
  const bool is_in_range = sum >= kLeast && sum < std::numeric_limits<double>::infinity();
  if (is_in_range || std::isnan(sum) || !HasF64(group)) return std::sqrt(sum);
  const double largest = LargestOf(group);
  if (largest == 0 || std::isinf(largest)) return largest;
  return largest * std::sqrt(SumOfSquares(group, largest));
}

/// The leaves whose gradients must not be scaled in place: a gradient may have strides of 0, or
/// share memory with another one (y = a + b gives both the same).
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

/// sqrt(a^2 + b^2). (The C library's hypot differs between processors.)
double Combined(double a, double b) {
  if (a == 0 || b == 0 || !std::isfinite(a) || !std::isfinite(b)) return a + b;
  const double larger = std::max(a, b), smaller = std::min(a, b);
  const double ratio = smaller / larger;
  return larger * std::sqrt(1 + ratio * ratio);
}

/// "; that of layers.0.weight f32[7,3] is the first on this rank", or nothing if all gradients are
/// finite here.
std::string FirstNonFinite(const std::vector<nn::Parameter>& parameters) {
  for (const nn::Parameter& parameter : parameters) {
    const DTensor& leaf = parameter.data();
    if (!leaf.grad()) continue;
    ExecutionContext& context = leaf.mesh().context();
    const Tensor magnitudes = ops::Unary(context, UnaryOp::kAbs, leaf.grad().local());
    const Tensor most = ops::Reduce(context, ReduceOp::kMax, magnitudes, {}, /*keepdim=*/false);
    if (most.Item() < std::numeric_limits<double>::infinity()) continue;
    return "; that of " + parameter.ToString() + " is the first on this rank";
  }
  return "";
}

}  // namespace

double ClipGradNorm(const std::vector<nn::Parameter>& parameters, double max_norm, double eps,
                    NonFiniteNorm on_non_finite) {
  if (!(max_norm >= 0) || !(eps >= 0)) {
    ThrowInvalid("ClipGradNorm: max_norm is ", max_norm, " and eps ", eps, ", expected 0 or more");
  }
  for (const nn::Parameter& parameter : parameters)
    parameter.CheckGradientIsReduced("ClipGradNorm");
  const std::vector<MeshGroup> groups = GroupByMesh(parameters);
  double norm = 0;
  for (const MeshGroup& group : groups) norm = Combined(norm, NormOf(group));
  if (!std::isfinite(norm) && on_non_finite == NonFiniteNorm::kThrow) {
    Throw(absl::StatusCode::kOutOfRange, "ClipGradNorm: the norm of the gradients is ", norm,
          FirstNonFinite(parameters));
  }
  if (!std::isfinite(norm) && on_non_finite == NonFiniteNorm::kSkipStep) {
    for (const MeshGroup& group : groups) {
      for (DTensor leaf : group.leaves) leaf.ZeroGrad();
    }
    return norm;
  }
  const double factor = max_norm / (norm + eps);
  // A nan compares false and is carried into the gradients.
  if (factor >= 1) return norm;
  // Small dtypes are multiplied in f32, which has few digits for such a factor.
  constexpr double kSmall = 0x1p-100;
  if (factor > 0 && factor < kSmall) {
    Scale(groups, kSmall);
    Scale(groups, factor / kSmall);
  } else {
    Scale(groups, factor);
  }
  return norm;
}

}  // namespace shardmesh::optim
