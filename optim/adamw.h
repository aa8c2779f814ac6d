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

#include <cstdint>
#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// Belongs to one rank. The update is elementwise, so each rank updates its shard without
/// communication. Moments have the parameter's dtype and are allocated at its first step.
class AdamW {
 public:
  /// Errors: throws Error(kInvalidArgument) if a parameter is neither f32 nor f64 (mixed precision
  /// keeps f32 parameters and casts what it gathers) or appears twice, or an option is out of
  /// range.
  AdamW(std::vector<nn::Parameter> parameters, const AdamWOptions& options = {});

  /// Applies and clears the gradient of each parameter that has one; the others are left alone, and
  /// their step count does not change.
  /// Local.
  /// Errors: throws Error(kFailedPrecondition) naming the parameter if its values have been moved
  /// to another layout since its first step, or FullyShard has not reduced all of its gradient;
  /// nothing is updated in the latter case.
  void Step();

  double lr() const { return options_.lr; }
  /// Throws Error(kInvalidArgument) if it is negative or not finite.
  void set_lr(double lr);
  const AdamWOptions& options() const { return options_; }

  /// The optimizer's state for one parameter.
  struct State {
    int64_t step = 0;  ///< Steps taken.
    Layout layout;     ///< Of the moments.
    Tensor m, v;       ///< Undefined before the first step.
  };
  /// In the order of the parameters.
  const std::vector<State>& states() const { return states_; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }

 private:
  void Update(nn::Parameter& parameter, State& state) const;

  std::vector<nn::Parameter> parameters_;
  std::vector<State> states_;
  AdamWOptions options_;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_ADAMW_H_
