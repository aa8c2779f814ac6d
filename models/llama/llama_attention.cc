// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_attention.h"

#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {
namespace {

nn::LinearOptions Projection(const LlamaConfig& config, DType dtype) {
  return {.bias = config.attention_bias,
          .dtype = dtype,
          .weight_init = nn::Init::Normal(0, config.initializer_range)};
}

nn::LinearOptions ToHeads(const LlamaConfig& config, DType dtype, int64_t heads) {
  nn::LinearOptions options = Projection(config, dtype);
  options.output_heads = heads;
  return options;
}

nn::LinearOptions FromHeads(const LlamaConfig& config, DType dtype, int64_t heads) {
  nn::LinearOptions options = Projection(config, dtype);
  options.input_heads = heads;
  return options;
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, DType dtype,
                               std::shared_ptr<RotaryTables> rotary)
    : heads_(config.num_attention_heads),
      key_value_heads_(config.KeyValueHeads()),
      head_dim_(config.HeadDim()),
      rotary_(std::move(rotary)),
      q_proj_(config.hidden_size, heads_ * head_dim_, ToHeads(config, dtype, heads_)),
      k_proj_(config.hidden_size, key_value_heads_ * head_dim_,
              ToHeads(config, dtype, key_value_heads_)),
      v_proj_(config.hidden_size, key_value_heads_ * head_dim_,
              ToHeads(config, dtype, key_value_heads_)),
      o_proj_(heads_ * head_dim_, config.hidden_size, FromHeads(config, dtype, heads_)) {
  RegisterChild("q_proj", q_proj_);
  RegisterChild("k_proj", k_proj_);
  RegisterChild("v_proj", v_proj_);
  RegisterChild("o_proj", o_proj_);
}

DTensor LlamaAttention::SplitHeads(const DTensor& x, int64_t heads) const {
  return Transpose(Reshape(x, {x.dim(0), x.dim(1), heads, head_dim_}), 1, 2);
}

nn::Outputs LlamaAttention::Forward(const Inputs& inputs) {
  const DTensor& x = inputs[0];
  if (x.num_dims() != 3) {
    ThrowInvalid("LlamaAttention: x is ", x.ToString(), ", expected [batch, sequence, hidden]");
  }
  const int64_t batch = x.dim(0), sequence = x.dim(1);
  const auto [cos, sin] = rotary_->Get(x.mesh().context(), sequence, x.dtype());
  const DTensor q = Rotary(SplitHeads(q_proj_(x), heads_), cos, sin);
  const DTensor k = Rotary(SplitHeads(k_proj_(x), key_value_heads_), cos, sin);
  const DTensor v = SplitHeads(v_proj_(x), key_value_heads_);
  const DTensor y = Transpose(Attention(q, k, v, /*causal=*/true), 1, 2);
  return o_proj_(Reshape(y, {batch, sequence, heads_ * head_dim_}));
}

}  // namespace shardmesh::models
