// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2_config.h"

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/models/config/config_checks.h"
#include "shardmesh/models/config/config_object.h"

namespace shardmesh::models {
namespace {

/// No sum overflows: extents are below 2^31 and layers are few.
absl::Status CheckNumElements(const Gpt2Config& config) {
  const auto width = static_cast<ElementCount>(config.n_embd);
  const auto inner = static_cast<ElementCount>(config.InnerSize());
  const ElementCount block = 4 * width * width + 2 * width * inner + inner + 13 * width;
  const ElementCount elements =
      width * static_cast<ElementCount>(config.vocab_size + config.n_positions) +
      block * static_cast<ElementCount>(config.n_layer);
  if (IsCountable(elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has more than 2^50 elements: vocab_size ", config.vocab_size,
                   ", n_positions ", config.n_positions, ", n_embd ", config.n_embd, ", n_layer ",
                   config.n_layer, ", n_inner ", config.InnerSize()));
}

}  // namespace

absl::Status Gpt2Config::Validate() const {
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("vocab_size", vocab_size));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_positions", n_positions));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_embd", n_embd));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_layer", n_layer, kMaxLayers));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_head", n_head));
  SHARDMESH_RETURN_IF_ERROR(CheckExtent("n_inner", InnerSize()));
  if (n_embd % n_head != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_embd ", n_embd, " is not a multiple of n_head ", n_head));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckNumElements(*this));
  SHARDMESH_RETURN_IF_ERROR(CheckPositive("layer_norm_epsilon", layer_norm_epsilon));
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative("initializer_range", initializer_range));
  SHARDMESH_RETURN_IF_ERROR(CheckProbability("embd_pdrop", embd_pdrop));
  SHARDMESH_RETURN_IF_ERROR(CheckProbability("resid_pdrop", resid_pdrop));
  return CheckProbability("attn_pdrop", attn_pdrop);
}

absl::StatusOr<Gpt2Config> Gpt2Config::FromJson(std::string_view text, std::string_view source) {
  SHARDMESH_ASSIGN_OR_RETURN(ConfigObject fields, ConfigObject::Parse(text, source));
  Gpt2Config config = {.embd_pdrop = 0.1, .resid_pdrop = 0.1, .attn_pdrop = 0.1};
  fields.Only("model_type", "gpt2");
  fields.Only("activation_function", "gelu_new");
  fields.Only("scale_attn_weights", true);
  fields.Only("scale_attn_by_inverse_layer_idx", false);
  fields.Only("reorder_and_upcast_attn", false);
  fields.Only("tie_word_embeddings", true);
  fields.PassCommonFields();
  for (const char* name : {"vocab_size", "n_embd", "n_layer", "n_head"}) fields.Require(name);
  fields.Read("vocab_size", config.vocab_size);
  fields.Read("n_positions", config.n_positions);
  std::optional<int64_t> n_ctx;  // The older name of n_positions.
  fields.Read("n_ctx", n_ctx);
  if (n_ctx && *n_ctx != config.n_positions) {
    fields.Fail(absl::StrCat("n_ctx is ", *n_ctx, ", but n_positions is ", config.n_positions));
  }
  fields.Read("n_embd", config.n_embd);
  fields.Read("n_layer", config.n_layer);
  fields.Read("n_head", config.n_head);
  fields.Read("n_inner", config.n_inner);
  fields.Read("layer_norm_epsilon", config.layer_norm_epsilon);
  fields.Read("initializer_range", config.initializer_range);
  fields.Read("embd_pdrop", config.embd_pdrop);
  fields.Read("resid_pdrop", config.resid_pdrop);
  fields.Read("attn_pdrop", config.attn_pdrop);
  SHARDMESH_RETURN_IF_ERROR(fields.status());
  if (const absl::Status status = config.Validate(); !status.ok()) {
    fields.Fail(std::string(status.message()));
  }
  SHARDMESH_RETURN_IF_ERROR(fields.Finish("a GPT-2"));
  return config;
}

absl::StatusOr<Gpt2Config> Gpt2Config::FromFile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  return FromJson(text, path);
}

}  // namespace shardmesh::models
