// SPDX-License-Identifier: Apache-2.0
//
// Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, algorithm 2), over the local
// shard. Every element moves by lr, so rates are three to ten times smaller than AdamW's, and
// weight decay as much larger:
//
//   p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p)
//   m  = beta2 m + (1 - beta2) g
//
//   optim::Lion optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
#ifndef SHARDMESH_OPTIM_LION_H_
#define SHARDMESH_OPTIM_LION_H_

#include <string>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim {

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;

  std::vector<OptionField> Fields();
};

/// State: "exp_avg" (m). The sign of 0 is 0, that of nan is nan.
class Lion : public OptimizerOf<LionOptions> {
 public:
  /// Errors: as OptimizerOf.
  explicit Lion(std::vector<nn::Parameter> parameters, const LionOptions& options = {},
                const std::vector<ParameterGroup<LionOptions>>& groups = {});

 protected:
  std::vector<std::string> StateNames(const LionOptions& options) const override;
  void Update(const LionOptions& options, ParameterUpdate& update) override;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_LION_H_
