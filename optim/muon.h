// SPDX-License-Identifier: Apache-2.0
//
// Muon (K. Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024): momentum
// whose matrix is replaced by one with the same singular vectors and singular values near 1, found
// by a quintic Newton-Schulz iteration, x = a x + (b x x^T + c (x x^T)^2) x. Only for matrices; an
// AdamW beside it takes the rest, and commonly embeddings and heads:
//
//   std::vector<nn::Parameter> matrices, rest;
//   for (const nn::Parameter& p : model.Parameters())
//     (optim::IsNormOrBias(p) ? rest : matrices).push_back(p);
//   optim::Muon muon(matrices, {.lr = 0.02});
//   optim::AdamW adamw(rest, {.lr = 3e-3});
//
//   b  = momentum b + (1 - momentum) g
//   p -= lr weight_decay p
//   p -= lr scale NewtonSchulz((1 - momentum) g + momentum b)         without nesterov: of b
#ifndef SHARDMESH_OPTIM_MUON_H_
#define SHARDMESH_OPTIM_MUON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "shardmesh/optim/optimizer.h"

namespace shardmesh::optim {

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;
  bool nesterov = true;
  int64_t ns_steps = 5;  ///< Newton-Schulz iterations.
  /// The scale is 0.2 sqrt(max(rows, columns)), so that rates and decay of AdamW can be used
  /// (Liu et al., Muon is Scalable for LLM Training); otherwise sqrt(max(1, rows / columns)).
  bool match_rms_adamw = false;

  std::vector<OptionField> Fields();
};

/// State: "momentum_buffer" (b).
///
/// The iteration runs on the global matrix. Each axis that shards a parameter shards the longer of
/// its dims meanwhile, so that a product x x^T is one all-reduce of min(rows, columns)^2 elements
/// and everything else is local; axes that replicate it repeat the work.
class Muon : public OptimizerOf<MuonOptions> {
 public:
  /// Errors: as OptimizerOf; throws Error(kInvalidArgument) naming a parameter that has not two
  /// dims.
  explicit Muon(std::vector<nn::Parameter> parameters, const MuonOptions& options = {},
                const std::vector<ParameterGroup<MuonOptions>>& groups = {});

 protected:
  std::vector<std::string> StateNames(const MuonOptions& options) const override;
  /// Collective over the axes that shard the parameter: a move to the longer dim and one back where
  /// it is not there already, an all-reduce of one element, and one of the product per iteration.
  void Update(const MuonOptions& options, ParameterUpdate& update) override;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_MUON_H_
