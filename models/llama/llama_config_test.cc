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
      {R"("type": "yarn", "rope_theta": 500000.0)", plain},  // Not the rotary type.
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
      {R"("partial_rotary_factor": 0.5)", Code::kUnimplemented, "partial_rotary_factor"},
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
