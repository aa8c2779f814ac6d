// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_tp_plan.h"

namespace shardmesh::models {

tp::Plan LlamaTpPlan(bool sequence_parallel) {
  // The layout of activations between the parts of a block.
  const Placement between = sequence_parallel ? Shard(1) : Replicate();
  tp::Plan plan = {
      {"model.embed_tokens", tp::Rowwise(between)},
      {"model.layers.*.self_attn", tp::PrepareInput(Replicate())},
      {"model.layers.*.self_attn.q_proj", tp::Colwise()},
      {"model.layers.*.self_attn.k_proj", tp::Colwise()},
      {"model.layers.*.self_attn.v_proj", tp::Colwise()},
      {"model.layers.*.self_attn.o_proj", tp::Rowwise(between)},
      {"model.layers.*.mlp", tp::PrepareInput(Replicate())},
      {"model.layers.*.mlp.gate_proj", tp::Colwise()},
      {"model.layers.*.mlp.up_proj", tp::Colwise()},
      {"model.layers.*.mlp.down_proj", tp::Rowwise(between)},
      {"lm_head", tp::PrepareInput(Replicate())},
      {"lm_head", tp::Colwise()},
  };
  if (sequence_parallel) {
    plan.push_back({"model.layers.*.input_layernorm", tp::Sequence()});
    plan.push_back({"model.layers.*.post_attention_layernorm", tp::Sequence()});
    plan.push_back({"model.norm", tp::Sequence()});
  }
  return plan;
}

}  // namespace shardmesh::models
