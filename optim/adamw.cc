// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/adamw.h"

#include <utility>

#include "shardmesh/optim/internal/adam_step.h"

namespace shardmesh::optim {

std::vector<OptionField> AdamWOptions::Fields() { return internal::AdamFields(*this); }

AdamW::AdamW(std::vector<nn::Parameter> parameters, const AdamWOptions& options,
             const std::vector<ParameterGroup<AdamWOptions>>& groups)
    : OptimizerOf("AdamW", std::move(parameters), options, groups) {}

std::vector<std::string> AdamW::StateNames(const AdamWOptions& options) const {
  return internal::AdamStateNames(options.amsgrad);
}

void AdamW::Update(const AdamWOptions& options, ParameterUpdate& update) {
  internal::AdamStep({.lr = options.lr,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .eps = options.eps,
                      .decoupled_decay = options.weight_decay,
                      .amsgrad = options.amsgrad},
                     update);
}

}  // namespace shardmesh::optim
