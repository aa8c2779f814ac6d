// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_config_json.h"

#include "nlohmann/json.hpp"

namespace shardmesh::models {

std::string ToJson(const LlamaConfig& config) {
  nlohmann::ordered_json rope = {{"rope_type", "default"}, {"rope_theta", config.rope.theta}};
  if (config.rope.type == RopeConfig::Type::kLlama3) {
    rope["rope_type"] = "llama3";
    rope["factor"] = config.rope.factor;
    rope["low_freq_factor"] = config.rope.low_freq_factor;
    rope["high_freq_factor"] = config.rope.high_freq_factor;
    rope["original_max_position_embeddings"] = config.rope.original_max_position_embeddings;
  }
  const nlohmann::ordered_json json = {{"architectures", {"LlamaForCausalLM"}},
                                       {"model_type", "llama"},
                                       {"vocab_size", config.vocab_size},
                                       {"hidden_size", config.hidden_size},
                                       {"intermediate_size", config.intermediate_size},
                                       {"num_hidden_layers", config.num_hidden_layers},
                                       {"num_attention_heads", config.num_attention_heads},
                                       {"num_key_value_heads", config.KeyValueHeads()},
                                       {"head_dim", config.HeadDim()},
                                       {"hidden_act", "silu"},
                                       {"max_position_embeddings", config.max_position_embeddings},
                                       {"rms_norm_eps", config.rms_norm_eps},
                                       {"initializer_range", config.initializer_range},
                                       {"attention_bias", config.attention_bias},
                                       {"mlp_bias", config.mlp_bias},
                                       {"tie_word_embeddings", config.tie_word_embeddings},
                                       {"rope_parameters", rope}};
  return json.dump(2) + "\n";
}

}  // namespace shardmesh::models
