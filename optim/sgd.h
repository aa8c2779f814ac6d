// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum (PyTorch's form of it), fused over the local shard:
//
//   d = g + weight_decay p
//   b = d in the first step, momentum b + d later
//   p -= lr b
//
//   optim::Sgd optimizer(model.Parameters(), {.lr = 0.1, .momentum = 0.9});
#ifndef SHARDMESH_OPTIM_SGD_H_
#define SHARDMESH_OPTIM_SGD_H_

#include <vector>

#include "shardmesh/nn/parameter.h"

namespace shardmesh::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
};

/// Belongs to one rank. The update is elementwise, so each rank updates its shard without
/// communication. With momentum, a buffer of the parameter's dtype is allocated at its first step.
class Sgd {
 public:
  /// Errors: as AdamW's.
  Sgd(std::vector<nn::Parameter> parameters, const SgdOptions& options = {});

  /// Applies and clears the gradient of each parameter that has one; other parameters do not
  /// change.
  /// Local.
  /// Errors: throws Error(kFailedPrecondition) naming the parameter if its values have been moved
  /// to another layout since its first step, or FullyShard has not reduced all of its gradient;
  /// nothing is updated in the latter case.
  void Step();

  double lr() const { return options_.lr; }
  /// Throws Error(kInvalidArgument) if it is negative or not finite.
  void set_lr(double lr);

  /// The optimizer's state for one parameter.
  struct State {
    Layout layout;  ///< Of the buffer.
    Tensor buffer;  ///< Undefined before the first step, or without momentum.
  };
  /// In the order of the parameters.
  const std::vector<State>& states() const { return states_; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }

 private:
  void Update(nn::Parameter& parameter, State& state) const;

  std::vector<nn::Parameter> parameters_;
  std::vector<State> states_;
  SgdOptions options_;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_SGD_H_
