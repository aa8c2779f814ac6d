// SPDX-License-Identifier: Apache-2.0
//
// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last dim; var is biased.
#ifndef SHARDMESH_NN_LAYER_NORM_H_
#define SHARDMESH_NN_LAYER_NORM_H_

#include <cstdint>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// Parameters: "weight" [features], initially ones, and "bias" [features], initially zeros.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t features, double eps = 1e-5, DType dtype = DType::kF32);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Parameter weight_;
  Parameter bias_;
  double eps_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LAYER_NORM_H_
