// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum (PyTorch's form of it), fused over the local shard:
//
//   d = g + weight_decay p
//   b = d in the first step, momentum b + (1 - dampening) d later
//   p -= lr b                              nesterov: p -= lr (d + momentum b)
//
//   optim::Sgd optimizer(model.Parameters(), {.lr = 0.1, .momentum = 0.9});
#ifndef SHARDMESH_OPTIM_SGD_H_
#define SHARDMESH_OPTIM_SGD_H_

#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  double dampening = 0;
  bool nesterov = false;  ///< Needs a momentum and no dampening.

  std::vector<OptionField> Fields();
  void Validate(std::string_view optimizer) const;
};

/// State: with momentum "momentum_buffer". Dampening and Nesterov take several ops instead of one.
class Sgd : public OptimizerOf<SgdOptions> {
 public:
  /// Errors: as OptimizerOf; throws Error(kInvalidArgument) for nesterov without momentum or with
  /// dampening.
  explicit Sgd(std::vector<nn::Parameter> parameters, const SgdOptions& options = {},
               const std::vector<ParameterGroup<SgdOptions>>& groups = {});

 protected:
  std::vector<std::string> StateNames(const SgdOptions& options) const override;
  void Update(const SgdOptions& options, ParameterUpdate& update) override;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_SGD_H_
