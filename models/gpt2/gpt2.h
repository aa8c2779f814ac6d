// SPDX-License-Identifier: Apache-2.0
//
// The model of Hugging Face's GPT2LMHeadModel, written as a user of the library would. It has the
// same parameter names and shapes, so that weights are read without conversion.
//
//   models::Gpt2 model(config);
//   for (auto& block : model.blocks()) fsdp::FullyShard(block, mesh);
//   fsdp::FullyShard(model, mesh);
//   model.Initialize(/*seed=*/1);        // or nn::LoadParameters
//   DTensor logits = model(ids);         // ids i64 [batch, sequence] -> [batch, sequence, vocab]
#ifndef SHARDMESH_MODELS_GPT2_GPT2_H_
#define SHARDMESH_MODELS_GPT2_GPT2_H_

#include <cstdint>
#include <memory>

#include "shardmesh/models/gpt2/conv1d.h"
#include "shardmesh/models/gpt2/gpt2_config.h"
#include "shardmesh/models/gpt2/low_rank_adapter.h"
#include "shardmesh/nn/dropout.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/nn/module_list.h"

namespace shardmesh::models {

/// Learned positions: x [batch, sequence, features] + weight[0 .. sequence).
class Gpt2Positions : public nn::Module {
 public:
  Gpt2Positions(const Gpt2Config& config, DType dtype);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Parameter weight_;
};

/// Causal self-attention whose queries, keys and values come from one product. x [batch, sequence,
/// n_embd] -> the same shape. Children: "c_attn", "c_proj", "resid_dropout". A call in training
/// throws Error(kUnimplemented) if attn_pdrop is above 0.
class Gpt2Attention : public nn::Module {
 public:
  Gpt2Attention(const Gpt2Config& config, DType dtype);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  int64_t heads_;
  double attn_pdrop_;
  Conv1d c_attn_;
  Conv1d c_proj_;
  nn::Dropout resid_dropout_;
};

/// x [.., n_embd] -> the same shape. Children: "c_fc", "c_proj", "dropout", and "adapter" if added.
class Gpt2Mlp : public nn::Module {
 public:
  Gpt2Mlp(const Gpt2Config& config, DType dtype);

  /// See Gpt2::AddAdapters.
  void AddAdapter(int64_t rank);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  DType dtype_;
  Conv1d c_fc_;
  Conv1d c_proj_;
  nn::Dropout dropout_;
  std::unique_ptr<LowRankAdapter> adapter_;
};

/// x + attn(ln_1(x)), then the same with mlp and ln_2.
class Gpt2Block : public nn::Module {
 public:
  Gpt2Block(const Gpt2Config& config, DType dtype);

  Gpt2Mlp& mlp() { return mlp_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::LayerNorm ln_1_;
  Gpt2Attention attn_;
  nn::LayerNorm ln_2_;
  Gpt2Mlp mlp_;
};

/// The model without its head: ids [batch, sequence] -> [batch, sequence, n_embd]. Children:
/// "wte", "wpe", "drop", "h", "ln_f".
class Gpt2Transformer : public nn::Module {
 public:
  Gpt2Transformer(const Gpt2Config& config, DType dtype);

  const nn::Embedding& wte() const { return wte_; }
  nn::ModuleList<Gpt2Block>& h() { return h_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Embedding wte_;
  Gpt2Positions wpe_;
  nn::Dropout drop_;
  nn::ModuleList<Gpt2Block> h_;
  nn::LayerNorm ln_f_;
};

/// ids [batch, sequence] -> logits [batch, sequence, vocab]. Children: "transformer" and "lm_head",
/// which are tied: "lm_head.weight" is "transformer.wte.weight".
class Gpt2 : public nn::Module {
 public:
  /// On meta. Throws Error(kInvalidArgument) if the configuration is not valid.
  explicit Gpt2(const Gpt2Config& config, DType dtype = DType::kF32);

  /// for (Gpt2Block& block : model.blocks()) ...
  nn::ModuleList<Gpt2Block>& blocks() { return transformer_.h(); }

  /// Adds a LowRankAdapter to each "mlp.c_fc", as "mlp.adapter": y = x W + b + (x A) B. Adapters
  /// have no values yet. To adapt the weights of a file that has no adapters, read it first; the
  /// adapters then need a mesh (FullyShard or PlaceReplicated) and Initialize.
  /// Errors: throws Error(kInvalidArgument) if rank < 1, or the model has adapters already.
  void AddAdapters(int64_t rank);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Gpt2Transformer transformer_;
  nn::Linear lm_head_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_GPT2_H_
