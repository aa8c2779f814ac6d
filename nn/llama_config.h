// SPDX-License-Identifier: Apache-2.0
//
// The shape of a Llama, with the fields of Hugging Face's LlamaConfig, and its config.json.
//
//   nn::LlamaConfig config = {.vocab_size = 256, .hidden_size = 128, .intermediate_size = 384,
//                             .num_hidden_layers = 4, .num_attention_heads = 4};
//   auto config = nn::LlamaConfig::FromFile("checkpoint/config.json");
#ifndef SHARDMESH_NN_LLAMA_CONFIG_H_
#define SHARDMESH_NN_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::nn {

/// Rotary position embedding.
struct RopeConfig {
  enum class Type {
    kDefault,
    kLlama3,  ///< Long wavelengths are stretched, as of Llama 3.1.
  };
  Type type = Type::kDefault;
  double theta = 10000;
  // Of kLlama3 alone.
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

  /// Errors: kInvalidArgument naming the field, its value and what was expected.
  absl::Status Validate() const;

  /// From the text of a config.json, which may be anything; fields that do not matter to the model
  /// are passed over. Both `rope_parameters` and the older `rope_theta` and `rope_scaling` are
  /// read.
  /// Errors: kInvalidArgument naming `source` and the field, for text that is not JSON, missing or
  /// mistyped fields, or values that Validate() refuses; kUnimplemented for what is a Llama but not
  /// one that exists here (another rotary type, another activation, quantised weights).
  static absl::StatusOr<LlamaConfig> FromJson(std::string_view text,
                                              std::string_view source = "config.json");
  /// Errors: kNotFound if the file cannot be read; else as FromJson.
  static absl::StatusOr<LlamaConfig> FromFile(const std::string& path);

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LLAMA_CONFIG_H_
