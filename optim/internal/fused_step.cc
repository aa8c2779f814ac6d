// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/internal/fused_step.h"

#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim::internal {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void CheckParameters(std::string_view optimizer, const std::vector<nn::Parameter>& parameters) {
  std::unordered_set<const void*> seen;
  for (const nn::Parameter& parameter : parameters) {
    if (!parameter) ThrowInvalid(View(optimizer), ": one of the parameters is none");
    if (parameter.dtype() != DType::kF32 && parameter.dtype() != DType::kF64) {
      ThrowInvalid(View(optimizer), ": parameter ", parameter.ToString(),
                   " is neither f32 nor f64, and small updates would be lost; for a model that ",
                   "computes in a smaller dtype, keep f32 parameters and use mixed precision");
    }
    if (!seen.insert(parameter.id()).second) {
      ThrowInvalid(View(optimizer), ": parameter ", parameter.ToString(), " appears twice");
    }
  }
}

void CheckRange(std::string_view optimizer, std::string_view option, double value, double low,
                double high) {
  if (value >= low && value < high) return;
  ThrowInvalid(View(optimizer), ": ", View(option), " is ", value, ", expected ", low,
               std::isinf(high) ? " or more, and finite" : absl::StrCat(" to below ", high));
}

StepOperands BeginStep(std::string_view optimizer, const nn::Parameter& parameter,
                       const Layout& state_layout) {
  const DTensor& data = parameter.data();
  const DTensor& gradient = data.grad();
  if (gradient.layout() != data.layout()) {
    Throw(absl::StatusCode::kFailedPrecondition, View(optimizer), ": the gradient of ",
          parameter.ToString(), " is ", gradient.ToString(), ", expected the parameter's layout");
  }
  if (state_layout && state_layout != data.layout()) {
    Throw(absl::StatusCode::kFailedPrecondition, View(optimizer), ": parameter ",
          parameter.ToString(), " has moved; its optimizer state is ", state_layout.ToString());
  }
  ExecutionContext& context = data.mesh().context();
  return {context, data.local(), ops::Contiguous(context, gradient.local())};
}

void ClearGradient(const nn::Parameter& parameter) {
  DTensor data = parameter.data();
  data.ZeroGrad();
}

Tensor MakeState(ExecutionContext& context, const Tensor& value) {
  Tensor state = Tensor::Empty(context, value.shape(), value.dtype(), MemoryCategory::kOptimizer);
  ops::Fill(context, state, 0);
  return state;
}

}  // namespace shardmesh::optim::internal
