// SPDX-License-Identifier: Apache-2.0
//
// The model of Hugging Face's LlamaForCausalLM, with the same parameter names, so that weights and
// config.json are read without conversion.
//
//   nn::Llama model(config, {.device = Device::Meta()});
//   ...                                  // tp::Parallelize, fsdp::FullyShard
//   model.Initialize(/*seed=*/1);
//   DTensor logits = model(ids);         // ids i64 [batch, sequence] -> [batch, sequence, vocab]
#ifndef SHARDMESH_NN_LLAMA_H_
#define SHARDMESH_NN_LLAMA_H_

#include <memory>

#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/llama_attention.h"
#include "shardmesh/nn/llama_config.h"
#include "shardmesh/nn/llama_mlp.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/nn/module_list.h"
#include "shardmesh/nn/rms_norm.h"
#include "shardmesh/nn/rotary_tables.h"

namespace shardmesh::nn {

/// One decoder layer: x + self_attn(input_layernorm(x)), then the same with mlp and
/// post_attention_layernorm. x [batch, sequence, hidden] -> the same shape.
class LlamaBlock : public Module {
 public:
  LlamaBlock(const LlamaConfig& config, DType dtype, std::shared_ptr<RotaryTables> rotary);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  RmsNorm post_attention_layernorm_;
  LlamaMlp mlp_;
};

/// The model without its head: ids [batch, sequence] -> [batch, sequence, hidden]. Children:
/// "embed_tokens", "layers", "norm".
class LlamaModel : public Module {
 public:
  LlamaModel(const LlamaConfig& config, DType dtype);

  ModuleList<LlamaBlock>& layers() { return layers_; }
  const Embedding& embed_tokens() const { return embed_tokens_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Embedding embed_tokens_;
  ModuleList<LlamaBlock> layers_;
  RmsNorm norm_;
};

struct LlamaOptions {
  /// Must be meta: Initialize or LoadParameters creates the values, once each parameter has a mesh.
  Device device = Device::Meta();
  /// Of the parameters; must be f32 or f64 for training.
  DType dtype = DType::kF32;
};

/// ids [batch, sequence] -> logits [batch, sequence, vocab]. Children: "model", "lm_head". With
/// tied embeddings "lm_head.weight" is "model.embed_tokens.weight".
class Llama : public Module {
 public:
  /// Throws Error(kInvalidArgument) if the configuration is not valid or the device is not meta.
  explicit Llama(const LlamaConfig& config, const LlamaOptions& options = {});

  const LlamaConfig& config() const { return config_; }
  LlamaModel& model() { return model_; }
  /// for (LlamaBlock& block : model.Blocks()) ...
  ModuleList<LlamaBlock>& Blocks() { return model_.layers(); }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  LlamaConfig config_;
  LlamaModel model_;
  Linear lm_head_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LLAMA_H_
