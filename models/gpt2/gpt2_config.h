// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a GPT-2, named as in Hugging Face's GPT2Config.
//
//   models::Gpt2Config config = {.vocab_size = 50257, .n_embd = 768, .n_layer = 12, .n_head = 12};
#ifndef SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_
#define SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace shardmesh::models {

struct Gpt2Config {
  int64_t vocab_size = 0;
  int64_t n_positions = 1024;
  int64_t n_embd = 0;
  int64_t n_layer = 0;
  int64_t n_head = 0;
  std::optional<int64_t> n_inner = std::nullopt;  ///< Default: 4 * n_embd.
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  /// Dropout of the embeddings and of what a block adds to its input. Attention probabilities are
  /// never dropped: the fused attention does not keep them.
  double embd_pdrop = 0;
  double resid_pdrop = 0;

  int64_t InnerSize() const { return n_inner.value_or(4 * n_embd); }
  /// Errors: kInvalidArgument naming the field, its value and what was expected.
  absl::Status Validate() const;

  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_
