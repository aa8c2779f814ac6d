// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace shardmesh::models {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// The fields that must be there, and `more`.
std::string Json(const std::string& more = "") {
  return absl::StrCat(R"({"vocab_size": 61, "hidden_size": 32, "intermediate_size": 88,
                          "num_hidden_layers": 2, "num_attention_heads": 4)",
                      more.empty() ? "" : ", ", more, "}");
}

TEST(LlamaConfig, ReadsTheGoldenConfigs) {
  const std::string folder = "tests/testdata/golden/llama/";
  const auto plain = LlamaConfig::FromFile(folder + "plain/config.json");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(*plain, (LlamaConfig{.vocab_size = 61,
                                 .hidden_size = 32,
                                 .intermediate_size = 88,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 4,
                                 .num_key_value_heads = 4,
                                 .head_dim = 8,
                                 .max_position_embeddings = 64}));
  const auto tied = LlamaConfig::FromFile(folder + "gqa_tied/config.json");
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_TRUE(tied->tie_word_embeddings);
  EXPECT_EQ(tied->KeyValueHeads(), 2);
  EXPECT_EQ(tied->rms_norm_eps, 1e-5);
  const auto scaled = LlamaConfig::FromFile(folder + "llama3_rope_bias/config.json");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_TRUE(scaled->attention_bias);
  EXPECT_TRUE(scaled->mlp_bias);
  EXPECT_EQ(scaled->HeadDim(), 12);
  EXPECT_EQ(scaled->rope, (RopeConfig{.type = RopeConfig::Type::kLlama3,
                                      .theta = 500000,
                                      .factor = 8,
                                      .low_freq_factor = 1,
                                      .high_freq_factor = 4,
                                      .original_max_position_embeddings = 8}));
}

TEST(LlamaConfig, HasTheDefaultsOfHuggingFace) {
  const auto config = LlamaConfig::FromJson(Json());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->KeyValueHeads(), 4);
  EXPECT_EQ(config->HeadDim(), 8);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->initializer_range, 0.02);
  EXPECT_EQ(config->max_position_embeddings, 2048);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_FALSE(config->mlp_bias);
  EXPECT_EQ(config->rope, RopeConfig());
}

TEST(LlamaConfig, ReadsBothSpellingsOfTheRotaryParameters) {
  const RopeConfig plain = {.theta = 5e5};
  const RopeConfig scaled = {.type = RopeConfig::Type::kLlama3,
                             .theta = 5e5,
                             .factor = 32,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4,
                             .original_max_position_embeddings = 8192};
  const std::string llama3 = R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4,
                                "original_max_position_embeddings": 8192)";
  const struct {
    std::string text;
    RopeConfig rope;
  } cases[] = {
      {R"("rope_theta": 500000)", plain},
      {R"("rope_theta": 5e5, "rope_scaling": null)", plain},
      {R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000.0})", plain},
      {R"("rope_parameters": {"rope_type": "default"}, "rope_theta": 500000.0)", plain},
      {R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", )" + llama3 + "}",
       scaled},
      {R"("rope_theta": 500000.0, "rope_scaling": {"type": "llama3", )" + llama3 + "}", scaled},
      {R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, )" + llama3 + "}",
       scaled},
      {R"("rope_theta": 500000.0, "original_max_position_embeddings": 4096)", plain},
      {R"("rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000.0, "factor": null})", plain},
      {R"("rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_type": "default"})", plain},
      {R"("rope_theta": 500000.0, "original_max_position_embeddings": 8192,
          "rope_scaling": {"rope_type": "llama3", )" +
           llama3 + "}",
       scaled},
      {R"("rope_theta": 500000.0, "original_max_position_embeddings": 8192,
          "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
          "high_freq_factor": 4, "partial_rotary_factor": 1.0})",
       scaled},
  };
  for (const auto& [text, rope] : cases) {
    const auto config = LlamaConfig::FromJson(Json(text));
    ASSERT_TRUE(config.ok()) << text << ": " << config.status();
    EXPECT_EQ(config->rope, rope) << text;
  }
}

TEST(LlamaConfig, RefusesWhatIsNotALlamaThatExistsHere) {
  const struct {
    std::string more;
    Code code;
    std::string message;
  } cases[] = {
      {R"("model_type": "mistral")", Code::kUnimplemented, "model_type is \"mistral\""},
      {R"("model_type": 3)", Code::kInvalidArgument, "model_type is 3, expected a string"},
      {R"("hidden_act": "gelu")", Code::kUnimplemented, "hidden_act is \"gelu\""},
      {R"("quantization_config": {})", Code::kUnimplemented, "quantization_config"},
      {R"("rope_scaling": {"type": "linear", "factor": 2.0})", Code::kUnimplemented,
       "rope_type is \"linear\""},
      {R"("rope_parameters": {"rope_type": "yarn"})", Code::kUnimplemented,
       "rope_type is \"yarn\""},
      {R"("rope_parameters": [1])", Code::kInvalidArgument, "rope_parameters is [1]"},
      {R"("rope_parameters": {"rope_theta": -1.0})", Code::kInvalidArgument, "rope_theta is -1"},
      {R"("rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "llama3"})",
       Code::kInvalidArgument, "rope_parameters and rope_scaling"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})", Code::kInvalidArgument,
       "low_freq_factor is missing"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8})",
       Code::kInvalidArgument, "low_freq_factor 4 is not below high_freq_factor 4"},
      {R"("partial_rotary_factor": 0.5)", Code::kUnimplemented,
       "partial_rotary_factor is 0.5; only 1 is supported"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})", Code::kUnimplemented,
       "rope_parameters: partial_rotary_factor is 0.5; only 1 is supported"},
      // All that follows up to num_key_value_heads was read as if it were not there.
      {R"("is_causal": false)", Code::kUnimplemented, "is_causal is false; only true is supported"},
      {R"("is_causal": null)", Code::kUnimplemented, "is_causal is null; only true is supported"},
      {R"("is_causal": 1)", Code::kInvalidArgument, "is_causal is 1, expected true or false"},
      {R"("attention_dropout": 0.1)", Code::kUnimplemented,
       "attention_dropout is 0.1; only 0 is supported"},
      {R"("attention_dropout": "0")", Code::kInvalidArgument,
       "attention_dropout is \"0\", expected a number"},
      {R"("pretraining_tp": 2)", Code::kUnimplemented, "pretraining_tp is 2; only 1"},
      {R"("is_encoder_decoder": true)", Code::kUnimplemented, "is_encoder_decoder is true; only"},
      {R"("add_cross_attention": true)", Code::kUnimplemented, "add_cross_attention is true; only"},
      {R"("rope_interleaved": true)", Code::kUnimplemented, "rope_interleaved is true; only"},
      {R"("pruned_heads": {"0": [1]})", Code::kUnimplemented, "pruned_heads is {\"0\":[1]}; only"},
      {R"("type": "yarn")", Code::kInvalidArgument, "unknown fields: 'type' is \"yarn\"; a Llama"},
      {R"("num_key_value_head": 2)", Code::kInvalidArgument, "'num_key_value_head' is 2"},
      {R"("sliding_window": 4096)", Code::kInvalidArgument, "'sliding_window' is 4096"},
      {R"("per_layer_config": {"0": {"head_dim": 4}})", Code::kInvalidArgument,
       "'per_layer_config' is {\"0\":{\"head_dim\":4}}"},
      {R"("f": 6, "e": 5, "d": 4, "c": 3, "b": 2, "a": 1)", Code::kInvalidArgument,
       "unknown fields: 'a' is 1, 'b' is 2, 'c' is 3, 'd' is 4 and 2 more; a Llama has none of"},
      {R"("rope_parameters": {"rope_typ": "llama3", "rope_theta": 1e4})", Code::kInvalidArgument,
       "rope_parameters: unknown fields: 'rope_typ' is \"llama3\"; the rope_type \"default\" has"},
      {R"("rope_scaling": {"factor": 8.0})", Code::kInvalidArgument,
       "rope_scaling: unknown fields: 'factor' is 8.0; the rope_type \"default\" has"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 2})",
       Code::kInvalidArgument, "'attention_factor' is 2; the rope_type \"llama3\" has none"},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})", Code::kInvalidArgument,
       "'full_attention' is {\"rope_type\":\"default\"}"},
      // The one outside holds for transformers 5, the one inside for transformers 4.
      {R"("original_max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3",
          "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192})",
       Code::kInvalidArgument,
       "rope_scaling: original_max_position_embeddings is 8192, but the one outside is 4096"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0})",
       Code::kInvalidArgument, "original_max_position_embeddings is missing"},
      // And here it is the other way round.
      {R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5})", Code::kInvalidArgument,
       "rope_parameters: rope_theta is 500000.0, but the one outside is 10000.0"},
      {R"("rope_scaling": {"type": "linear", "rope_type": "llama3"})", Code::kInvalidArgument,
       "rope_type is \"llama3\", but type is \"linear\""},
      {R"("num_key_value_heads": 3)", Code::kInvalidArgument,
       "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {R"("num_key_value_heads": 0)", Code::kInvalidArgument, "num_key_value_heads is 0"},
      {R"("num_key_value_heads": -2)", Code::kInvalidArgument, "num_key_value_heads is -2"},
      {R"("head_dim": 7)", Code::kInvalidArgument, "head_dim is 7, expected an even number"},
      {R"("head_dim": 2000000000)", Code::kInvalidArgument, "head_dim is 2000000000"},
      {R"("head_dim": 99999999999999999999)", Code::kInvalidArgument, "head_dim"},
      {R"("head_dim": 8.5)", Code::kInvalidArgument, "head_dim is 8.5, expected an integer"},
      {R"("head_dim": "8")", Code::kInvalidArgument, "head_dim is \"8\", expected an integer"},
      {R"("rms_norm_eps": 0)", Code::kInvalidArgument, "rms_norm_eps is 0"},
      {R"("rms_norm_eps": true)", Code::kInvalidArgument, "rms_norm_eps is true"},
      {R"("initializer_range": -0.1)", Code::kInvalidArgument, "initializer_range is -0.1"},
      {R"("mlp_bias": 1)", Code::kInvalidArgument, "mlp_bias is 1, expected true or false"},
      {R"("max_position_embeddings": 0)", Code::kInvalidArgument, "max_position_embeddings is 0"},
  };
  for (const auto& [more, code, message] : cases) {
    const auto config = LlamaConfig::FromJson(Json(more), "some/config.json");
    EXPECT_EQ(config.status().code(), code) << more << ": " << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message)) << more;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("some/config.json")) << more;
  }
}

// What LlamaConfig() of transformers 5.24 writes, with and without its defaults, and older files.
TEST(LlamaConfig, ReadsWhatHuggingFaceWrites) {
  const std::string written[] = {
      R"({"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
          "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
          "intermediate_size": 11008, "max_position_embeddings": 2048, "mlp_bias": false,
          "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
          "num_key_value_heads": 32, "pad_token_id": null, "pretraining_tp": 1,
          "rms_norm_eps": 1e-06,
          "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
          "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
          "vocab_size": 32000})",
      R"({"_name_or_path": "", "architectures": null, "attention_bias": false,
          "attention_dropout": 0.0, "bos_token_id": 1, "chunk_size_feed_forward": 0, "dtype": null,
          "eos_token_id": [2, 3], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
          "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02,
          "intermediate_size": 11008, "is_encoder_decoder": false,
          "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "max_position_embeddings": 2048,
          "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
          "num_hidden_layers": 32, "num_key_value_heads": 32, "output_attentions": false,
          "output_hidden_states": false, "pad_token_id": null, "pretraining_tp": 1,
          "problem_type": null, "return_dict": true, "rms_norm_eps": 1e-06,
          "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
          "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
          "vocab_size": 32000})",
      R"({"_name_or_path": "a/b", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
          "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
          "head_dim": 128, "hidden_size": 4096, "initializer_range": 0.02,
          "intermediate_size": 11008, "max_position_embeddings": 2048, "max_length": 4096,
          "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
          "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
          "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
          "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000,
          "is_causal": true, "quantization_config": null, "pruned_heads": {}, "prefix": null,
          "temperature": 0.6, "top_p": 0.9, "cross_attention_hidden_size": null})"};
  for (const std::string& text : written) {
    const auto config = LlamaConfig::FromJson(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(*config, (LlamaConfig{.vocab_size = 32000,
                                    .hidden_size = 4096,
                                    .intermediate_size = 11008,
                                    .num_hidden_layers = 32,
                                    .num_attention_heads = 32,
                                    .num_key_value_heads = 32,
                                    .head_dim = 128}));
  }
}

// The message spoke of a syntax error at some byte.
TEST(LlamaConfig, NamesTheFieldOfANumberThatIsNotFinite) {
  const struct {
    std::string more;
    std::string message;
  } cases[] = {
      {R"("rope_theta": Infinity)", "after the key 'rope_theta': Infinity, expected a finite"},
      {R"("rope_theta": -Infinity)", "after the key 'rope_theta': Infinity, expected a finite"},
      {R"("rms_norm_eps":NaN)", "after the key 'rms_norm_eps': NaN, expected a finite number"},
      {R"("rope_scaling": {"factor": [1, Infinity]})",
       "after the key 'rope_scaling.factor': Infinity, expected a finite number"},
      {R"("rope_theta": 1e999)", "after the key 'rope_theta': '[json.exception.out_of_range.406]"},
      {R"("rope_theta": Inf)", "after the key 'rope_theta': '[json.exception.parse_error"},
      // How transformers 5 writes it.
      {R"("rope_theta": {"__float__": "Infinity"})",
       "rope_theta is {\"__float__\":\"Infinity\"}, expected a number"},
  };
  for (const auto& [more, message] : cases) {
    const auto config = LlamaConfig::FromJson(Json(more), "some/config.json");
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("'some/config.json': "));
  }
}

TEST(LlamaConfig, NamesTheFieldThatIsMissingOrOutOfRange) {
  for (const std::string field : {"vocab_size", "hidden_size", "intermediate_size",
                                  "num_hidden_layers", "num_attention_heads"}) {
    const std::string key = absl::StrCat("\"", field, "\":");
    for (const std::string bad : {"\"other\":", "\"other\": 1, \"NAME\": 0, \"another\":",
                                  "\"other\": 1, \"NAME\": 1e9, \"another\":",
                                  "\"other\": 1, \"NAME\": 3000000000, \"another\":"}) {
      const std::string text =
          absl::StrReplaceAll(Json(), {{key, absl::StrReplaceAll(bad, {{"NAME", field}})}});
      const auto config = LlamaConfig::FromJson(text);
      EXPECT_EQ(config.status().code(), Code::kInvalidArgument) << text;
      EXPECT_THAT(std::string(config.status().message()), HasSubstr(field)) << text;
    }
  }
  EXPECT_EQ(LlamaConfig::FromJson(Json(R"("num_hidden_layers": 10001)")).status().code(),
            Code::kInvalidArgument);
  const auto odd = LlamaConfig::FromJson(
      absl::StrReplaceAll(Json(), {{"\"hidden_size\": 32", "\"hidden_size\": 34"}}));
  EXPECT_THAT(std::string(odd.status().message()),
              HasSubstr("hidden_size 34 is not a multiple of num_attention_heads 4"));
}

TEST(LlamaConfig, RefusesTextThatIsNotAJsonObject) {
  std::string deep(100000, '[');
  std::string null_byte = Json() + std::string(1, '\0') + "}";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"), Json() + "}",
        std::string("{\"a\": \"\xff\"}"), deep, null_byte, std::string(17 << 20, ' ') + Json()}) {
    const auto config = LlamaConfig::FromJson(text);
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument) << text.substr(0, 80);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json"));
  }
}

// Printing and comparing such values recursed once per level, until the stack overflowed.
TEST(LlamaConfig, RefusesDeeplyNestedValues) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& more :
       {absl::StrCat("\"head_dim\": ", deep),
        absl::StrCat("\"rope_parameters\": ", deep, ", \"rope_scaling\": ", deep)}) {
    const auto config = LlamaConfig::FromJson(Json(more));
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("nested more than 32 levels"));
  }
}

// The last of equal keys was taken without a word.
TEST(LlamaConfig, RefusesEqualKeys) {
  const auto config = LlamaConfig::FromJson(Json(R"("vocab_size": 62)"));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("'vocab_size' appears twice"));
}

// Each extent was accepted, and products of them overflowed.
TEST(LlamaConfig, RefusesMoreElementsThanSizesCanCount) {
  LlamaConfig config = *LlamaConfig::FromJson(Json());
  config.vocab_size = config.hidden_size = 2147483640;
  EXPECT_THAT(std::string(config.Validate().message()),
              HasSubstr("more than 2^50 elements: vocab_size 2147483640, hidden_size 2147483640"));
  config = *LlamaConfig::FromJson(Json());
  config.num_hidden_layers = 10000;
  config.hidden_size = config.intermediate_size = 200'000;
  EXPECT_THAT(std::string(config.Validate().message()), HasSubstr("num_hidden_layers 10000"));
}

TEST(LlamaConfig, QuotesAndCutsWhatItWasGiven) {
  const std::string odd = "\x1b[2J\n" + std::string(5000, 'x');
  for (const std::string& text :
       {std::string("{"), Json("\"head_dim\": \"" + std::string(5000, 'x') + "\""),
        Json(R"("model_type": "\u001b[2J)" + std::string(5000, 'x') + "\"")}) {
    const std::string message(LlamaConfig::FromJson(text, odd).status().message());
    EXPECT_THAT(message, HasSubstr(R"('\x1b[2J\nxxx)"));
    EXPECT_LT(message.size(), 1000u);
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
  }
}

// Opening a pipe waited for a writer.
TEST(LlamaConfig, RefusesAFileThatIsNotRegular) {
  const std::string pipe = ::testing::TempDir() + "pipe.json";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    EXPECT_THAT(std::string(LlamaConfig::FromFile(path).status().message()),
                HasSubstr("not a regular file"));
  }
}

TEST(LlamaConfig, NamesAFileThatCannotBeRead) {
  for (const std::string& path : {::testing::TempDir() + "nowhere.json", ::testing::TempDir()}) {
    const auto config = LlamaConfig::FromFile(path);
    EXPECT_FALSE(config.ok());
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(path));
  }
}

}  // namespace
}  // namespace shardmesh::models
