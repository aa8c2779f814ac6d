// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama.h"

#include <string>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {
namespace {

/// Validates `config` before members are constructed from it.
const LlamaConfig& Checked(const LlamaConfig& config, const LlamaOptions& options) {
  ThrowIfError(config.Validate());
  if (!options.device.IsMeta()) {
    ThrowInvalid("Llama: a model is built on meta, not on ", options.device.ToString(),
                 ": Initialize or LoadParameters makes the values where the mesh is");
  }
  return config;
}

nn::Parameter HeadWeight(const LlamaConfig& config, DType dtype,
                         const nn::Embedding& embed_tokens) {
  if (config.tie_word_embeddings) return embed_tokens.weight();
  return nn::Parameter({config.vocab_size, config.hidden_size}, dtype,
                       nn::Init::Normal(0, config.initializer_range));
}

}  // namespace

LlamaBlock::LlamaBlock(const LlamaConfig& config, DType dtype, std::shared_ptr<RotaryTables> rotary)
    : input_layernorm_(config.hidden_size, config.rms_norm_eps, dtype),
      self_attn_(config, dtype, std::move(rotary)),
      post_attention_layernorm_(config.hidden_size, config.rms_norm_eps, dtype),
      mlp_(config, dtype) {
  RegisterChild("input_layernorm", input_layernorm_);
  RegisterChild("self_attn", self_attn_);
  RegisterChild("post_attention_layernorm", post_attention_layernorm_);
  RegisterChild("mlp", mlp_);
}

nn::Outputs LlamaBlock::Forward(const Inputs& inputs) {
  const DTensor x = inputs[0] + self_attn_(input_layernorm_(inputs[0]));
  return x + mlp_(post_attention_layernorm_(x));
}

LlamaModel::LlamaModel(const LlamaConfig& config, DType dtype)
    : embed_tokens_(config.vocab_size, config.hidden_size, dtype,
                    nn::Init::Normal(0, config.initializer_range)),
      norm_(config.hidden_size, config.rms_norm_eps, dtype) {
  const auto rotary = std::make_shared<RotaryTables>(config.HeadDim(), config.rope);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.Append(std::make_unique<LlamaBlock>(config, dtype, rotary));
  }
  RegisterChild("embed_tokens", embed_tokens_);
  RegisterChild("layers", layers_);
  RegisterChild("norm", norm_);
}

nn::Outputs LlamaModel::Forward(const Inputs& inputs) {
  DTensor x = embed_tokens_(inputs[0]);
  for (LlamaBlock& block : layers_) x = block(x);
  return norm_(x);
}

Llama::Llama(const LlamaConfig& config, const LlamaOptions& options)
    : config_(Checked(config, options)),
      model_(config, options.dtype),
      lm_head_(HeadWeight(config, options.dtype, model_.embed_tokens()), {.dtype = options.dtype}) {
  RegisterChild("model", model_);
  RegisterChild("lm_head", lm_head_);
}

nn::Outputs Llama::Forward(const Inputs& inputs) {
  if (inputs[0].num_dims() != 2) {
    ThrowInvalid("Llama: ids are ", inputs[0].ToString(), ", expected [batch, sequence]");
  }
  return lm_head_(model_(inputs[0]));
}

}  // namespace shardmesh::models
