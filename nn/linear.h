// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b, as PyTorch stores it: weight [outputs, inputs], bias [outputs]. Unlike
// torch.nn.Linear, it has no bias unless asked for one, and begins with Normal(0, 0.02).
//
//   nn::Linear up(64, 256);
//   DTensor y = up(x);        // x [.., 64] -> y [.., 256]
#ifndef SHARDMESH_NN_LINEAR_H_
#define SHARDMESH_NN_LINEAR_H_

#include <cstdint>
#include <string>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

struct LinearOptions {
  bool bias = false;
  DType dtype = DType::kF32;
  Init weight_init = Init::Normal(0, 0.02);
  /// If not 0, the outputs (inputs) form this many heads of equal size, and a head must not be
  /// split: tensor parallelism refuses an axis whose size does not divide the number of heads.
  int64_t output_heads = 0;
  int64_t input_heads = 0;
};

/// Parameters: "weight", and "bias" if requested (initially zeros).
class Linear : public Module {
 public:
  /// Throws Error(kInvalidArgument) if heads do not divide the features.
  Linear(int64_t inputs, int64_t outputs, const LinearOptions& options = {});
  /// Shares the weight of another module (tied).
  Linear(const Parameter& weight, const LinearOptions& options = {});

  int64_t inputs() const { return weight_.shape()[1]; }
  int64_t outputs() const { return weight_.shape()[0]; }
  int64_t output_heads() const { return options_.output_heads; }
  int64_t input_heads() const { return options_.input_heads; }
  const Parameter& weight() const { return weight_; }
  /// Undefined if the layer has no bias.
  const Parameter& bias() const { return bias_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;
  std::string Describe() const override;

 private:
  LinearOptions options_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LINEAR_H_
