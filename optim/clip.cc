// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/optim/internal/mesh_gradients.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

using internal::MeshGradients;

constexpr char kUser[] = "ClipGradNorm";

/// The axes of more than one rank along which some gradient is sharded.
AxisList ShardedAxes(const MeshGradients& group) {
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
double AllReduced(const MeshGradients& group, const AxisList& axes, double value, ReduceOp op) {
  return internal::AllReduced(group.mesh, axes, {&value, 1}, op, "clip_grad_norm").front();
}

/// Of the global gradients divided by `divisor`.
double SumOfSquares(const MeshGradients& group, double divisor) {
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
double LargestOf(const MeshGradients& group) {
  ExecutionContext& context = group.mesh.context();
  double largest = 0;
  for (const DTensor& leaf : group.leaves) {
    largest = std::max(largest, internal::LargestMagnitude(context, leaf.grad().local()));
  }
  return AllReduced(group, ShardedAxes(group), largest, ReduceOp::kMax);
}

bool HasF64(const MeshGradients& group) {
  return std::any_of(group.leaves.begin(), group.leaves.end(),
                     [](const DTensor& leaf) { return leaf.grad().dtype() == DType::kF64; });
}

/// Squares of f64 gradients may overflow or vanish where the norm is an f64: then those of the
/// gradients divided by the largest are summed. Which way is taken depends on a sum that all ranks
/// of the group have.
double NormOf(const MeshGradients& group) {
  constexpr double kLeast = 0x1p-900;  // Squares that vanish do not count beside it.
  const double sum = SumOfSquares(group, /*divisor=*/1);
  const bool is_in_range = sum >= kLeast && sum < std::numeric_limits<double>::infinity();
  if (is_in_range || std::isnan(sum) || !HasF64(group)) return std::sqrt(sum);
  const double largest = LargestOf(group);
  if (largest == 0 || std::isinf(largest)) return largest;
  return largest * std::sqrt(SumOfSquares(group, largest));
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
    const double largest = internal::LargestMagnitude(context, leaf.grad().local());
    if (std::isfinite(largest)) continue;
    return "; that of " + parameter.ToString() + " is the first on this rank";
  }
  return "";
}

}  // namespace

double ClipGradNorm(const std::vector<nn::Parameter>& parameters, double max_norm, double eps,
                    NonFiniteNorm on_non_finite) {
  if (!(max_norm >= 0) || !(eps >= 0)) {
    ThrowInvalid(kUser, ": max_norm is ", max_norm, " and eps ", eps, ", expected 0 or more");
  }
  const std::vector<MeshGradients> groups = internal::GradientsByMesh(kUser, parameters);
  double norm = 0;
  for (const MeshGradients& group : groups) norm = Combined(norm, NormOf(group));
  if (!std::isfinite(norm) && on_non_finite == NonFiniteNorm::kThrow) {
    Throw(absl::StatusCode::kOutOfRange, kUser, ": the norm of the gradients is ", norm,
          FirstNonFinite(parameters));
  }
  if (!std::isfinite(norm) && on_non_finite == NonFiniteNorm::kSkipStep) {
    for (const MeshGradients& group : groups) {
      for (DTensor leaf : group.leaves) leaf.ZeroGrad();
    }
    return norm;
  }
  const double factor = max_norm / (norm + eps);
  // A nan compares false and is carried into the gradients.
  if (factor >= 1) return norm;
  internal::MultiplyGradients(groups, factor);
  return norm;
}

}  // namespace shardmesh::optim
