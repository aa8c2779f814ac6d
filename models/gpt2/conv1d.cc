// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/conv1d.h"

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {

Conv1d::Conv1d(int64_t inputs, int64_t outputs, DType dtype, nn::Init weight_init)
    : weight_(RegisterParameter("weight", {inputs, outputs}, dtype, weight_init)),
      bias_(RegisterParameter("bias", {outputs}, dtype, nn::Init::Constant(0))) {}

nn::Outputs Conv1d::Forward(const Inputs& inputs) {
  return MatMul(inputs[0], weight_.active()) + bias_.active();
}

}  // namespace shardmesh::models
