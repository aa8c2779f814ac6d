// SPDX-License-Identifier: Apache-2.0
//
// Adam (Kingma and Ba, A Method for Stochastic Optimization), with weight decay as an L2 penalty,
// over the local shard:
//
//   g += weight_decay p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g^2
//   p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
//   optim::Adam optimizer(model.Parameters(), {.lr = 3e-3});
//   Backward(loss);
//   optimizer.Step();            // applies the gradients and clears them
#ifndef SHARDMESH_OPTIM_ADAM_H_
#define SHARDMESH_OPTIM_ADAM_H_

#include <string>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  /// Divides by the largest v so far (Reddi et al., On the Convergence of Adam and Beyond), in
  /// several ops instead of one.
  bool amsgrad = false;

  std::vector<OptionField> Fields();
};

/// State: "exp_avg" (m), "exp_avg_sq" (v), with amsgrad "max_exp_avg_sq".
class Adam : public OptimizerOf<AdamOptions> {
 public:
  /// Errors: as OptimizerOf.
  explicit Adam(std::vector<nn::Parameter> parameters, const AdamOptions& options = {},
                const std::vector<ParameterGroup<AdamOptions>>& groups = {});

 protected:
  std::vector<std::string> StateNames(const AdamOptions& options) const override;
  void Update(const AdamOptions& options, ParameterUpdate& update) override;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_ADAM_H_
