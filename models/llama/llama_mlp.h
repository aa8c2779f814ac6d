// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU: down_proj(silu(gate_proj(x)) * up_proj(x)).
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_MLP_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_MLP_H_

#include "shardmesh/models/llama/llama_config.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::models {

/// x [.., hidden] -> the same shape. Children: "gate_proj", "up_proj", "down_proj".
class LlamaMlp : public nn::Module {
 public:
  LlamaMlp(const LlamaConfig& config, DType dtype);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Linear gate_proj_;
  nn::Linear up_proj_;
  nn::Linear down_proj_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_MLP_H_
