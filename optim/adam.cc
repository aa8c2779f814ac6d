// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/adam.h"

#include <utility>

#include "shardmesh/optim/internal/adam_step.h"

namespace shardmesh::optim {

std::vector<OptionField> AdamOptions::Fields() { return internal::AdamFields(*this); }

Adam::Adam(std::vector<nn::Parameter> parameters, const AdamOptions& options,
           const std::vector<ParameterGroup<AdamOptions>>& groups)
    : OptimizerOf("Adam", std::move(parameters), options, groups) {}

std::vector<std::string> Adam::StateNames(const AdamOptions& options) const {
  return internal::AdamStateNames(options.amsgrad);
}

void Adam::Update(const AdamOptions& options, ParameterUpdate& update) {
  internal::AdamStep({.lr = options.lr,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .eps = options.eps,
                      .l2_decay = options.weight_decay,
                      .amsgrad = options.amsgrad},
                     update);
}

}  // namespace shardmesh::optim
