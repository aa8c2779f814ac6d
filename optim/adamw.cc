// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/adamw.h"

#include <limits>
#include <utility>

#include "shardmesh/optim/internal/fused_step.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

constexpr char kName[] = "AdamW";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

AdamW::AdamW(std::vector<nn::Parameter> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), states_(parameters_.size()), options_(options) {
  internal::CheckParameters(kName, parameters_);
  internal::CheckRange(kName, "lr", options.lr, 0, kInfinity);
  internal::CheckRange(kName, "beta1", options.beta1, 0, 1);
  internal::CheckRange(kName, "beta2", options.beta2, 0, 1);
  internal::CheckRange(kName, "eps", options.eps, 0, kInfinity);
  internal::CheckRange(kName, "weight_decay", options.weight_decay, 0, kInfinity);
}

void AdamW::set_lr(double lr) {
  internal::CheckRange(kName, "lr", lr, 0, kInfinity);
  options_.lr = lr;
}

void AdamW::Step() {
  for (const nn::Parameter& parameter : parameters_)
    parameter.CheckGradientIsReduced("AdamW::Step");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].data().grad()) Update(parameters_[i], states_[i]);
  }
}

void AdamW::Update(nn::Parameter& parameter, State& state) const {
  internal::StepOperands operands = internal::BeginStep(kName, parameter, state.layout);
  if (!state.m) {
    state.layout = parameter.data().layout();
    state.m = internal::MakeState(operands.context, operands.value);
    state.v = internal::MakeState(operands.context, operands.value);
  }
  const AdamWStep options = {.lr = options_.lr,
                             .beta1 = options_.beta1,
                             .beta2 = options_.beta2,
                             .eps = options_.eps,
                             .weight_decay = options_.weight_decay,
                             .step = ++state.step};
  ops::AdamW(operands.context, options, operands.gradient, operands.value, state.m, state.v);
  internal::ClearGradient(parameter);
}

}  // namespace shardmesh::optim
