// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace shardmesh::models {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

/// The JSON of a small configuration, with `more` fields.
std::string Json(const std::string& more = "") {
  return absl::StrCat(R"({"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3)",
                      more.empty() ? "" : ", ", more, "}");
}

TEST(Gpt2Config, ReadsTheGoldenConfigs) {
  for (const std::string golden : {"plain", "freezing", "adapters"}) {
    const auto config =
        Gpt2Config::FromFile("tests/testdata/golden/gpt2/" + golden + "/config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(*config, (Gpt2Config{.vocab_size = 61,
                                   .n_positions = 20,
                                   .n_embd = 24,
                                   .n_layer = 2,
                                   .n_head = 3,
                                   .n_inner = 70,
                                   .embd_pdrop = 0.1,
                                   .resid_pdrop = 0.1,
                                   .attn_pdrop = 0.1}));
  }
}

TEST(Gpt2Config, HasTheDefaultsOfHuggingFace) {
  const auto config = Gpt2Config::FromJson(Json());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->n_positions, 1024);
  EXPECT_EQ(config->InnerSize(), 96);
  EXPECT_EQ(config->layer_norm_epsilon, 1e-5);
  EXPECT_EQ(config->initializer_range, 0.02);
  EXPECT_EQ(config->embd_pdrop, 0.1);
  EXPECT_EQ(config->resid_pdrop, 0.1);
  EXPECT_EQ(config->attn_pdrop, 0.1);
}

TEST(Gpt2Config, ReadsEachField) {
  const auto config = Gpt2Config::FromJson(
      Json(R"("n_positions": 17, "n_ctx": 17, "n_inner": 70, "layer_norm_epsilon": 1e-6,
              "initializer_range": 0, "embd_pdrop": 0.25, "resid_pdrop": 0, "attn_pdrop": 0.5)"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, (Gpt2Config{.vocab_size = 61,
                                 .n_positions = 17,
                                 .n_embd = 24,
                                 .n_layer = 2,
                                 .n_head = 3,
                                 .n_inner = 70,
                                 .layer_norm_epsilon = 1e-6,
                                 .initializer_range = 0,
                                 .embd_pdrop = 0.25,
                                 .resid_pdrop = 0,
                                 .attn_pdrop = 0.5}));
}

// What GPT2Config() of transformers 5.24 writes, with and without its defaults, and the file of the
// published model.
TEST(Gpt2Config, ReadsWhatHuggingFaceWrites) {
  const std::string written[] = {
      R"({"activation_function": "gelu_new", "add_cross_attention": false, "attn_pdrop": 0.1,
          "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
          "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
          "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 1024,
          "pad_token_id": null, "reorder_and_upcast_attn": false, "resid_pdrop": 0.1,
          "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
          "summary_activation": null, "summary_first_dropout": 0.1,
          "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
          "tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
          "vocab_size": 50257})",
      R"({"_name_or_path": "", "activation_function": "gelu_new", "add_cross_attention": false,
          "architectures": null, "attn_pdrop": 0.1, "bos_token_id": 50256,
          "chunk_size_feed_forward": 0, "dtype": null, "embd_pdrop": 0.1, "eos_token_id": 50256,
          "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02,
          "is_encoder_decoder": false, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
          "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 768, "n_head": 12,
          "n_inner": null, "n_layer": 12, "n_positions": 1024, "output_attentions": false,
          "output_hidden_states": false, "pad_token_id": null, "problem_type": null,
          "reorder_and_upcast_attn": false, "resid_pdrop": 0.1, "return_dict": true,
          "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
          "summary_activation": null, "summary_first_dropout": 0.1,
          "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
          "tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
          "vocab_size": 50257})",
      R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
          "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
          "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
          "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
          "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
          "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
          "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
          "vocab_size": 50257})"};
  for (const std::string& text : written) {
    const auto config = Gpt2Config::FromJson(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(*config, (Gpt2Config{.vocab_size = 50257,
                                   .n_embd = 768,
                                   .n_layer = 12,
                                   .n_head = 12,
                                   .embd_pdrop = 0.1,
                                   .resid_pdrop = 0.1,
                                   .attn_pdrop = 0.1}));
  }
}

TEST(Gpt2Config, RefusesWhatIsNotAGpt2ThatExistsHere) {
  const struct {
    std::string more;
    Code code;
    std::string message;
  } cases[] = {
      {R"("model_type": "gptj")", Code::kUnimplemented, "model_type is \"gptj\"; only \"gpt2\""},
      {R"("activation_function": "gelu")", Code::kUnimplemented,
       "activation_function is \"gelu\"; only \"gelu_new\" is supported"},
      {R"("scale_attn_weights": false)", Code::kUnimplemented,
       "scale_attn_weights is false; only true is supported"},
      {R"("scale_attn_weights": null)", Code::kUnimplemented, "scale_attn_weights is null; only"},
      {R"("scale_attn_by_inverse_layer_idx": true)", Code::kUnimplemented,
       "scale_attn_by_inverse_layer_idx is true; only false is supported"},
      {R"("reorder_and_upcast_attn": true)", Code::kUnimplemented, "reorder_and_upcast_attn"},
      {R"("tie_word_embeddings": false)", Code::kUnimplemented,
       "tie_word_embeddings is false; only true is supported"},
      {R"("add_cross_attention": true)", Code::kUnimplemented, "add_cross_attention is true"},
      {R"("is_causal": false)", Code::kUnimplemented, "is_causal is false; only true"},
      {R"("quantization_config": {})", Code::kUnimplemented, "quantization_config"},
      {R"("n_ctx": 512)", Code::kInvalidArgument, "n_ctx is 512, but n_positions is 1024"},
      {R"("hidden_size": 48)", Code::kInvalidArgument,
       "unknown fields: 'hidden_size' is 48; a GPT-2 has none of these"},
      {R"("n_iner": 70)", Code::kInvalidArgument, "'n_iner' is 70"},
      {R"("n_inner": 0)", Code::kInvalidArgument, "n_inner is 0"},
      {R"("n_inner": "70")", Code::kInvalidArgument, "n_inner is \"70\", expected an integer"},
      {R"("layer_norm_epsilon": 0)", Code::kInvalidArgument, "layer_norm_epsilon is 0"},
      {R"("layer_norm_epsilon": Infinity)", Code::kInvalidArgument,
       "after the key 'layer_norm_epsilon': Infinity, expected a finite number"},
      {R"("attn_pdrop": 1.5)", Code::kInvalidArgument, "attn_pdrop is 1.5, expected 0 to 1"},
      {R"("resid_pdrop": true)", Code::kInvalidArgument, "resid_pdrop is true"},
      {R"("vocab_size": 62)", Code::kInvalidArgument, "'vocab_size' appears twice"},
  };
  for (const auto& [more, code, message] : cases) {
    const auto config = Gpt2Config::FromJson(Json(more), "some/config.json");
    EXPECT_EQ(config.status().code(), code) << more << ": " << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message)) << more;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("'some/config.json': ")) << more;
  }
  for (const std::string field : {"vocab_size", "n_embd", "n_layer", "n_head"}) {
    std::string text = Json();
    text.replace(text.find(field), field.size(), "other");
    EXPECT_THAT(std::string(Gpt2Config::FromJson(text).status().message()),
                HasSubstr(field + " is missing"));
  }
  EXPECT_THAT(std::string(Gpt2Config::FromFile("no/where.json").status().message()),
              HasSubstr("'no/where.json': "));
}

// Each extent was accepted, and products of them overflowed.
TEST(Gpt2Config, RefusesMoreElementsThanSizesCanCount) {
  Gpt2Config config = *Gpt2Config::FromJson(Json());
  config.vocab_size = config.n_embd = 2147483646;
  config.n_inner = 1;
  EXPECT_THAT(std::string(config.Validate().message()),
              HasSubstr("more than 2^50 elements: vocab_size 2147483646, n_positions 1024"));
  config = *Gpt2Config::FromJson(Json());
  config.n_layer = 10001;
  EXPECT_THAT(std::string(config.Validate().message()),
              HasSubstr("n_layer is 10001, expected 1 to 10000"));
}

}  // namespace
}  // namespace shardmesh::models
