// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/sgd.h"

#include <limits>
#include <utility>

#include "shardmesh/optim/internal/fused_step.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

constexpr char kName[] = "Sgd";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Sgd::Sgd(std::vector<nn::Parameter> parameters, const SgdOptions& options)
    : parameters_(std::move(parameters)), states_(parameters_.size()), options_(options) {
  internal::CheckParameters(kName, parameters_);
  internal::CheckRange(kName, "lr", options.lr, 0, kInfinity);
  internal::CheckRange(kName, "momentum", options.momentum, 0, kInfinity);
  internal::CheckRange(kName, "weight_decay", options.weight_decay, 0, kInfinity);
}

void Sgd::set_lr(double lr) {
  internal::CheckRange(kName, "lr", lr, 0, kInfinity);
  options_.lr = lr;
}

void Sgd::Step() {
  for (const nn::Parameter& parameter : parameters_) parameter.CheckGradientIsReduced("Sgd::Step");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].data().grad()) Update(parameters_[i], states_[i]);
  }
}

void Sgd::Update(nn::Parameter& parameter, State& state) const {
  internal::StepOperands operands = internal::BeginStep(kName, parameter, state.layout);
  const bool first = !state.buffer;
  if (first && options_.momentum != 0) {
    state.layout = parameter.data().layout();
    state.buffer = internal::MakeState(operands.context, operands.value);
  }
  ops::Sgd(operands.context, options_.lr, options_.momentum, options_.weight_decay, first,
           operands.gradient, operands.value, state.buffer);
  internal::ClearGradient(parameter);
}

}  // namespace shardmesh::optim
