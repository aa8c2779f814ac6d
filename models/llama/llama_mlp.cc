// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_mlp.h"

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {
namespace {

nn::LinearOptions Projection(const LlamaConfig& config, DType dtype) {
  return {.bias = config.mlp_bias,
          .dtype = dtype,
          .weight_init = nn::Init::Normal(0, config.initializer_range)};
}

}  // namespace

LlamaMlp::LlamaMlp(const LlamaConfig& config, DType dtype)
    : gate_proj_(config.hidden_size, config.intermediate_size, Projection(config, dtype)),
      up_proj_(config.hidden_size, config.intermediate_size, Projection(config, dtype)),
      down_proj_(config.intermediate_size, config.hidden_size, Projection(config, dtype)) {
  RegisterChild("gate_proj", gate_proj_);
  RegisterChild("up_proj", up_proj_);
  RegisterChild("down_proj", down_proj_);
}

nn::Outputs LlamaMlp::Forward(const Inputs& inputs) {
  const DTensor& x = inputs[0];
  return down_proj_(SiluMul(gate_proj_(x), up_proj_(x)));
}

}  // namespace shardmesh::models
