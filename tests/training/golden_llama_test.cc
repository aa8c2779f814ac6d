// SPDX-License-Identifier: Apache-2.0
//
// The same numbers as transformers and PyTorch (tests/testdata/golden/README.md has the recipe and
// the tolerances).
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "shardmesh/tests/training/golden_file.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

constexpr int kSteps = 10;

std::string Folder(const std::string& name) { return "llama/" + name + "/"; }

struct Tolerances {
  double logits, gradients, losses, norms, final;
};

struct Precision {
  const char* name;
  DType dtype;
  bool bf16;
  Tolerances tolerances;
};

constexpr Precision kPrecisions[] = {
    {"f64", DType::kF64, false, {1e-11, 1e-11, 1e-11, 1e-11, 1e-9}},
    {"f32", DType::kF32, false, {1e-5, 1e-5, 2e-6, 2e-5, 3e-4}},
    {"bf16", DType::kF32, true, {0.2, 0.2, 0.06, 0.25, HUGE_VAL}},
};

LlamaRunOptions Options(const std::string& name, const MeshShape& mesh,
                        const Precision& precision) {
  const SafetensorsFile data = OpenGolden(Folder(name) + "data.safetensors");
  const auto ids = ReadGolden<int64_t>(data, "input_ids", DType::kI64);
  const auto targets = ReadGolden<int64_t>(data, "targets", DType::kI64);
  const auto rates = ReadGolden<double>(data, "learning_rates", DType::kF64);
  const Dims shape(data.Find("input_ids")->shape);
  LlamaRunOptions options;
  absl::StatusOr<models::LlamaConfig> config =
      models::LlamaConfig::FromFile(GoldenPath(Folder(name) + "config.json"));
  EXPECT_TRUE(config.ok()) << config.status();
  options.config = *config;
  options.mesh = mesh;
  options.dtype = precision.dtype;
  options.bf16 = precision.bf16;
  options.steps = kSteps;
  options.batch = [=](int step) {
    const int64_t size = shape[1] * shape[2];
    const auto part = [&](const std::vector<int64_t>& all) {
      return std::vector<int64_t>(all.begin() + step * size, all.begin() + (step + 1) * size);
    };
    return TokenBatch{shape[1], shape[2], part(ids), part(targets)};
  };
  options.lr = [=](int step) { return rates[step]; };
  options.max_norm = 4.0;
  options.weights = GoldenPath(Folder(name) + "model.safetensors");
  return options;
}

class GoldenLlama : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenLlama, IsReproducedInEveryPrecisionOnEveryMesh) {
  const std::string name = GetParam();
  const SafetensorsFile expected = OpenGolden(Folder(name) + "expected_f64.safetensors");
  const auto values = [&](const std::string& tensor) {
    return ReadGolden<double>(expected, tensor, DType::kF64);
  };
  const std::vector<MeshShape> meshes = {
      {}, {{"dp", 2}, {"tp", 2}}, {{"dp_replicate", 2}, {"dp", 2}}};
  for (const Precision& precision : kPrecisions) {
    for (const MeshShape& mesh : meshes) {
      SCOPED_TRACE(name + " in " + precision.name + " on " + mesh.ToString());
      absl::StatusOr<LlamaRun> run = RunLlama(Options(name, mesh, precision));
      ASSERT_TRUE(run.ok()) << run.status();
      const Tolerances& tolerances = precision.tolerances;
      EXPECT_LE(RelativeError(run->logits, values("logits")), tolerances.logits);
      EXPECT_LE(RelativeError(run->losses, values("losses")), tolerances.losses);
      EXPECT_LE(RelativeError(run->grad_norms, values("grad_norms")), tolerances.norms);
      for (const auto& [parameter, gradient] : run->gradients) {
        EXPECT_LE(RelativeError(gradient, values("grad." + parameter)), tolerances.gradients)
            << parameter;
      }
      for (const auto& [parameter, final] : run->final) {
        // The gradient of a key bias is nearly nothing, and Adam scales it up.
        const bool key_bias = parameter.find("k_proj.bias") != std::string::npos;
        const double tolerance =
            key_bias && precision.dtype == DType::kF32 ? 5e-2 : tolerances.final;
        if (precision.bf16) continue;
        EXPECT_LE(RelativeError(final, values("final." + parameter)), tolerance) << parameter;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLlama,
                         ::testing::Values("plain", "gqa_tied", "llama3_rope_bias"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shardmesh::testing
