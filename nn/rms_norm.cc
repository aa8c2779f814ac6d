// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/rms_norm.h"

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::nn {

RmsNorm::RmsNorm(int64_t features, double eps, DType dtype)
    : weight_(RegisterParameter("weight", {features}, dtype, Init::Constant(1))), eps_(eps) {}

Outputs RmsNorm::Forward(const Inputs& inputs) {
  return shardmesh::RmsNorm(inputs[0], weight_.active(), eps_);
}

}  // namespace shardmesh::nn
