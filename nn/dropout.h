// SPDX-License-Identifier: Apache-2.0
//
// While training, zeroes each element with probability p and scales the rest by 1 / (1 - p).
//
// The mask of the n-th call follows from (seed of Initialize, full name of the module, n, global
// index) alone: it is the same on every mesh, and another in each layer and each step.
#ifndef SHARDMESH_NN_DROPOUT_H_
#define SHARDMESH_NN_DROPOUT_H_

#include <cstdint>
#include <optional>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// No parameters. In evaluation its output is its input; in training it throws
/// Error(kFailedPrecondition) before the model's Initialize has given it a seed.
class Dropout : public Module {
 public:
  /// Throws Error(kInvalidArgument) if p is not in [0, 1].
  explicit Dropout(double p);

  double p() const { return p_; }
  /// Training calls so far; with the seed the whole state of the layer.
  int64_t calls() const { return calls_; }

 protected:
  DTensor Forward(const Inputs& inputs) override;
  void Reseed(uint64_t seed) override;

 private:
  double p_;
  std::optional<uint64_t> seed_;
  int64_t calls_ = 0;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_DROPOUT_H_
