// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/models/gpt2/gpt2_tp_plan.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/optim/adamw.h"

namespace shardmesh::models {
namespace {

using ::testing::HasSubstr;

const std::string kGolden = "tests/testdata/golden/gpt2/";

Gpt2Config GoldenConfig() {
  return {
      .vocab_size = 61, .n_positions = 20, .n_embd = 24, .n_layer = 2, .n_head = 3, .n_inner = 70};
}

void Load(Gpt2& model, const std::string& golden) {
  const auto weights = CheckpointReader::Open(kGolden + golden + "/model.safetensors");
  ThrowIfError(weights.status());
  ThrowIfError(nn::LoadParameters(model, *weights, {.allow_cast = true}));
}

/// Ids below 61, with rows sharded along every axis but tp.
DTensor Ids(const DeviceMesh& mesh, int64_t rows, int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < rows * length; ++i) ids.push_back((i * i + 7 * i) % 61);
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  }
  return Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {rows, length}, ids),
                    placements);
}

void RunOn(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Gpt2, HasTheParameterNamesAndShapesOfHuggingFace) {
  for (const std::string golden : {"plain", "adapters"}) {
    const auto file = SafetensorsFile::Open(kGolden + golden + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    Gpt2 model(GoldenConfig());
    if (golden == "adapters") model.AddAdapters(/*rank=*/2);
    std::vector<std::string> names;
    for (const auto& [name, parameter] : model.NamedParameters()) {
      names.push_back(name);
      ASSERT_NE(file->Find(name), nullptr) << name;
      EXPECT_EQ(Dims(file->Find(name)->shape), parameter.shape()) << name;
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(file->Names()));
  }
}

TEST(Gpt2, RefusesAConfigurationThatDoesNotFit) {
  struct Case {
    std::function<void(Gpt2Config&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](Gpt2Config& c) { c.vocab_size = 0; }, "vocab_size is 0"},
      {[](Gpt2Config& c) { c.n_positions = -1; }, "n_positions is -1"},
      {[](Gpt2Config& c) { c.n_head = 5; }, "n_embd 24 is not a multiple of n_head 5"},
      {[](Gpt2Config& c) { c.n_inner = 0; }, "n_inner is 0"},
      {[](Gpt2Config& c) { c.layer_norm_epsilon = 0; }, "layer_norm_epsilon is 0"},
      {[](Gpt2Config& c) { c.initializer_range = NAN; }, "initializer_range is nan"},
      {[](Gpt2Config& c) { c.embd_pdrop = 1.5; }, "embd_pdrop is 1.5"},
      {[](Gpt2Config& c) { c.resid_pdrop = -0.5; }, "resid_pdrop is -0.5"},
      {[](Gpt2Config& c) { c.attn_pdrop = NAN; }, "attn_pdrop is nan"},
  };
  for (const Case& c : cases) {
    Gpt2Config config = GoldenConfig();
    c.change(config);
    const absl::Status status = Catch([&] { Gpt2 model(config); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  const absl::Status twice = Catch([&] {
    Gpt2 model(GoldenConfig());
    model.AddAdapters(1);
    model.AddAdapters(1);
  });
  EXPECT_THAT(std::string(twice.message()), HasSubstr("two things named 'adapter'"));
}

// Every file of Hugging Face has 0.1, which was passed over in training.
TEST(Gpt2, DropsNoAttentionAndSaysSoInTraining) {
  RunOn({{"dp", 2}}, [](const DeviceMesh& mesh) {
    Gpt2Config config = GoldenConfig();
    const DTensor ids = Ids(mesh, 2, 5);
    std::vector<std::vector<double>> logits;
    for (const double attn_pdrop : {0.0, 0.1}) {
      config.attn_pdrop = attn_pdrop;
      Gpt2 model(config);
      model.PlaceReplicated(mesh);
      Load(model, "plain");
      const absl::Status status = Catch([&] { model(ids); });
      if (attn_pdrop == 0) {
        EXPECT_TRUE(status.ok()) << status;
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("transformer.h.0.attn: attn_pdrop is 0.1, but attention"));
      }
      model.Eval();
      logits.push_back(FullTensor(model(ids)).ToVector<double>());
    }
    EXPECT_EQ(logits[0], logits[1]);
  });
}

TEST(Gpt2, RefusesIdsThatDoNotFit) {
  RunOn({{"dp", 1}}, [](const DeviceMesh& mesh) {
    Gpt2 model(GoldenConfig());
    model.PlaceReplicated(mesh);
    model.Initialize(1);
    absl::Status status = Catch([&] { model(Reshape(Ids(mesh, 2, 3), {6})); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected [batch, sequence]"));
    status = Catch([&] { model(Ids(mesh, 2, 21)); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("21 positions, the model has 20"));
  });
}

TEST(Gpt2, InitialisesWhatEndsInTheResidualStreamNarrower) {
  RunOn({{"dp", 1}}, [](const DeviceMesh& mesh) {
    Gpt2Config config = GoldenConfig();
    config.initializer_range = 0.3;
    Gpt2 model(config);
    model.PlaceReplicated(mesh);
    model.Initialize(1);
    for (const auto& [name, parameter] : model.NamedParameters()) {
      if (!name.ends_with("c_fc.weight") && !name.ends_with("c_proj.weight")) continue;
      const double square = Item(Mean(Square(parameter.data())));
      EXPECT_NEAR(std::sqrt(square), name.ends_with("c_fc.weight") ? 0.3 : 0.15, 0.02) << name;
    }
  });
}

TEST(Gpt2TpPlan, SplitsTheVocabularyAndTheInnerDim) {
  RunOn({{"tp", 2}}, [](const DeviceMesh& mesh) {
    Gpt2 model(GoldenConfig());
    model.AddAdapters(/*rank=*/2);
    tp::Parallelize(model, mesh, "tp", Gpt2TpPlan(/*adapters=*/true));
    const std::map<std::string, Placement> split = {
        {"transformer.wte.weight", Shard(0)}, {"mlp.c_fc.weight", Shard(1)},
        {"mlp.c_fc.bias", Shard(0)},          {"mlp.c_proj.weight", Shard(0)},
        {"mlp.adapter.B", Shard(1)},
    };
    for (const auto& [name, parameter] : model.NamedParameters()) {
      Placement expected = Replicate();
      for (const auto& [ending, placement] : split) {
        if (name.ends_with(ending)) expected = placement;
      }
      EXPECT_EQ(parameter.layout().placement(0), expected) << name;
    }
    Gpt2 without(GoldenConfig());
    const absl::Status status =
        Catch([&] { tp::Parallelize(without, mesh, "tp", Gpt2TpPlan(/*adapters=*/true)); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("matches no module"));
  });
}

TEST(Gpt2, DropsTheSameElementsOnEveryMesh) {
  Gpt2Config config = GoldenConfig();
  config.embd_pdrop = 0.1;
  config.resid_pdrop = 0.2;
  std::vector<double> expected;
  for (const MeshShape& shape : {MeshShape{{"dp", 1}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}}) {
    RunOn(shape, [&](const DeviceMesh& mesh) {
      Gpt2 model(config, DType::kF64);
      if (mesh.shape().Has("tp")) tp::Parallelize(model, mesh, "tp", Gpt2TpPlan());
      for (Gpt2Block& block : model.blocks()) fsdp::FullyShard(block, mesh);
      fsdp::FullyShard(model, mesh);
      model.Initialize(3);
      const DTensor ids = Ids(mesh, 5, 7);
      std::vector<double> losses;
      for (int call = 0; call < 2; ++call) losses.push_back(Item(CrossEntropy(model(ids), ids)));
      model.Eval();
      losses.push_back(Item(CrossEntropy(model(ids), ids)));
      if (mesh.WorldGroup().rank() != 0) return;
      if (expected.empty()) expected = losses;
      EXPECT_NE(losses[0], losses[1]);
      EXPECT_NE(losses[0], losses[2]);
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-12);
    });
  }
}

// Fine-tuning: a file without adapters is read into a sharded model, which then gets adapters.
TEST(Gpt2, TrainsNothingButAdaptersAddedToALoadedModel) {
  RunOn({{"dp", 2}}, [](const DeviceMesh& mesh) {
    Gpt2 model(GoldenConfig(), DType::kF64);
    for (Gpt2Block& block : model.blocks()) fsdp::FullyShard(block, mesh);
    fsdp::FullyShard(model, mesh);
    Load(model, "plain");
    for (nn::Parameter& parameter : model.Parameters()) parameter.set_requires_grad(false);
    const DTensor ids = Ids(mesh, 4, 9);
    const std::vector<double> before = FullTensor(model(ids)).ToVector<double>();

    model.AddAdapters(/*rank=*/3);
    model.PlaceReplicated(mesh);
    model.Initialize(1);
    EXPECT_EQ(FullTensor(model(ids)).ToVector<double>(), before);

    optim::AdamW optimizer(model.Parameters(), {.lr = 5e-2});
    std::vector<double> losses;
    for (int step = 0; step < 20; ++step) {
      const DTensor loss = CrossEntropy(model(ids), ids);
      Backward(loss);
      for (const auto& [name, parameter] : model.NamedParameters()) {
        const bool is_adapter = name.find("adapter") != std::string::npos;
        EXPECT_EQ(static_cast<bool>(parameter.data().grad()), is_adapter) << name;
      }
      optimizer.Step();
      losses.push_back(Item(loss));
    }
    EXPECT_LT(losses.back(), 0.9 * losses.front());
  });
}

}  // namespace
}  // namespace shardmesh::models
