// SPDX-License-Identifier: Apache-2.0
//
// Shared by the optimizers: checks of arguments, and the operands of a fused kernel.
#ifndef SHARDMESH_OPTIM_INTERNAL_FUSED_STEP_H_
#define SHARDMESH_OPTIM_INTERNAL_FUSED_STEP_H_

#include <string_view>
#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim::internal {

/// Throws Error(kInvalidArgument) naming `optimizer` and a parameter that it cannot update.
void CheckParameters(std::string_view optimizer, const std::vector<nn::Parameter>& parameters);
/// Throws Error(kInvalidArgument) unless low <= value < high.
void CheckRange(std::string_view optimizer, std::string_view option, double value, double low,
                double high);

/// One parameter's shard and gradient.
struct StepOperands {
  ExecutionContext& context;
  Tensor value;     ///< Aliased: written in place.
  Tensor gradient;  ///< Contiguous.
};
/// Throws Error(kFailedPrecondition) naming the parameter if `state_layout` (of what the optimizer
/// keeps; none at first) or the gradient's layout is not that of the values.
StepOperands BeginStep(std::string_view optimizer, const nn::Parameter& parameter,
                       const Layout& state_layout);
void ClearGradient(const nn::Parameter& parameter);

/// Zeros like `value`, counted as optimizer memory.
Tensor MakeState(ExecutionContext& context, const Tensor& value);

}  // namespace shardmesh::optim::internal

#endif  // SHARDMESH_OPTIM_INTERNAL_FUSED_STEP_H_
