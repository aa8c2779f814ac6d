// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/layer_norm.h"

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::nn {

LayerNorm::LayerNorm(int64_t features, double eps, DType dtype)
    : weight_(RegisterParameter("weight", {features}, dtype, Init::Constant(1))),
      bias_(RegisterParameter("bias", {features}, dtype, Init::Constant(0))),
      eps_(eps) {}

Outputs LayerNorm::Forward(const Inputs& inputs) {
  return shardmesh::LayerNorm(inputs[0], weight_.active(), bias_.active(), eps_);
}

}  // namespace shardmesh::nn
