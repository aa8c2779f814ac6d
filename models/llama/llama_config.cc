// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_config.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/strict_json.h"

namespace shardmesh::models {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxElements = int64_t{1} << 50;
constexpr int64_t kMaxBytes = int64_t{16} << 20;

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

/// Accepts every value. Strict parsing comes first because printing, comparing and destroying a
/// json recurse as deep as the text nests, and of two equal keys a json keeps the last.
class AnyJson final : public internal::JsonVisitor {
 public:
  absl::Status OnValue(Path, const internal::JsonValue&) override { return absl::OkStatus(); }
  absl::Status OnEnd(Path) override { return absl::OkStatus(); }
};

/// Reads the fields of one JSON object by name and type, and keeps the first error.
class Fields {
 public:
  Fields(const json& object, std::string source) : object_(object), source_(std::move(source)) {}

  const absl::Status& status() const { return status_; }

  /// The value, or null if the field is absent or null.
  const json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void Require(const char* name) {
    if (Find(name) == nullptr) Fail(absl::StrCat(name, " is missing"));
  }
  /// Reads leave `out` unchanged if the field is absent or null.
  void Read(const char* name, int64_t& out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= uint64_t{kMaxExtent}
                                                  : value->is_number_integer();
    if (!fits) return Refuse(name, *value, absl::StrCat("an integer up to ", kMaxExtent));
    out = value->get<int64_t>();
  }
  void Read(const char* name, std::optional<int64_t>& out) {
    if (Find(name) == nullptr) return;
    int64_t value = 0;
    Read(name, value);
    out = value;
  }
  void Read(const char* name, double& out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_number()) return Refuse(name, *value, "a number");
    out = value->get<double>();
  }
  void Read(const char* name, bool& out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Refuse(name, *value, "true or false");
    out = value->get<bool>();
  }
  void Read(const char* name, std::string& out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Refuse(name, *value, "a string");
    out = value->get<std::string>();
  }

  void Fail(const std::string& what) { Fail(absl::StatusCode::kInvalidArgument, what); }
  void Refuse(const char* name, const json& value, const std::string& expected) {
    Fail(absl::StrCat(name, " is ", Shown(value), ", expected ", expected));
  }
  /// The field must be absent, null or equal to `text`.
  void RequireText(const char* name, std::string_view text) {
    std::string value(text);
    Read(name, value);
    if (value == text) return;
    Fail(absl::StatusCode::kUnimplemented, absl::StrCat(name, " is ", Shown(value), "; only \"",
                                                        std::string(text), "\" is supported"));
  }
  void Fail(absl::StatusCode code, const std::string& what) {
    if (status_.ok()) status_ = absl::Status(code, absl::StrCat(source_, ": ", what));
  }

 private:
  const json& object_;
  std::string source_;
  absl::Status status_;
};

absl::StatusOr<RopeConfig> ReadRope(const json& object, const std::string& source) {
  RopeConfig rope;
  Fields top(object, source);
  top.Read("rope_theta", rope.theta);
  double rotated = 1;
  top.Read("partial_rotary_factor", rotated);
  const json* parameters = top.Find("rope_parameters");
  const json* scaling = top.Find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    top.Fail("rope_parameters and rope_scaling are both present and differ");
  }
  const char* name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (parameters == nullptr) parameters = scaling;
  if (parameters != nullptr && !parameters->is_object()) {
    top.Refuse(name, *parameters, "an object");
  }
  SHARDMESH_RETURN_IF_ERROR(top.status());
  const json none = json::object();
  Fields fields(parameters == nullptr ? none : *parameters, absl::StrCat(source, ": ", name));
  std::string type = "default";
  fields.Read("type", type);  // The older name of rope_type.
  fields.Read("rope_type", type);
  fields.Read("rope_theta", rope.theta);
  fields.Read("partial_rotary_factor", rotated);
  if (rotated != 1) {
    fields.Fail(absl::StatusCode::kUnimplemented, "partial_rotary_factor other than 1");
  }
  if (type == "llama3") {
    rope.type = RopeConfig::Type::kLlama3;
    for (const char* field :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      fields.Require(field);
    }
    fields.Read("factor", rope.factor);
    fields.Read("low_freq_factor", rope.low_freq_factor);
    fields.Read("high_freq_factor", rope.high_freq_factor);
    fields.Read("original_max_position_embeddings", rope.original_max_position_embeddings);
  } else if (type != "default") {
    fields.Fail(absl::StatusCode::kUnimplemented,
                absl::StrCat("rope_type is ", Shown(type),
                             "; only \"default\" and \"llama3\" are supported"));
  }
  SHARDMESH_RETURN_IF_ERROR(fields.status());
  return rope;
}

absl::Status CheckExtent(const char* name, int64_t value, int64_t limit = kMaxExtent) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", expected 1 to ", limit));
}

absl::Status CheckPositive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", expected a positive number"));
}

/// No sum overflows: extents are below 2^31, heads times head_dim too, and layers are few.
absl::Status CheckNumElements(const LlamaConfig& config) {
  using Count = unsigned __int128;
  const auto hidden = static_cast<Count>(config.hidden_size);
  const auto head = static_cast<Count>(config.HeadDim());
  const Count queries = head * static_cast<Count>(config.num_attention_heads);
  const Count keys = head * static_cast<Count>(config.KeyValueHeads());
  const Count mlp = 3 * hidden * static_cast<Count>(config.intermediate_size);
  const Count block = 2 * hidden * (queries + keys) + mlp;
  const Count elements = 2 * hidden * static_cast<Count>(config.vocab_size) +
                         block * static_cast<Count>(config.num_hidden_layers);
  if (elements <= static_cast<Count>(kMaxElements)) return absl::OkStatus();
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
  if (!(initializer_range >= 0) || !std::isfinite(initializer_range)) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer_range is ", initializer_range, ", expected 0 or more"));
  }
  return ValidateRope(rope);
}

absl::StatusOr<LlamaConfig> LlamaConfig::FromJson(std::string_view text, std::string_view source) {
  const std::string from = Quoted(source);
  if (text.size() > static_cast<size_t>(kMaxBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": longer than 16 MiB"));
  }
  AnyJson any;
  if (absl::Status status = internal::ParseStrictJson(text, any); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(from, ": ", status.message()));
  }
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": not a JSON object"));
  }
  LlamaConfig config;
  Fields fields(object, from);
  fields.RequireText("model_type", "llama");
  fields.RequireText("hidden_act", "silu");
  if (fields.Find("quantization_config") != nullptr) {
    fields.Fail(absl::StatusCode::kUnimplemented, "quantization_config: weights must be plain");
  }
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
  SHARDMESH_ASSIGN_OR_RETURN(config.rope, ReadRope(object, from));
  if (absl::Status status = config.Validate(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(from, ": ", status.message()));
  }
  return config;
}

absl::StatusOr<LlamaConfig> LlamaConfig::FromFile(const std::string& path) {
  const auto annotated = [&path](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(Quoted(path), ": ", status.message()));
  };
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return annotated(file.status());
  const absl::StatusOr<std::string> text = file->ReadAll(kMaxBytes);
  if (!text.ok()) return annotated(text.status());
  return FromJson(*text, path);
}

}  // namespace shardmesh::models
