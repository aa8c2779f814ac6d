// SPDX-License-Identifier: Apache-2.0
//
// The gradients of a list of parameters, mesh by mesh: what clipping and loss scaling read, reduce
// and multiply.
#ifndef SHARDMESH_OPTIM_INTERNAL_MESH_GRADIENTS_H_
#define SHARDMESH_OPTIM_INTERNAL_MESH_GRADIENTS_H_

#include <span>
#include <string_view>
#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim::internal {

/// The leaves on one mesh that have gradients, maybe none.
struct MeshGradients {
  DeviceMesh mesh;
  std::vector<DTensor> leaves;
};

/// One entry per mesh of the parameters, in order of first appearance; a parameter that appears
/// several times counts once. Local.
/// Errors: throws Error(kInvalidArgument) naming `user` if one of the parameters is none, and
/// Error(kFailedPrecondition) naming `user` and a parameter that has no values, or whose gradient
/// is not reduced.
std::vector<MeshGradients> GradientsByMesh(std::string_view user,
                                           const std::vector<nn::Parameter>& parameters);

/// `values` reduced elementwise over `axes` of the mesh, as one collective named `op`; none if no
/// axis is given. Collective over these axes.
std::vector<double> AllReduced(const DeviceMesh& mesh, const AxisList& axes,
                               std::span<const double> values, ReduceOp reduction,
                               std::string_view op);

/// The largest magnitude in `x`, an infinity included; nan if there is one, 0 of no elements.
/// Allocates no tensor of its size. Local.
double LargestMagnitude(ExecutionContext& context, const Tensor& x);

/// Multiplies all gradients in place by `factor` (also one that f32 does not have). In place on
/// every rank whatever its box: no gradient shares memory with another tensor (DTensor::SetGrad and
/// Backward see to that), so handles of a gradient see the change alike on all ranks. Local.
void MultiplyGradients(const std::vector<MeshGradients>& groups, double factor);

}  // namespace shardmesh::optim::internal

#endif  // SHARDMESH_OPTIM_INTERNAL_MESH_GRADIENTS_H_
