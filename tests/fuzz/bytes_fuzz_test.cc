// SPDX-License-Identifier: Apache-2.0
//
// Bytes from outside against the parsers that meet them: safetensors headers and files, indexes,
// configurations of models, the command line of train_llama. Valid inputs are damaged, some inputs
// are random bytes. Whatever they are, parsing ends soon, in little memory, with a value that is
// consistent or with a Status whose message is short and printable.
//
// Case i is a function of the seed and i alone. A failure prints the input and how to repeat it:
//
//   bazel run //tests/fuzz:bytes_fuzz_test -- --seed=1 --first=4711
//   bazel run //tests/fuzz:bytes_fuzz_test -- --minutes=20
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/safetensors_header.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/examples/training/mesh_flag.h"
#include "shardmesh/examples/training/train_flags.h"
#include "shardmesh/models/config/config_object.h"
#include "shardmesh/models/gpt2/gpt2_config.h"
#include "shardmesh/models/llama/llama_config.h"

// ---- memory in use, as operator new and delete see it ------------------------------------------

namespace {
std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;
}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* block = std::malloc(std::max<size_t>(bytes, 1));
  if (block == nullptr) return nullptr;
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(block));
  if (live > peak_bytes) peak_bytes = live;
  return block;
}
void* operator new(size_t bytes) {
  void* block = operator new(bytes, std::nothrow);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t /*bytes*/) noexcept { operator delete(block); }

namespace shardmesh {
namespace {

// ---- options of the run -------------------------------------------------------------------------

double minutes_in_all = 0.3;  // Divided among the tests.
constexpr int kTests = 7;
uint64_t seed = 1;
int64_t first_case = 0;

// ---- inputs -------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(int64_t index) {
    std::seed_seq sequence = {seed >> 32, seed & 0xffffffff, static_cast<uint64_t>(index) >> 32,
                              static_cast<uint64_t>(index) & 0xffffffff};
    engine_.seed(sequence);
  }
  /// From 0 to `limit` - 1. (The standard's distributions differ between libraries.)
  size_t Below(size_t limit) { return engine_() % limit; }
  char Byte() { return static_cast<char>(Below(256)); }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

using Words = std::vector<std::string>;

/// Numbers at the edges of types, pieces of grammars, bytes that parsers and terminals stumble
/// over.
const Words& OddWords() {
  static const auto* words = new Words{"0",
                                       "1",
                                       "-1",
                                       "-0",
                                       "2",
                                       "3",
                                       "8",
                                       "1.0",
                                       "0.5",
                                       "1e3",
                                       "1e308",
                                       "1e999",
                                       "-1e999",
                                       "1e-400",
                                       "nan",
                                       "inf",
                                       "-inf",
                                       "0x10",
                                       "1023",
                                       "1024",
                                       "1025",
                                       "2147483647",
                                       "2147483648",
                                       "4294967296",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "-9223372036854775808",
                                       "18446744073709551615",
                                       "18446744073709551616",
                                       "2305843009213693952",
                                       std::string(70, '9'),
                                       "null",
                                       "true",
                                       "false",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "=",
                                       "-",
                                       "--",
                                       "\"",
                                       "\\",
                                       "{}",
                                       "[]",
                                       "\"\"",
                                       "\\u0000",
                                       "\\u001b[2J",
                                       "\\n",
                                       "\\ud800",
                                       "\xff",
                                       "\xc3\xa9",
                                       "\xe2\x80\xae",
                                       "\x1b[2J",
                                       "\r\n",
                                       "\x7f",
                                       std::string(1, '\0'),
                                       " ",
                                       "..",
                                       "/",
                                       "../../etc/passwd",
                                       std::string(40, '['),
                                       std::string(5000, 'a'),
                                       "\"" + std::string(3000, '\x01') + "\""};
  return *words;
}

/// Begin and length of a word (letters, digits, '_' and quotes) or of one other byte.
std::pair<size_t, size_t> SomeWord(const std::string& text, Random& random) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '"' || c == '_' || c == '.';
  };
  size_t begin = random.Below(text.size());
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  size_t end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  return {begin, std::max(end, begin + 1) - begin};
}

void Damage(std::string& text, const Words& words, Random& random) {
  const std::string& word = random.Of(random.Below(2) == 0 ? words : OddWords());
  if (text.empty()) {
    text = word;
    return;
  }
  const size_t at = random.Below(text.size());
  const size_t length = std::min<size_t>(1 + random.Below(30), text.size() - at);
  switch (random.Below(8)) {
    case 0:
      text[at] = random.Byte();
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(random.Below(text.size()), text.substr(at, length));
      break;
    case 3:
      text.insert(at, word);
      break;
    case 4:
      std::swap(text[at], text[random.Below(text.size())]);
      break;
    default: {
      const auto [begin, count] = SomeWord(text, random);
      text.replace(begin, count, word);
    }
  }
}

std::string RandomBytes(Random& random) {
  std::string bytes(random.Below(200), '\0');
  for (char& byte : bytes) byte = random.Byte();
  return bytes;
}

/// Something nested or repeated so often that recursion, or memory per level, would be noticed;
/// closed properly or not.
std::string Deep(Random& random) {
  static const std::vector<std::pair<std::string, std::string>> kBrackets = {
      {"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":[", "]}]"}, {"\"a\",", ""}, {"1,", ""}};
  const auto& [opening, closing] = random.Of(kBrackets);
  const size_t times = 1000 + random.Below(100'000);
  const bool is_closed = random.Below(4) != 0;
  std::string text;
  for (size_t i = 0; i < times; ++i) text += opening;
  text += "1";
  for (size_t i = 0; i < times && is_closed; ++i) text += closing;
  return text;
}

/// `valid` as it is, damaged, with something deep in it, or random bytes.
std::string Variant(std::string valid, const Words& words, Random& random) {
  const size_t kind = random.Below(400);
  if (kind < 8) return valid;
  if (kind < 16) return RandomBytes(random);
  if (kind == 16 && !valid.empty()) {
    const auto [begin, count] = SomeWord(valid, random);
    return valid.replace(begin, count, Deep(random));
  }
  const size_t damages = 1 + random.Below(kind < 300 ? 2 : 6);
  for (size_t i = 0; i < damages; ++i) Damage(valid, words, random);
  return valid;
}

// ---- what must hold -----------------------------------------------------------------------------

void ExpectShortAndPrintable(const absl::Status& status) {
  const std::string message(status.message());
  EXPECT_FALSE(message.empty());
  EXPECT_LT(message.size(), 2000u);
  for (const char c : message) {
    EXPECT_TRUE(c >= ' ' && c <= '~') << Quoted(message);
    if (c < ' ' || c > '~') return;
  }
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Makes and checks cases until the time of this test is up. `make(random)` gives an input,
/// `check(input)` returns whether it was accepted.
template <typename Make, typename Check>
void Fuzz(const Make& make, const Check& check) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(minutes_in_all * 60 / kTests);
  int64_t accepted = 0;
  int64_t index = first_case;
  for (; index == first_case || Clock::now() < end; ++index) {
    Random random(index);
    const std::string input = make(random);
    const int64_t live = live_bytes;
    peak_bytes = live;
    const double begin = CpuSeconds();
    accepted += check(input) ? 1 : 0;
    EXPECT_LT(CpuSeconds() - begin, 5);
    EXPECT_LT(peak_bytes - live, (int64_t{4} << 20) + 300 * static_cast<int64_t>(input.size()));
    if (testing::Test::HasFailure()) {
      FAIL() << "--seed=" << seed << " --first=" << index << ", " << input.size()
             << " bytes: " << Quoted(input, 20'000);
    }
  }
  std::cout << index - first_case << " cases, " << accepted << " accepted\n";
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, index - first_case);
}

// ---- safetensors --------------------------------------------------------------------------------

SafetensorsBuilder SomeTensors(Random& random) {
  static const std::vector<std::pair<std::string, size_t>> kDTypes = {
      {"F32", 4}, {"BF16", 2}, {"F64", 8}, {"I64", 8}, {"BOOL", 1}, {"U8", 1}, {"F8_E4M3", 1}};
  SafetensorsBuilder builder;
  const size_t tensors = random.Below(5);
  for (size_t t = 0; t < tensors; ++t) {
    const auto& [dtype, bytes] = random.Of(kDTypes);
    std::vector<int64_t> shape;
    size_t total = bytes;
    for (size_t d = random.Below(4); d > 0; --d) {
      shape.push_back(static_cast<int64_t>(random.Below(6)));
      total *= static_cast<size_t>(shape.back());
    }
    builder.Add(absl::StrCat("model.layers.", t, ".weight"), dtype, shape,
                std::string(total, '\1'));
  }
  return builder;
}

const Words& SafetensorsWords() {
  static const auto* words =
      new Words{"\"F32\"",
                "\"F4\"",
                "\"BOOL\"",
                "\"I64\"",
                "\"U8\"",
                "\"shape\"",
                "\"dtype\"",
                "\"data_offsets\"",
                "\"__metadata__\"",
                "\"__metadata__\":null,",
                "\"model.layers.0.weight\"",
                "\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"};
  return *words;
}

/// The tensors use up [data_begin, file_bytes), in order; what is listed parses to itself.
void ExpectConsistent(const SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes) {
  int64_t position = data_begin;
  nlohmann::ordered_json again = nlohmann::ordered_json::object();
  for (const StoredTensor& tensor : header.tensors) {
    EXPECT_EQ(tensor.begin, position);
    EXPECT_GE(tensor.end, tensor.begin);
    position = tensor.end;
    if (tensor.dtype) {
      EXPECT_EQ(tensor.Bytes(), tensor.NumElements() * SizeOf(*tensor.dtype));
    }
    again[tensor.name] = {{"dtype", tensor.file_dtype},
                          {"shape", tensor.shape},
                          {"data_offsets", {tensor.begin - data_begin, tensor.end - data_begin}}};
  }
  EXPECT_EQ(position, file_bytes);
  const absl::StatusOr<SafetensorsHeader> parsed =
      ParseSafetensorsHeader(again.dump(), data_begin, file_bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), header.tensors.size());
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    EXPECT_EQ(parsed->tensors[i].name, header.tensors[i].name);
    EXPECT_EQ(parsed->tensors[i].ToString(), header.tensors[i].ToString());
  }
}

TEST(BytesFuzz, SafetensorsHeaders) {
  int64_t file_bytes = 0;
  const auto make = [&](Random& random) {
    const SafetensorsBuilder builder = SomeTensors(random);
    // As if the header had its length: what follows it does not move with the damage.
    file_bytes = 1000 + static_cast<int64_t>(builder.data().size());
    return Variant(builder.Header(), SafetensorsWords(), random);
  };
  Fuzz(make, [&](const std::string& input) {
    const absl::StatusOr<SafetensorsHeader> header =
        ParseSafetensorsHeader(input, /*data_begin=*/1000, file_bytes);
    if (!header.ok()) {
      EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
      ExpectShortAndPrintable(header.status());
      return false;
    }
    ExpectConsistent(*header, 1000, file_bytes);
    return true;
  });
}

TEST(BytesFuzz, SafetensorsFiles) {
  const auto make = [&](Random& random) {
    const SafetensorsBuilder builder = SomeTensors(random);
    // The length fits the damaged header, so that the damage is reached.
    const std::string header = Variant(builder.Header(), SafetensorsWords(), random);
    std::string bytes = SafetensorsBytes(header, builder.data());
    if (random.Below(20) == 0) bytes[random.Below(8)] = random.Byte();
    if (random.Below(20) == 0) bytes.resize(random.Below(bytes.size()));
    return bytes;
  };
  Fuzz(make, [&](const std::string& input) {
    const std::string path = WriteTestFile("x\n.safetensors", input);
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      ExpectShortAndPrintable(file.status());
      return false;
    }
    ExecutionContext context;
    for (const StoredTensor& stored : file->tensors()) {
      EXPECT_GE(stored.begin, 8);
      EXPECT_LE(stored.end, static_cast<int64_t>(input.size()));
      // Into a tensor of another shape: every message has the name and the shape.
      Tensor out = Tensor::Empty(context, {7}, DType::kF32);
      const absl::Status status = file->Read(stored.name, out);
      if (!status.ok()) ExpectShortAndPrintable(status);
      if (!stored.dtype || stored.shape.size() > Dims::kMaxRank || stored.Bytes() > 4096) continue;
      Tensor small = Tensor::Empty(context, Dims(stored.shape), DType::kF16);
      const absl::Status cast = file->Read(stored.name, small, {.allow_cast = true});
      if (cast.ok()) continue;
      EXPECT_EQ(cast.code(), absl::StatusCode::kOutOfRange);
      ExpectShortAndPrintable(cast);
    }
    return true;
  });
}

TEST(BytesFuzz, Indexes) {
  SafetensorsBuilder first, second;
  first.Add("a", "F32", {1}, std::string(4, '\0'));
  second.Add("b", "F32", {2}, std::string(8, '\0')).Add("c", "BF16", {1}, std::string(2, '\0'));
  WriteTestFile("1.safetensors", first.Build());
  WriteTestFile("sub/2.safetensors", second.Build());
  const std::string valid =
      R"({"metadata":{"total_size":14},"weight_map":{"a":"1.safetensors","b":"sub/2.safetensors",)"
      R"("c":"sub/2.safetensors"}})";
  const Words words = {"\"weight_map\"",    "\"metadata\"",          "\"a\"",   "\"b\"",
                       "\"1.safetensors\"", "\"sub/2.safetensors\"", "\"sub\"", "\"none\""};
  const auto make = [&](Random& random) { return Variant(valid, words, random); };
  Fuzz(make, [&](const std::string& input) {
    WriteTestFile("model.safetensors.index.json", input);
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(TestFolder());
    if (!reader.ok()) {
      ExpectShortAndPrintable(reader.status());
      return false;
    }
    for (const std::string& name : reader->Names()) EXPECT_NE(reader->Find(name), nullptr);
    for (const SafetensorsFile& file : reader->files()) {
      EXPECT_EQ(file.path().rfind(TestFolder() + "/", 0), 0u) << file.path();
      EXPECT_EQ(file.path().find("/../"), std::string::npos) << file.path();
    }
    return true;
  });
}

// ---- configurations -----------------------------------------------------------------------------

/// Expects that each field of `accepted`, a configuration, is one of `read`, harmless or null, and
/// that those of `only` have their value.
void ExpectNothingPassedOver(const nlohmann::json& accepted, const Words& read,
                             const nlohmann::json& only) {
  const std::set<std::string> harmless = models::ConfigObject::HarmlessFields();
  for (const auto& [name, value] : accepted.items()) {
    if (only.contains(name)) {
      EXPECT_TRUE(value == only[name] || (value.is_null() && only[name] != true)) << name;
      continue;
    }
    const bool is_read = std::find(read.begin(), read.end(), name) != read.end();
    EXPECT_TRUE(value.is_null() || is_read || harmless.contains(name)) << Quoted(name);
  }
}

TEST(BytesFuzz, LlamaConfigurations) {
  const Words valid = {
      R"({"model_type":"llama","hidden_act":"silu","vocab_size":61,"hidden_size":32,)"
      R"("intermediate_size":88,"num_hidden_layers":2,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"head_dim":8,"rms_norm_eps":1e-5,"attention_bias":true,)"
      R"("rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,)"
      R"("low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
      R"({"vocab_size":256,"hidden_size":128,"intermediate_size":384,"num_hidden_layers":4,)"
      R"("num_attention_heads":4,"tie_word_embeddings":true,"is_causal":true,"use_cache":true,)"
      R"("attention_dropout":0.0,"pretraining_tp":1,"torch_dtype":"bfloat16","eos_token_id":[1,2],)"
      R"("rope_parameters":{"rope_type":"default","rope_theta":10000}})",
      R"({"vocab_size":256,"hidden_size":128,"intermediate_size":384,"num_hidden_layers":4,)"
      R"("num_attention_heads":4,"original_max_position_embeddings":8192,"rope_scaling":)"
      R"({"type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0}})"};
  const Words read = {"vocab_size",
                      "hidden_size",
                      "intermediate_size",
                      "num_hidden_layers",
                      "num_attention_heads",
                      "num_key_value_heads",
                      "head_dim",
                      "max_position_embeddings",
                      "rms_norm_eps",
                      "initializer_range",
                      "attention_bias",
                      "mlp_bias",
                      "tie_word_embeddings",
                      "rope_theta",
                      "rope_scaling",
                      "rope_parameters",
                      "original_max_position_embeddings"};
  const Words read_of_rope = {"rope_type",
                              "type",
                              "rope_theta",
                              "factor",
                              "low_freq_factor",
                              "high_freq_factor",
                              "original_max_position_embeddings"};
  const nlohmann::json only = {{"model_type", "llama"},
                               {"hidden_act", "silu"},
                               {"is_causal", true},
                               {"attention_dropout", 0},
                               {"pretraining_tp", 1},
                               {"partial_rotary_factor", 1},
                               {"rope_interleaved", false},
                               {"is_encoder_decoder", false},
                               {"add_cross_attention", false},
                               {"tie_encoder_decoder", false},
                               {"pruned_heads", nlohmann::json::object()},
                               {"quantization_config", nullptr}};
  const Words words = {"\"vocab_size\"",
                       "\"hidden_size\"",
                       "\"head_dim\"",
                       "\"llama\"",
                       "\"llama3\"",
                       "\"rope_scaling\"",
                       "\"rope_parameters\"",
                       "\"factor\"",
                       "\"rope_type\"",
                       "\"is_causal\"",
                       "\"is_causal\":false,",
                       "\"attention_dropout\"",
                       "\"original_max_position_embeddings\":4096,",
                       "\"sliding_window\":7,",
                       "\"use_cache\":false,",
                       "\"rope_typ\"",
                       "Infinity",
                       "NaN"};
  const auto make = [&](Random& random) { return Variant(random.Of(valid), words, random); };
  Fuzz(make, [&](const std::string& input) {
    const absl::StatusOr<models::LlamaConfig> config =
        models::LlamaConfig::FromJson(input, "a\n" + input.substr(0, 1000));
    if (!config.ok()) {
      ExpectShortAndPrintable(config.status());
      return false;
    }
    EXPECT_TRUE(config->Validate().ok()) << config->Validate();
    EXPECT_GT(config->HeadDim(), 0);
    EXPECT_EQ(config->num_attention_heads % config->KeyValueHeads(), 0);
    int64_t elements;
    EXPECT_FALSE(__builtin_mul_overflow(config->vocab_size, config->hidden_size * 8, &elements));
    EXPECT_EQ(models::LlamaConfig::FromJson(input).value(), *config);
    const nlohmann::json accepted = nlohmann::json::parse(input);
    ExpectNothingPassedOver(accepted, read, only);
    for (const char* rope : {"rope_parameters", "rope_scaling"}) {
      if (!accepted.contains(rope) || accepted[rope].is_null()) continue;
      ExpectNothingPassedOver(accepted[rope], read_of_rope, {{"partial_rotary_factor", 1}});
      const bool is_scaled = config->rope.type == models::RopeConfig::Type::kLlama3;
      EXPECT_EQ(accepted[rope].value("factor", nlohmann::json()).is_number(), is_scaled);
    }
    return true;
  });
}

TEST(BytesFuzz, Gpt2Configurations) {
  const Words valid = {
      R"({"model_type":"gpt2","activation_function":"gelu_new","vocab_size":61,"n_positions":20,)"
      R"("n_ctx":20,"n_embd":24,"n_layer":2,"n_head":3,"n_inner":70,"layer_norm_epsilon":1e-05,)"
      R"("tie_word_embeddings":true,"attn_pdrop":0.1,"summary_type":"cls_index"})",
      R"({"vocab_size":61,"n_embd":24,"n_layer":2,"n_head":3,"n_inner":null,"embd_pdrop":0.0,)"
      R"("scale_attn_weights":true,"reorder_and_upcast_attn":false,"resid_pdrop":0.5,)"
      R"("initializer_range":0.02,"use_cache":true})"};
  const Words read = {"vocab_size", "n_positions", "n_ctx",
                      "n_embd",     "n_layer",     "n_head",
                      "n_inner",    "embd_pdrop",  "layer_norm_epsilon",
                      "attn_pdrop", "resid_pdrop", "initializer_range"};
  const nlohmann::json only = {{"model_type", "gpt2"},
                               {"activation_function", "gelu_new"},
                               {"is_causal", true},
                               {"scale_attn_weights", true},
                               {"scale_attn_by_inverse_layer_idx", false},
                               {"reorder_and_upcast_attn", false},
                               {"tie_word_embeddings", true},
                               {"pretraining_tp", 1},
                               {"is_encoder_decoder", false},
                               {"add_cross_attention", false},
                               {"tie_encoder_decoder", false},
                               {"pruned_heads", nlohmann::json::object()},
                               {"quantization_config", nullptr}};
  const Words words = {"\"vocab_size\"",
                       "\"n_embd\"",
                       "\"n_ctx\"",
                       "\"n_inner\"",
                       "\"gelu\"",
                       "\"scale_attn_weights\":null,",
                       "\"scale_attn_by_inverse_layer_idx\":true,",
                       "\"hidden_size\":48,",
                       "\"attn_pdrop\"",
                       "\"use_cache\":false,",
                       "Infinity",
                       "NaN"};
  const auto make = [&](Random& random) { return Variant(random.Of(valid), words, random); };
  Fuzz(make, [&](const std::string& input) {
    const absl::StatusOr<models::Gpt2Config> config =
        models::Gpt2Config::FromJson(input, "a\n" + input.substr(0, 1000));
    if (!config.ok()) {
      ExpectShortAndPrintable(config.status());
      return false;
    }
    EXPECT_TRUE(config->Validate().ok()) << config->Validate();
    EXPECT_EQ(config->n_embd % config->n_head, 0);
    EXPECT_EQ(models::Gpt2Config::FromJson(input).value(), *config);
    ExpectNothingPassedOver(nlohmann::json::parse(input), read, only);
    return true;
  });
}

// ---- flags --------------------------------------------------------------------------------------

const Words& Meshes() {
  static const auto* meshes =
      new Words{"dp=2,tp=2", "tp=3,dp=5", "dp_replicate=2,dp=1,tp=7", "dp=1024", "tp=1"};
  return *meshes;
}

TEST(BytesFuzz, Meshes) {
  const Words words = {"dp", "tp", "dp_replicate", "=2", ",", ",tp=2"};
  const auto make = [&](Random& random) { return Variant(random.Of(Meshes()), words, random); };
  Fuzz(make, [&](const std::string& input) {
    const absl::StatusOr<MeshShape> mesh = examples::ParseMesh(input);
    if (!mesh.ok()) {
      ExpectShortAndPrintable(mesh.status());
      return false;
    }
    EXPECT_GE(mesh->NumRanks(), 1);
    EXPECT_LE(mesh->NumRanks(), examples::kMaxRanks);
    EXPECT_EQ(examples::ParseMesh(examples::UnparseMesh(*mesh)).value(), *mesh);
    return true;
  });
}

/// A command line, its arguments separated by NUL, which none can contain.
std::string SomeArguments(Random& random) {
  static const Words kArguments = {"--steps=7",    "--batch=6",       "--seq=16",
                                   "--hidden=32",  "--mlp=48",        "--layers=2",
                                   "--heads=4",    "--kv_heads=2",    "--lr=0.01",
                                   "--warmup=3",   "--precision=f64", "--sequence_parallel",
                                   "--seed=5",     "--data=a.txt",    "--nosequence_parallel",
                                   "--sample=20",  "--metrics=m",     "--temperature=0.5",
                                   "--help=false", "--precision=bf16"};
  Words arguments;
  for (size_t i = random.Below(6); i > 0; --i) arguments.push_back(random.Of(kArguments));
  if (random.Below(2) == 0) arguments.push_back("--mesh=" + random.Of(Meshes()));
  return absl::StrJoin(arguments, std::string(1, '\0'));
}

TEST(BytesFuzz, Flags) {
  const Words words = {"steps", "--seq", "batch",    "lr",     "--data", "mesh",
                       "no",    "f32",   "kv_heads", "layers", "hidden"};
  const auto make = [&](Random& random) { return Variant(SomeArguments(random), words, random); };
  Fuzz(make, [&](const std::string& input) {
    std::vector<std::string_view> arguments;
    for (size_t begin = 0; begin <= input.size();) {
      const size_t end = std::min(input.find('\0', begin), input.size());
      arguments.push_back(std::string_view(input).substr(begin, end - begin));
      begin = end + 1;
    }
    if (input.empty()) arguments.clear();
    const absl::StatusOr<examples::TrainFlags> flags = examples::ParseTrainFlags(arguments);
    const absl::Status status = flags.ok() ? flags->options.Validate() : flags.status();
    if (!status.ok()) {
      ExpectShortAndPrintable(status);
      return false;
    }
    const examples::TrainOptions& options = flags->options;
    EXPECT_LE(options.mesh.NumRanks(), examples::kMaxRanks);
    int64_t bytes;
    EXPECT_FALSE(__builtin_mul_overflow(options.batch * options.sequence,
                                        8 * options.model.vocab_size, &bytes));
    EXPECT_EQ(options.model.hidden_size % options.model.num_attention_heads, 0);
    return true;
  });
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == argument.npos ? "" : argument.substr(equals + 1);
    const bool is_known =
        (name == "--minutes" && absl::SimpleAtod(value, &shardmesh::minutes_in_all)) ||
        (name == "--seed" && absl::SimpleAtoi(value, &shardmesh::seed)) ||
        (name == "--first" && absl::SimpleAtoi(value, &shardmesh::first_case));
    if (is_known) continue;
    std::cerr << "expected --minutes=, --seed= or --first=\n";
    return EXIT_FAILURE;
  }
  return RUN_ALL_TESTS();
}
