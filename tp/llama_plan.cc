// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tp/llama_plan.h"

namespace shardmesh::tp {

Plan LlamaTpPlan(bool sequence_parallel) {
  // The layout of activations between the parts of a block.
  const Placement between = sequence_parallel ? Shard(1) : Replicate();
  Plan plan = {
      {"model.embed_tokens", Rowwise(between)},
      {"model.layers.*.self_attn", PrepareInput(Replicate())},
      {"model.layers.*.self_attn.q_proj", Colwise()},
      {"model.layers.*.self_attn.k_proj", Colwise()},
      {"model.layers.*.self_attn.v_proj", Colwise()},
      {"model.layers.*.self_attn.o_proj", Rowwise(between)},
      {"model.layers.*.mlp", PrepareInput(Replicate())},
      {"model.layers.*.mlp.gate_proj", Colwise()},
      {"model.layers.*.mlp.up_proj", Colwise()},
      {"model.layers.*.mlp.down_proj", Rowwise(between)},
      {"lm_head", PrepareInput(Replicate())},
      {"lm_head", Colwise()},
  };
  if (sequence_parallel) {
    plan.push_back({"model.layers.*.input_layernorm", Sequence()});
    plan.push_back({"model.layers.*.post_attention_layernorm", Sequence()});
    plan.push_back({"model.norm", Sequence()});
  }
  return plan;
}

}  // namespace shardmesh::tp
