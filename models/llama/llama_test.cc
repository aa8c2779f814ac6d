// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/nn/load.h"

namespace shardmesh::models {
namespace {

using ::testing::HasSubstr;

const char* const kGoldenCases[] = {"plain", "gqa_tied", "llama3_rope_bias"};

std::string Golden(const std::string& name, const std::string& file) {
  return "tests/testdata/golden/llama/" + name + "/" + file;
}

LlamaConfig GoldenConfig(const std::string& name) {
  absl::StatusOr<LlamaConfig> config = LlamaConfig::FromFile(Golden(name, "config.json"));
  ThrowIfError(config.status());
  return *config;
}

LlamaConfig TinyConfig() {
  return {.vocab_size = 13,
          .hidden_size = 12,
          .intermediate_size = 10,
          .num_hidden_layers = 2,
          .num_attention_heads = 3};
}

std::vector<std::string> SortedNames(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.NamedParameters()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Llama, HasTheParameterNamesAndShapesOfHuggingFace) {
  for (const std::string name : kGoldenCases) {
    const auto file = SafetensorsFile::Open(Golden(name, "model.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<std::string> expected = file->Names();
    std::sort(expected.begin(), expected.end());
    const Llama model(GoldenConfig(name));
    EXPECT_EQ(SortedNames(model), expected) << name;
    for (const auto& [own, parameter] : model.NamedParameters()) {
      EXPECT_EQ(Dims(file->Find(own)->shape), parameter.shape()) << own;
    }
  }
}

TEST(Llama, IteratesOverItsBlocks) {
  Llama model(TinyConfig(), {.device = Device::Meta(), .dtype = DType::kF64});
  int count = 0;
  for (auto& block : model.Blocks()) {
    EXPECT_EQ(block.Parameters().size(), 9u);
    EXPECT_EQ(block.Parameters()[0].dtype(), DType::kF64);
    ++count;
  }
  EXPECT_EQ(count, 2);
  EXPECT_EQ(model.Blocks()[1].Parameters()[0].name(), "model.layers.1.input_layernorm.weight");
}

TEST(Llama, RefusesAConfigurationOrDeviceThatDoesNotFit) {
  LlamaConfig config = TinyConfig();
  config.num_key_value_heads = 2;
  absl::Status status = Catch([&] { Llama{config}; });
  EXPECT_THAT(std::string(status.message()), HasSubstr("num_key_value_heads 2"));
  status = Catch([&] { Llama(TinyConfig(), {.device = Device::Cpu()}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("meta"));
}

TEST(Llama, InitialisesByConfigurationWithTheSameBitsOnAnyMesh) {
  LlamaConfig config = TinyConfig();
  config.initializer_range = 0.3;
  config.attention_bias = true;
  std::vector<std::vector<double>> expected;
  for (int ranks : {1, 4}) {
    const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", ranks}});
      Llama model(config);
      // A unit of its own may ask for names before the whole is there.
      const size_t block_parameters = model.Blocks()[1].NamedParameters().size();
      EXPECT_EQ(block_parameters, 13u);
      for (nn::Parameter& parameter : model.Parameters()) {
        parameter.Place(mesh, Layout::Make(mesh.shape(), {Shard(0)}, parameter.shape()));
      }
      model.Initialize(5);
      std::vector<std::vector<double>> values;
      for (const auto& [name, parameter] : model.NamedParameters()) {
        values.push_back(FullTensor(parameter.data()).ToVector<double>());
        double squares = 0;
        for (double value : values.back()) squares += value * value;
        const double rms = std::sqrt(squares / static_cast<double>(values.back().size()));
        if (name.find("norm") != std::string::npos) {
          EXPECT_EQ(rms, 1) << name;
        } else if (name.find("bias") != std::string::npos) {
          EXPECT_EQ(rms, 0) << name;
        } else {
          EXPECT_NEAR(rms, 0.3, 0.06) << name;
        }
      }
      if (world.rank() != 0) return;
      if (ranks == 1) expected = values;
      EXPECT_EQ(values, expected);
      EXPECT_NE(values[2], values[2 + block_parameters]) << "two blocks alike";
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Llama, ListsATiedEmbeddingOnce) {
  LlamaConfig config = TinyConfig();
  config.tie_word_embeddings = true;
  Llama model(config);
  const std::vector<std::string> names = SortedNames(model);
  EXPECT_EQ(std::count(names.begin(), names.end(), "lm_head.weight"), 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "model.embed_tokens.weight"), 1);
}

TEST(Llama, ComputesTheLogitsThatOthersCompute) {
  for (const std::string name : kGoldenCases) {
    const absl::Status status = RunRanks(1, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
      ExecutionContext& context = mesh.context();
      const auto read = [&](const std::string& file, const std::string& tensor, const Dims& shape,
                            DType dtype) {
        Tensor out = Tensor::Empty(context, shape, dtype);
        const auto opened = SafetensorsFile::Open(Golden(name, file));
        ThrowIfError(opened.status());
        ThrowIfError(opened->Read(tensor, out));
        return out;
      };
      const LlamaConfig config = GoldenConfig(name);
      const Tensor ids = read("data.safetensors", "input_ids", {10, 4, 16}, DType::kI64);
      const Dims logits_shape = {4, 16, config.vocab_size};
      const std::vector<double> expected =
          read("expected_f64.safetensors", "logits", logits_shape, DType::kF64).ToVector<double>();
      double largest = 0;
      for (double value : expected) largest = std::max(largest, std::abs(value));
      for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-11}, {DType::kF32, 1e-5}}) {
        Llama model(config, {.dtype = dtype});
        model.PlaceReplicated(mesh);
        auto weights = CheckpointReader::Open(Golden(name, "model.safetensors"));
        ThrowIfError(weights.status());
        ThrowIfError(nn::LoadParameters(model, *weights, {.allow_cast = true}));
        const DTensor inputs = Distribute(mesh, ids.Narrow(0, 0, 1).Squeeze(0), {Replicate()});
        const DTensor logits = model(inputs);
        EXPECT_EQ(logits.shape(), logits_shape);
        EXPECT_EQ(logits.dtype(), dtype);
        const std::vector<double> values = FullTensor(logits).ToVector<double>();
        double worst = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          worst = std::max(worst, std::abs(values[i] - expected[i]) / largest);
        }
        EXPECT_LT(worst, tolerance) << name << " " << Name(dtype);
        EXPECT_THROW(model(Distribute(mesh, ids, {Replicate()})), Error);
      }
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace shardmesh::models
