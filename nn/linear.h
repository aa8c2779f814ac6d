// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b, as PyTorch stores it: weight [outputs, inputs], bias [outputs].
//
//   nn::Linear up(64, 256);
//   DTensor y = up(x);        // x [.., 64] -> y [.., 256]
#ifndef SHARDMESH_NN_LINEAR_H_
#define SHARDMESH_NN_LINEAR_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

struct LinearOptions {
  bool bias = false;
  DType dtype = DType::kF32;
  Init weight_init = Init::Normal(0, 0.02);
  /// If not 0: the outputs (inputs) belong to this many heads of equal size, and a head must not be
  /// cut. Tensor parallelism refuses an axis that does not divide them.
  int64_t output_heads = 0;
  int64_t input_heads = 0;
};

/// Parameters: "weight", and "bias" if there is one (zeros at first).
class Linear : public Module {
 public:
  /// Throws Error(kInvalidArgument) if heads do not divide the features.
  Linear(int64_t inputs, int64_t outputs, const LinearOptions& options = {});
  /// With the weight of another module (tied); `options` says the rest.
  Linear(const Parameter& weight, const LinearOptions& options = {});

  int64_t inputs() const { return weight_.shape()[1]; }
  int64_t outputs() const { return weight_.shape()[0]; }
  int64_t output_heads() const { return options_.output_heads; }
  int64_t input_heads() const { return options_.input_heads; }
  const Parameter& weight() const { return weight_; }
  /// No parameter if there is none.
  const Parameter& bias() const { return bias_; }

  /// `hook` maps x W^T to what the bias is added to. Row-parallel layers reduce the partial product
  /// here, so that the bias is added once and not once a rank.
  void set_product_hook(std::function<DTensor(const DTensor& product)> hook) {
    product_hook_ = std::move(hook);
  }

 protected:
  DTensor Forward(const Inputs& inputs) override;

 private:
  LinearOptions options_;
  Parameter weight_;
  Parameter bias_;
  std::function<DTensor(const DTensor&)> product_hook_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LINEAR_H_
