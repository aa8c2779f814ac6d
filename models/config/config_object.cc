// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/config/config_object.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/regular_file.h"
#include "shardmesh/checkpoint/internal/strict_json.h"
#include "shardmesh/models/config/config_checks.h"

namespace shardmesh::models {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{16} << 20;

// Fields of Hugging Face's configurations that do not change the logits of a causal language model
// or how it is trained here. docs/checkpoint_format.md has the same list.
constexpr const char* kHarmless[] = {
    // Where it comes from, and the dtype of its file: that of the model is given to its
    // constructor.
    "_commit_hash", "_name_or_path", "architectures", "dtype", "name_or_path", "torch_dtype",
    "transformers_version",
    // How the same numbers are computed, and which of them are returned.
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "chunk_size_feed_forward", "gradient_checkpointing", "output_attentions",
    "output_hidden_states", "return_dict", "tf_legacy_loss", "tie_last_hidden_states",
    "torchscript", "use_bfloat16", "use_cache",
    // Tokens. (The embedding of pad_token_id is trained like all others.)
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "prefix",
    "sep_token_id", "tokenizer_class",
    // Heads for other tasks.
    "classifier_dropout", "finetuning_task", "id2label", "is_decoder", "label2id", "num_labels",
    "problem_type", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params",
    // Generation.
    "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids",
    "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "target_lookbehind", "temperature", "top_k",
    "top_p", "typical_p"};

std::string ExpectedType(const json& value) {
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "true or false";
  return value.is_number() ? "a number" : absl::StrCat("an ", value.type_name());
}

/// Accepts every value. Strict parsing comes first because printing, comparing and destroying a
/// json recurse as deep as the text nests, and of two equal keys a json keeps the last.
class AnyJson final : public internal::JsonVisitor {
 public:
  absl::Status OnValue(Path, const internal::JsonValue&) override { return absl::OkStatus(); }
  absl::Status OnEnd(Path) override { return absl::OkStatus(); }
};

}  // namespace

absl::StatusOr<ConfigObject> ConfigObject::Parse(std::string_view text, std::string_view source) {
  const std::string where = Quoted(source);
  if (text.size() > static_cast<size_t>(kMaxBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": longer than 16 MiB"));
  }
  AnyJson any;
  if (absl::Status status = internal::ParseStrictJson(text, any); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
  }
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not a JSON object"));
  }
  return ConfigObject(std::move(object), where);
}

const json* ConfigObject::Find(const char* name) {
  known_.emplace(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

ConfigObject ConfigObject::Child(const char* name) {
  const json* value = Find(name);
  if (value != nullptr && !value->is_object()) Refuse(name, *value, "an object");
  const bool is_object = value != nullptr && value->is_object();
  return ConfigObject(is_object ? *value : json::object(), absl::StrCat(where_, ": ", name));
}

void ConfigObject::Require(const char* name) {
  if (Find(name) == nullptr) Fail(absl::StrCat(name, " is missing"));
}

void ConfigObject::Read(const char* name, int64_t& out) {
  const json* value = Find(name);
  if (value == nullptr) return;
  const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= uint64_t{kMaxExtent}
                                                : value->is_number_integer();
  if (!fits) return Refuse(name, *value, absl::StrCat("an integer up to ", kMaxExtent));
  out = value->get<int64_t>();
}

void ConfigObject::Read(const char* name, double& out) {
  const json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return Refuse(name, *value, "a number");
  out = value->get<double>();
}

void ConfigObject::Read(const char* name, bool& out) {
  const json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return Refuse(name, *value, "true or false");
  out = value->get<bool>();
}

void ConfigObject::Read(const char* name, std::string& out) {
  const json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return Refuse(name, *value, "a string");
  out = value->get<std::string>();
}

void ConfigObject::Only(const char* name, const json& value) {
  known_.emplace(name);
  const auto found = object_.find(name);
  if (found == object_.end() || *found == value) return;
  if (found->is_null() && value != true) return;
  if (!found->is_null() && std::string_view(found->type_name()) != value.type_name()) {
    return Refuse(name, *found, ExpectedType(value));
  }
  Fail(absl::StatusCode::kUnimplemented,
       absl::StrCat(name, " is ", Shown(*found), "; only ", Shown(value), " is supported"));
}

void ConfigObject::PassCommonFields() {
  known_.insert(std::begin(kHarmless), std::end(kHarmless));
  Only("is_causal", true);
  for (const char* name : {"add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"}) {
    Only(name, false);
  }
  Only("pretraining_tp", 1);  // Others split products, which rounds differently.
  Only("pruned_heads", json::object());
  if (Find("quantization_config") != nullptr) {
    Fail(absl::StatusCode::kUnimplemented, "quantization_config: weights must be plain");
  }
}

std::set<std::string> ConfigObject::HarmlessFields() {
  return {std::begin(kHarmless), std::end(kHarmless)};
}

void ConfigObject::Fail(absl::StatusCode code, const std::string& what) {
  if (status_.ok()) status_ = absl::Status(code, absl::StrCat(where_, ": ", what));
}

void ConfigObject::Refuse(const char* name, const json& value, const std::string& expected) {
  Fail(absl::StrCat(name, " is ", Shown(value), ", expected ", expected));
}

absl::Status ConfigObject::Finish(const std::string& model) {
  constexpr int kMaxShown = 4;
  std::string fields;
  int unknown = 0;
  for (const auto& [name, value] : object_.items()) {
    if (value.is_null() || known_.contains(name)) continue;
    if (++unknown > kMaxShown) continue;
    absl::StrAppend(&fields, unknown == 1 ? "" : ", ", Quoted(name, /*max_chars=*/100), " is ",
                    Shown(value));
  }
  if (unknown > kMaxShown) absl::StrAppend(&fields, " and ", unknown - kMaxShown, " more");
  if (unknown > 0) {
    Fail(absl::StrCat("unknown fields: ", fields, "; ", model, " has none of these, and they may ",
                      "change what is computed (remove them if they do not)"));
  }
  return status_;
}

std::string ConfigObject::Shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  const auto annotated = [&path](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(Quoted(path), ": ", status.message()));
  };
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return annotated(file.status());
  absl::StatusOr<std::string> text = file->ReadAll(kMaxBytes);
  if (!text.ok()) return annotated(text.status());
  return text;
}

}  // namespace shardmesh::models
