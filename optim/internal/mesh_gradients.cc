// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/internal/mesh_gradients.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim::internal {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

MeshGradients& EntryOf(std::vector<MeshGradients>& groups, const DeviceMesh& mesh) {
  for (MeshGradients& group : groups) {
    if (group.mesh == mesh) return group;
  }
  return groups.emplace_back(MeshGradients{mesh, {}});
}

void Multiply(const std::vector<MeshGradients>& groups, double factor) {
  for (const MeshGradients& group : groups) {
    for (const DTensor& leaf : group.leaves) {
      Tensor gradient = leaf.grad().local();
      ops::BinaryInto(group.mesh.context(), BinaryOp::kMul, gradient, factor);
    }
  }
}

}  // namespace

std::vector<MeshGradients> GradientsByMesh(std::string_view user,
                                           const std::vector<nn::Parameter>& parameters) {
  std::vector<MeshGradients> groups;
  std::unordered_set<const void*> seen;
  for (const nn::Parameter& parameter : parameters) {
    if (!parameter) ThrowInvalid(View(user), ": one of the parameters is none");
    parameter.CheckGradientIsReduced(user);
    if (!seen.insert(parameter.id()).second) continue;
    const DTensor& leaf = parameter.data();
    MeshGradients& group = EntryOf(groups, leaf.mesh());
    if (!leaf.grad()) continue;
    if (leaf.grad().layout().HasPartial()) {
      Throw(absl::StatusCode::kFailedPrecondition, View(user), ": the gradient of ",
            parameter.ToString(), " is ", leaf.grad().ToString(), ", not reduced");
    }
    group.leaves.push_back(leaf);
  }
  return groups;
}

std::vector<double> AllReduced(const DeviceMesh& mesh, const AxisList& axes,
                               std::span<const double> values, ReduceOp reduction,
                               std::string_view op) {
  std::vector<double> result(values.begin(), values.end());
  if (axes.empty()) return result;
  Tensor numbers =
      Tensor::FromValues<double>(mesh.context(), {static_cast<int64_t>(values.size())}, values);
  Communicator& members = axes.size() == 1
                              ? mesh.Group(axes[0])
                              : mesh.Group(std::span<const int>(axes.data(), axes.size()));
  members.AllReduce({{.source = numbers, .target = numbers}}, reduction, op).Wait();
  return numbers.ToVector<double>();
}

double LargestMagnitude(ExecutionContext& context, const Tensor& x) {
  if (x.NumElements() == 0) return 0;
  const double most = ops::Reduce(context, ReduceOp::kMax, x, {}, /*keepdim=*/false).Item();
  const double least = ops::Reduce(context, ReduceOp::kMin, x, {}, /*keepdim=*/false).Item();
  // Both are nan if an element is.
  return std::isnan(most) ? most : std::max(most, -least);
}

void MultiplyGradients(const std::vector<MeshGradients>& groups, double factor) {
  // Small dtypes are multiplied in f32, which has few digits for such a factor.
  constexpr double kSmall = 0x1p-100;
  if (factor > 0 && factor < kSmall) {
    Multiply(groups, kSmall);
    Multiply(groups, factor / kSmall);
  } else {
    Multiply(groups, factor);
  }
}

}  // namespace shardmesh::optim::internal
