// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a Llama, named as in Hugging Face's LlamaConfig, and their config.json.
//
//   models::LlamaConfig config = {.vocab_size = 256, .hidden_size = 128, .intermediate_size = 384,
//                                 .num_hidden_layers = 4, .num_attention_heads = 4};
//   auto config = models::LlamaConfig::FromFile("checkpoint/config.json");
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::models {

/// Rotary position embedding.
struct RopeConfig {
  enum class Type {
    kDefault,
    kLlama3,  ///< Long wavelengths are stretched, as in Llama 3.1 and later.
  };
  Type type = Type::kDefault;
  double theta = 10000;
  // For kLlama3 only.
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  std::optional<int64_t> num_key_value_heads = std::nullopt;  ///< Default: one per attention head.
  std::optional<int64_t> head_dim = std::nullopt;  ///< Default: hidden_size / num_attention_heads.
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  RopeConfig rope = {};

  int64_t KeyValueHeads() const { return num_key_value_heads.value_or(num_attention_heads); }
  int64_t HeadDim() const { return head_dim.value_or(hidden_size / num_attention_heads); }

  /// Also checks that the number of all elements is at most 2^50, so that no size overflows.
  /// Errors: kInvalidArgument naming the field, its value and what was expected.
  absl::Status Validate() const;

  /// Parses the text of a config.json, which is not trusted. Both `rope_parameters` and the older
  /// `rope_theta` and `rope_scaling` are understood. A field is read, or is known to change nothing
  /// here (docs/checkpoint_format.md lists them), or is null; else it is an error.
  /// Errors: kInvalidArgument naming `source` and the field, for text that is not strict JSON
  /// (equal keys in one object, more than 32 levels), missing, mistyped, contradictory or unknown
  /// fields, and values that Validate() refuses; kUnimplemented for a Llama of a kind that is not
  /// supported (another rotary type or activation, attention that is not causal or has dropout,
  /// quantised weights).
  static absl::StatusOr<LlamaConfig> FromJson(std::string_view text,
                                              std::string_view source = "config.json");
  /// Errors: those of RegularFile, naming `path`; else those of FromJson.
  static absl::StatusOr<LlamaConfig> FromFile(const std::string& path);

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_H_
