// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2.h"

#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {
namespace {

/// Validates `config` before members are constructed from it.
const Gpt2Config& Checked(const Gpt2Config& config) {
  ThrowIfError(config.Validate());
  return config;
}

nn::Init WeightInit(const Gpt2Config& config) {
  return nn::Init::Normal(0, config.initializer_range);
}

/// Of the projections that end in the residual stream, of which there are two in each block.
nn::Init ResidualInit(const Gpt2Config& config) {
  const double summands = 2.0 * static_cast<double>(config.n_layer);
  return nn::Init::Normal(0, config.initializer_range / std::sqrt(summands));
}

}  // namespace

Gpt2Positions::Gpt2Positions(const Gpt2Config& config, DType dtype)
    : weight_(RegisterParameter("weight", {config.n_positions, config.n_embd}, dtype,
                                WeightInit(config))) {}

nn::Outputs Gpt2Positions::Forward(const Inputs& inputs) {
  const DTensor& x = inputs[0];
  const int64_t positions = weight_.shape()[0];
  if (x.dim(1) > positions) {
    ThrowInvalid("Gpt2: ", x.ToString(), " has ", x.dim(1), " positions, the model has ",
                 positions);
  }
  return x + Slice(weight_.active(), /*dim=*/0, /*start=*/0, /*length=*/x.dim(1));
}

Gpt2Attention::Gpt2Attention(const Gpt2Config& config, DType dtype)
    : heads_(config.n_head),
      attn_pdrop_(config.attn_pdrop),
      c_attn_(config.n_embd, 3 * config.n_embd, dtype, WeightInit(config)),
      c_proj_(config.n_embd, config.n_embd, dtype, ResidualInit(config)),
      resid_dropout_(config.resid_pdrop) {
  RegisterChild("c_attn", c_attn_);
  RegisterChild("c_proj", c_proj_);
  RegisterChild("resid_dropout", resid_dropout_);
}

nn::Outputs Gpt2Attention::Forward(const Inputs& inputs) {
  if (training() && attn_pdrop_ > 0) {
    Throw(absl::StatusCode::kUnimplemented, "Gpt2Attention ", FullName(), ": attn_pdrop is ",
          attn_pdrop_, ", but attention probabilities cannot be dropped; call Eval, or set ",
          "Gpt2Config::attn_pdrop to 0 to train without");
  }
  const DTensor& x = inputs[0];
  const int64_t batch = x.dim(0), sequence = x.dim(1), width = x.dim(2);
  const std::vector<DTensor> qkv = Split(c_attn_(x), {width, width, width}, /*dim=*/2);
  const auto heads = [&](const DTensor& y) {
    return Transpose(Reshape(y, {batch, sequence, heads_, width / heads_}), 1, 2);
  };
  const DTensor y = Attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), /*causal=*/true);
  return resid_dropout_(c_proj_(Reshape(Transpose(y, 1, 2), {batch, sequence, width})));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config, DType dtype)
    : dtype_(dtype),
      c_fc_(config.n_embd, config.InnerSize(), dtype, WeightInit(config)),
      c_proj_(config.InnerSize(), config.n_embd, dtype, ResidualInit(config)),
      dropout_(config.resid_pdrop) {
  RegisterChild("c_fc", c_fc_);
  RegisterChild("c_proj", c_proj_);
  RegisterChild("dropout", dropout_);
}

void Gpt2Mlp::AddAdapter(int64_t rank) {
  auto adapter = std::make_unique<LowRankAdapter>(c_fc_.inputs(), c_fc_.outputs(), rank, dtype_);
  RegisterChild("adapter", *adapter);
  adapter_ = std::move(adapter);
}

nn::Outputs Gpt2Mlp::Forward(const Inputs& inputs) {
  const DTensor& x = inputs[0];
  const DTensor y = adapter_ ? c_fc_(x) + (*adapter_)(x) : c_fc_(x);
  return dropout_(c_proj_(GeluTanh(y)));
}

Gpt2Block::Gpt2Block(const Gpt2Config& config, DType dtype)
    : ln_1_(config.n_embd, config.layer_norm_epsilon, dtype),
      attn_(config, dtype),
      ln_2_(config.n_embd, config.layer_norm_epsilon, dtype),
      mlp_(config, dtype) {
  RegisterChild("ln_1", ln_1_);
  RegisterChild("attn", attn_);
  RegisterChild("ln_2", ln_2_);
  RegisterChild("mlp", mlp_);
}

nn::Outputs Gpt2Block::Forward(const Inputs& inputs) {
  const DTensor x = inputs[0] + attn_(ln_1_(inputs[0]));
  return x + mlp_(ln_2_(x));
}

Gpt2Transformer::Gpt2Transformer(const Gpt2Config& config, DType dtype)
    : wte_(config.vocab_size, config.n_embd, dtype, WeightInit(config)),
      wpe_(config, dtype),
      drop_(config.embd_pdrop),
      ln_f_(config.n_embd, config.layer_norm_epsilon, dtype) {
  for (int64_t i = 0; i < config.n_layer; ++i) {
    h_.Append(std::make_unique<Gpt2Block>(config, dtype));
  }
  RegisterChild("wte", wte_);
  RegisterChild("wpe", wpe_);
  RegisterChild("drop", drop_);
  RegisterChild("h", h_);
  RegisterChild("ln_f", ln_f_);
}

nn::Outputs Gpt2Transformer::Forward(const Inputs& inputs) {
  DTensor x = drop_(wpe_(wte_(inputs[0])));
  for (Gpt2Block& block : h_) x = block(x);
  return ln_f_(x);
}

Gpt2::Gpt2(const Gpt2Config& config, DType dtype)
    : transformer_(Checked(config), dtype),
      lm_head_(transformer_.wte().weight(), {.dtype = dtype}) {
  RegisterChild("transformer", transformer_);
  RegisterChild("lm_head", lm_head_);
}

void Gpt2::AddAdapters(int64_t rank) {
  for (Gpt2Block& block : blocks()) block.mlp().AddAdapter(rank);
}

nn::Outputs Gpt2::Forward(const Inputs& inputs) {
  if (inputs[0].num_dims() != 2) {
    ThrowInvalid("Gpt2: ids are ", inputs[0].ToString(), ", expected [batch, sequence]");
  }
  return lm_head_(transformer_(inputs[0]));
}

}  // namespace shardmesh::models
