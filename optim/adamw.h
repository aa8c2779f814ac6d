// SPDX-License-Identifier: Apache-2.0
//
// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization), fused over the local shard:
//
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g^2
//   p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
//   optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
//   Backward(loss);
//   optimizer.Step();            // applies the gradients and clears them
#ifndef SHARDMESH_OPTIM_ADAMW_H_
#define SHARDMESH_OPTIM_ADAMW_H_

#include <string>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  /// Divides by the largest v so far (Reddi et al., On the Convergence of Adam and Beyond), in
  /// several ops instead of one.
  bool amsgrad = false;

  std::vector<OptionField> Fields();
};

/// State: "exp_avg" (m), "exp_avg_sq" (v), with amsgrad "max_exp_avg_sq".
class AdamW : public OptimizerOf<AdamWOptions> {
 public:
  /// Errors: as OptimizerOf.
  explicit AdamW(std::vector<nn::Parameter> parameters, const AdamWOptions& options = {},
                 const std::vector<ParameterGroup<AdamWOptions>>& groups = {});

 protected:
  std::vector<std::string> StateNames(const AdamWOptions& options) const override;
  void Update(const AdamWOptions& options, ParameterUpdate& update) override;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_ADAMW_H_
