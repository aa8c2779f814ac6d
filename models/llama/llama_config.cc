// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/models/config/config_checks.h"
#include "shardmesh/models/config/config_object.h"

namespace shardmesh::models {
namespace {

using nlohmann::json;

/// Which of two values holds depends on who reads them, and on its version.
template <typename T>
void RequireEqual(ConfigObject& fields, const std::string& name, const std::optional<T>& value,
                  const std::string& other_name, const std::optional<T>& other) {
  if (!value || !other || *value == *other) return;
  fields.Fail(absl::StrCat(name, " is ", ConfigObject::Shown(*value), ", but ", other_name, " is ",
                           ConfigObject::Shown(*other)));
}

absl::StatusOr<RopeConfig> ReadRope(ConfigObject& top) {
  std::optional<double> theta, outer_theta;
  std::optional<int64_t> positions, outer_positions;
  std::optional<std::string> type, older_type;
  top.Read("rope_theta", outer_theta);
  top.Read("original_max_position_embeddings", outer_positions);
  top.Only("partial_rotary_factor", 1);
  const json* parameters = top.Find("rope_parameters");
  const json* scaling = top.Find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    top.Fail("rope_parameters and rope_scaling are both present and differ");
  }
  ConfigObject fields = top.Child(parameters != nullptr ? "rope_parameters" : "rope_scaling");
  SHARDMESH_RETURN_IF_ERROR(top.status());

  fields.Read("rope_type", type);
  fields.Read("type", older_type);
  fields.Read("rope_theta", theta);
  fields.Only("partial_rotary_factor", 1);
  RequireEqual(fields, "rope_type", type, "type", older_type);
  RequireEqual(fields, "rope_theta", theta, "the one outside", outer_theta);
  SHARDMESH_RETURN_IF_ERROR(fields.status());
  const std::string kind = type ? *type : older_type.value_or("default");

  RopeConfig rope;
  rope.theta = theta ? *theta : outer_theta.value_or(rope.theta);
  if (kind == "llama3") {
    rope.type = RopeConfig::Type::kLlama3;
    for (const char* field : {"factor", "low_freq_factor", "high_freq_factor"}) {
      fields.Require(field);
    }
    fields.Read("factor", rope.factor);
    fields.Read("low_freq_factor", rope.low_freq_factor);
    fields.Read("high_freq_factor", rope.high_freq_factor);
    fields.Read("original_max_position_embeddings", positions);
    RequireEqual(fields, "original_max_position_embeddings", positions, "the one outside",
                 outer_positions);
    if (!positions && !outer_positions) fields.Require("original_max_position_embeddings");
    rope.original_max_position_embeddings = positions ? *positions : outer_positions.value_or(0);
  } else if (kind != "default") {
    fields.Fail(absl::StatusCode::kUnimplemented,
                absl::StrCat("rope_type is ", ConfigObject::Shown(kind),
                             "; only \"default\" and \"llama3\" are supported"));
  }
  SHARDMESH_RETURN_IF_ERROR(fields.Finish(absl::StrCat("the rope_type \"", kind, "\"")));
  return rope;
}

/// No sum overflows: extents are below 2^31, heads times head_dim too, and layers are few.
absl::Status CheckNumElements(const LlamaConfig& config) {
  using Count = ElementCount;
  const auto hidden = static_cast<Count>(config.hidden_size);
  const auto head = static_cast<Count>(config.HeadDim());
  const Count queries = head * static_cast<Count>(config.num_attention_heads);
  const Count keys = head * static_cast<Count>(config.KeyValueHeads());
  const Count mlp = 3 * hidden * static_cast<Count>(config.intermediate_size);
  const Count block = 2 * hidden * (queries + keys) + mlp;
  const Count elements = 2 * hidden * static_cast<Count>(config.vocab_size) +
                         block * static_cast<Count>(config.num_hidden_layers);
  if (IsCountable(elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model has more than 2^50 elements: vocab_size ", config.vocab_size, ", hidden_size ",
      config.hidden_size, ", intermediate_size ", config.intermediate_size, ", num_hidden_layers ",
      config.num_hidden_layers, ", num_attention_heads ", config.num_attention_heads, ", head_dim ",
      config.HeadDim()));
}

absl::Status ValidateRope(const RopeConfig& rope) {
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("rope_theta", rope.theta));
  if (rope.type == RopeConfig::Type::kDefault) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("factor", rope.factor));
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("low_freq_factor", rope.low_freq_factor));
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("high_freq_factor", rope.high_freq_factor));
  if (rope.low_freq_factor >= rope.high_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat("low_freq_factor ", rope.low_freq_factor,
                                                   " is not below high_freq_factor ",
                                                   rope.high_freq_factor));
  }
  return CheckExtent("original_max_position_embeddings", rope.original_max_position_embeddings);
}

}  // namespace

absl::Status LlamaConfig::Validate() const {
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("vocab_size", vocab_size));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("hidden_size", hidden_size));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("intermediate_size", intermediate_size));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("num_hidden_layers", num_hidden_layers, kMaxLayers));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("num_attention_heads", num_attention_heads));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("num_key_value_heads", KeyValueHeads()));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("max_position_embeddings", max_position_embeddings));
  if (num_attention_heads % KeyValueHeads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_attention_heads ", num_attention_heads,
                                                   " is not a multiple of num_key_value_heads ",
                                                   KeyValueHeads()));
  }
  if (!head_dim.has_value() && hidden_size % num_attention_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden_size ", hidden_size, " is not a multiple of num_attention_heads ",
                     num_attention_heads, ", and head_dim is absent"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("head_dim", HeadDim(), kMaxExtent / num_attention_heads));
  if (HeadDim() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", HeadDim(), ", expected an even number"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckNumElements(*this));
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("rms_norm_eps", rms_norm_eps));
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative("initializer_range", initializer_range));
  return ValidateRope(rope);
}

absl::StatusOr<LlamaConfig> LlamaConfig::FromJson(std::string_view text, std::string_view source) {
  SHARDMESH_ASSIGN_OR_RETURN(ConfigObject fields, ConfigObject::Parse(text, source));
  LlamaConfig config;
  fields.Only("model_type", "llama");
  fields.Only("hidden_act", "silu");
  fields.Only("attention_dropout", 0);
  fields.Only("rope_interleaved", false);
  fields.PassCommonFields();
  for (const char* name : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads"}) {
    fields.Require(name);
  }
  fields.Read("vocab_size", config.vocab_size);
  fields.Read("hidden_size", config.hidden_size);
  fields.Read("intermediate_size", config.intermediate_size);
  fields.Read("num_hidden_layers", config.num_hidden_layers);
  fields.Read("num_attention_heads", config.num_attention_heads);
  fields.Read("num_key_value_heads", config.num_key_value_heads);
  fields.Read("head_dim", config.head_dim);
  fields.Read("max_position_embeddings", config.max_position_embeddings);
  fields.Read("rms_norm_eps", config.rms_norm_eps);
  fields.Read("initializer_range", config.initializer_range);
  fields.Read("attention_bias", config.attention_bias);
  fields.Read("mlp_bias", config.mlp_bias);
  fields.Read("tie_word_embeddings", config.tie_word_embeddings);
  SHARDMESH_RETURN_IF_ERROR(fields.status());
  SHARDMESH_ASSIGN_OR_RETURN(config.rope, ReadRope(fields));
  if (const absl::Status status = config.Validate(); !status.ok()) {
    fields.Fail(std::string(status.message()));
  }
  SHARDMESH_RETURN_IF_ERROR(fields.Finish("a Llama"));
  return config;
}

absl::StatusOr<LlamaConfig> LlamaConfig::FromFile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  return FromJson(text, path);
}

}  // namespace shardmesh::models
