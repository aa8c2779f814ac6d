// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a GPT-2, named as in Hugging Face's GPT2Config, and their config.json.
//
//   models::Gpt2Config config = {.vocab_size = 50257, .n_embd = 768, .n_layer = 12, .n_head = 12};
//   auto config = models::Gpt2Config::FromFile("checkpoint/config.json");
#ifndef SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_
#define SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
  /// Dropout of the embeddings and of what a block adds to its input.
  double embd_pdrop = 0;
  double resid_pdrop = 0;
  /// Dropout of attention probabilities, which the fused attention cannot do: if it is above 0,
  /// the model can be evaluated, and a call in training throws Error(kUnimplemented).
  double attn_pdrop = 0;

  int64_t InnerSize() const { return n_inner.value_or(4 * n_embd); }
  /// Also checks that the number of all elements is at most 2^50, so that no size overflows.
  /// Errors: kInvalidArgument naming the field, its value and what was expected.
  absl::Status Validate() const;

  /// Parses the text of a config.json, which is not trusted. A field is read, or is known to change
  /// nothing here (docs/checkpoint_format.md lists them), or is null; else it is an error. Absent
  /// probabilities of dropout are 0.1, as Hugging Face has it.
  /// Errors: kInvalidArgument naming `source` and the field, for text that is not strict JSON
  /// (equal keys in one object, more than 32 levels), missing, mistyped, contradictory or unknown
  /// fields, and values that Validate() refuses; kUnimplemented for a GPT-2 of a kind that is not
  /// supported (another activation or scale of the attention, untied embeddings, quantised
  /// weights).
  static absl::StatusOr<Gpt2Config> FromJson(std::string_view text,
                                             std::string_view source = "config.json");
  /// Errors: those of RegularFile, naming `path`; else those of FromJson.
  static absl::StatusOr<Gpt2Config> FromFile(const std::string& path);

  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_GPT2_CONFIG_H_
