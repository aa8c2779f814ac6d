// SPDX-License-Identifier: Apache-2.0
//
// What AdamW and Adam have in common.
#ifndef SHARDMESH_OPTIM_INTERNAL_ADAM_STEP_H_
#define SHARDMESH_OPTIM_INTERNAL_ADAM_STEP_H_

#include <string>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim::internal {

struct AdamRule {
  double lr, beta1, beta2, eps;
  double decoupled_decay = 0;  ///< p -= lr * decay * p, before the step.
  double l2_decay = 0;         ///< g += decay * p.
  bool amsgrad = false;
};

/// Names and ranges of the fields that both have.
template <typename Options>
std::vector<OptionField> AdamFields(Options& o) {
  return {{"lr", &o.lr},   {"beta1", &o.beta1, 0, 1},         {"beta2", &o.beta2, 0, 1},
          {"eps", &o.eps}, {"weight_decay", &o.weight_decay}, {"amsgrad", &o.amsgrad}};
}

/// "exp_avg", "exp_avg_sq", and with amsgrad "max_exp_avg_sq".
std::vector<std::string> AdamStateNames(bool amsgrad);

/// One fused pass; with amsgrad or L2 decay several ops per tile. Local.
void AdamStep(const AdamRule& rule, ParameterUpdate& update);

}  // namespace shardmesh::optim::internal

#endif  // SHARDMESH_OPTIM_INTERNAL_ADAM_STEP_H_
