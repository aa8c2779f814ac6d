// SPDX-License-Identifier: Apache-2.0
//
// While training, zeroes each element with probability p and scales the rest by 1 / (1 - p).
//
// The mask of the n-th call depends only on (seed of Initialize, full name of the module, n, global
// index): it is the same on every mesh, and differs between layers and between steps.
#ifndef SHARDMESH_NN_DROPOUT_H_
#define SHARDMESH_NN_DROPOUT_H_

#include <cstdint>
#include <optional>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// No parameters. In evaluation the output is the input. In training, calling it before the model's
/// Initialize has given it a seed throws Error(kFailedPrecondition).
class Dropout : public Module {
 public:
  /// Throws Error(kInvalidArgument) if p is not in [0, 1].
  explicit Dropout(double p);

  double p() const { return p_; }
  /// Number of calls in training so far. The state of the layer is this and the seed.
  int64_t calls() const { return calls_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;
  void Reseed(uint64_t seed) override;
  /// "seed" and "calls".
  void AddOwnState(StateDict& state) override;

 private:
  double p_;
  std::optional<uint64_t> seed_;
  int64_t calls_ = 0;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_DROPOUT_H_
