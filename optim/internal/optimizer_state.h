// SPDX-License-Identifier: Apache-2.0
//
// Tensors that are kept beside parameters, in their layouts: the state of optimizers, averages of
// weights. Their memory counts as optimizer memory.
#ifndef SHARDMESH_OPTIM_INTERNAL_OPTIMIZER_STATE_H_
#define SHARDMESH_OPTIM_INTERNAL_OPTIMIZER_STATE_H_

#include <string_view>
#include <vector>

#include "shardmesh/nn/parameter.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::optim::internal {

/// Zeros in the layout and dtype of the parameter, which has values. Local.
DTensor ZerosBeside(const nn::Parameter& parameter);
/// A copy of the parameter's values. Local.
DTensor CopyOf(const nn::Parameter& parameter);
/// A copy of `x` in another layout. Collective over the mesh.
DTensor MovedTo(const DTensor& x, const Layout& layout);

/// Throws Error(kFailedPrecondition) naming `user` and a parameter that has no name, or that of
/// another one.
void CheckNamesAreUnique(std::string_view user, const std::vector<nn::Parameter>& parameters);
/// The tensor in `value`, to be kept beside the parameter.
/// Errors: throws Error(kInvalidArgument) naming `user`, `name` and what it is unless it is a
/// DTensor of the parameter's shape, dtype, layout and mesh.
DTensor TensorBeside(const nn::Parameter& parameter, std::string_view user, std::string_view name,
                     const StateValue& value);

}  // namespace shardmesh::optim::internal

#endif  // SHARDMESH_OPTIM_INTERNAL_OPTIMIZER_STATE_H_
