// SPDX-License-Identifier: Apache-2.0
//
// The model of Hugging Face's LlamaForCausalLM, with the same parameter names, so that weights and
// config.json are read without conversion.
//
//   models::Llama model(config, {.device = Device::Meta()});
//   ...                                  // tp::Parallelize, fsdp::FullyShard
//   model.Initialize(/*seed=*/1);
//   DTensor logits = model(ids);         // ids i64 [batch, sequence] -> [batch, sequence, vocab]
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_H_

#include <memory>

#include "shardmesh/models/llama/llama_attention.h"
#include "shardmesh/models/llama/llama_config.h"
#include "shardmesh/models/llama/llama_mlp.h"
#include "shardmesh/models/llama/rotary_tables.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/nn/module_list.h"
#include "shardmesh/nn/rms_norm.h"

namespace shardmesh::models {

/// One decoder layer: x + self_attn(input_layernorm(x)), then the same with mlp and
/// post_attention_layernorm. x [batch, sequence, hidden] -> the same shape.
class LlamaBlock : public nn::Module {
 public:
  LlamaBlock(const LlamaConfig& config, DType dtype, std::shared_ptr<RotaryTables> rotary);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  nn::RmsNorm post_attention_layernorm_;
  LlamaMlp mlp_;
};

/// The model without its head: ids [batch, sequence] -> [batch, sequence, hidden]. Children:
/// "embed_tokens", "layers", "norm".
class LlamaModel : public nn::Module {
 public:
  LlamaModel(const LlamaConfig& config, DType dtype);

  nn::ModuleList<LlamaBlock>& layers() { return layers_; }
  const nn::Embedding& embed_tokens() const { return embed_tokens_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Embedding embed_tokens_;
  nn::ModuleList<LlamaBlock> layers_;
  nn::RmsNorm norm_;
};

struct LlamaOptions {
  /// Must be meta: Initialize or LoadParameters creates the values, once each parameter has a mesh.
  Device device = Device::Meta();
  /// Of the parameters; must be f32 or f64 for training.
  DType dtype = DType::kF32;
};

/// ids [batch, sequence] -> logits [batch, sequence, vocab]. Children: "model", "lm_head". With
/// tied embeddings "lm_head.weight" is "model.embed_tokens.weight".
class Llama : public nn::Module {
 public:
  /// Throws Error(kInvalidArgument) if the configuration is not valid or the device is not meta.
  explicit Llama(const LlamaConfig& config, const LlamaOptions& options = {});

  const LlamaConfig& config() const { return config_; }
  LlamaModel& model() { return model_; }
  /// for (LlamaBlock& block : model.Blocks()) ...
  nn::ModuleList<LlamaBlock>& Blocks() { return model_.layers(); }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  LlamaConfig config_;
  LlamaModel model_;
  nn::Linear lm_head_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_H_
