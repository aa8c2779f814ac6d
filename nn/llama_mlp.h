// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU: down_proj(silu(gate_proj(x)) * up_proj(x)).
#ifndef SHARDMESH_NN_LLAMA_MLP_H_
#define SHARDMESH_NN_LLAMA_MLP_H_

#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/llama_config.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// x [.., hidden] -> the same shape. Children: "gate_proj", "up_proj", "down_proj".
class LlamaMlp : public Module {
 public:
  LlamaMlp(const LlamaConfig& config, DType dtype);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Linear gate_proj_;
  Linear up_proj_;
  Linear down_proj_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LLAMA_MLP_H_
