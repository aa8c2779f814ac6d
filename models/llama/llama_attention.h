// SPDX-License-Identifier: Apache-2.0
//
// Causal self-attention of a Llama: rotary positions, grouped query heads.
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_ATTENTION_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "shardmesh/models/llama/llama_config.h"
#include "shardmesh/models/llama/rotary_tables.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::models {

/// x [batch, sequence, hidden] -> the same shape. Children: "q_proj", "k_proj", "v_proj", "o_proj".
/// The code uses the global number of heads. If the projections are sharded over heads, attention
/// is sharded in the same way.
class LlamaAttention : public nn::Module {
 public:
  LlamaAttention(const LlamaConfig& config, DType dtype, std::shared_ptr<RotaryTables> rotary);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  /// [batch, sequence, heads * d] -> [batch, heads, sequence, d].
  DTensor SplitHeads(const DTensor& x, int64_t heads) const;

  int64_t heads_;
  int64_t key_value_heads_;
  int64_t head_dim_;
  std::shared_ptr<RotaryTables> rotary_;
  nn::Linear q_proj_;
  nn::Linear k_proj_;
  nn::Linear v_proj_;
  nn::Linear o_proj_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_ATTENTION_H_
