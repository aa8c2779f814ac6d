// SPDX-License-Identifier: Apache-2.0
//
// The promise: the same program on any mesh computes the same numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kRows = 4;  // A rank without rows on five; uneven on three.
constexpr int64_t kLength = 11;
constexpr int64_t kVocabulary = 61;
constexpr double kMaxNorm = 2.92;  // Between the norms of these steps.

// Extents are prime to 3 and 5, so that every split over them is uneven. Only heads have to divide.
models::LlamaConfig Config() {
  models::LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 56;
  config.intermediate_size = 77;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 14;
  config.initializer_range = 0.08;
  return config;
}

// A successor table with noise: something to learn. Some targets are ignored, unevenly.
TokenBatch Batch(int step) {
  std::mt19937_64 random(1234 + step);
  TokenBatch batch{kRows, kLength, {}, {}};
  for (int64_t row = 0; row < kRows; ++row) {
    int64_t token = static_cast<int64_t>(random() % kVocabulary);
    for (int64_t i = 0; i < kLength; ++i) {
      batch.ids.push_back(token);
      token = random() % 8 == 0 ? static_cast<int64_t>(random() % kVocabulary)
                                : (token * 7 + 3) % kVocabulary;
      const bool ignored = row == 1 && i < 6;
      batch.targets.push_back(ignored ? -100 : token);
    }
  }
  return batch;
}

LlamaRunOptions Options(const MeshShape& mesh, DType dtype) {
  LlamaRunOptions options;
  options.config = Config();
  options.mesh = mesh;
  options.dtype = dtype;
  options.steps = kSteps;
  options.batch = Batch;
  options.lr = [](int step) { return 3e-3 * std::min(1.0, (step + 1) / 4.0); };
  options.max_norm = kMaxNorm;
  return options;
}

struct MeshCase {
  MeshShape mesh;
  bool sequence_parallel = false;
};

std::vector<MeshCase> MeshCases() {
  return {
      {{{"dp", 4}}},
      {{{"tp", 4}}},
      {{{"dp", 2}, {"tp", 2}}},
      {{{"dp_replicate", 2}, {"dp", 2}}},
      {{{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}},
      {{{"dp", 3}}},
      {{{"dp", 5}}},
      {{{"tp", 2}}, true},
      {{{"dp", 2}, {"tp", 2}}, true},
  };
}

double WorstRelative(const std::vector<double>& actual, const std::vector<double>& expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - expected[i]) / std::abs(expected[i]));
  }
  return worst;
}

LlamaRun Train(const LlamaRunOptions& options) {
  absl::StatusOr<LlamaRun> run = RunLlama(options);
  EXPECT_TRUE(run.ok()) << options.mesh << ": " << run.status();
  return run.ok() ? *std::move(run) : LlamaRun{};
}

void ExpectSameBits(const NamedValues& actual, const NamedValues& expected, const MeshShape& mesh) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected)
    EXPECT_EQ(actual.at(name), values) << name << " on " << mesh;
}

class Parity : public ::testing::TestWithParam<DType> {
 protected:
  double loss_tolerance() const { return GetParam() == DType::kF64 ? 1e-12 : 1e-5; }
  double norm_tolerance() const { return GetParam() == DType::kF64 ? 1e-12 : 1e-4; }
  double final_tolerance() const { return GetParam() == DType::kF64 ? 1e-12 : 1e-4; }
};

TEST_P(Parity, TrainingOnAnyMeshMatchesOneRank) {
  const LlamaRun single = Train(Options({}, GetParam()));
  ASSERT_EQ(single.losses.size(), static_cast<size_t>(kSteps));
  const auto clipped = std::count_if(single.grad_norms.begin(), single.grad_norms.end(),
                                     [](double norm) { return norm > kMaxNorm; });
  EXPECT_GT(clipped, 2) << "the test must clip in some steps";
  EXPECT_LT(clipped, kSteps - 2) << "the test must not clip in some steps";
  EXPECT_LT(single.losses.back(), single.losses.front() - 0.5) << "the model must learn";
  for (const MeshCase& mesh_case : MeshCases()) {
    SCOPED_TRACE(mesh_case.mesh.ToString() +
                 (mesh_case.sequence_parallel ? " with sequence parallelism" : ""));
    LlamaRunOptions options = Options(mesh_case.mesh, GetParam());
    options.sequence_parallel = mesh_case.sequence_parallel;
    const LlamaRun run = Train(options);
    ASSERT_EQ(run.losses.size(), single.losses.size());
    ExpectSameBits(run.initial, single.initial, mesh_case.mesh);
    EXPECT_LE(WorstRelative(run.losses, single.losses), loss_tolerance());
    EXPECT_LE(WorstRelative(run.grad_norms, single.grad_norms), norm_tolerance());
    double worst = 0;
    for (const auto& [name, values] : single.final) {
      worst = std::max(worst, RelativeError(run.final.at(name), values));
    }
    EXPECT_LE(worst, final_tolerance());
    RecordProperty("final", std::to_string(worst));
  }
}

TEST_P(Parity, TheSameMeshTwiceGivesTheSameBits) {
  LlamaRunOptions options = Options({{"dp", 2}, {"tp", 2}}, GetParam());
  options.steps = 5;
  const LlamaRun first = Train(options);
  const LlamaRun second = Train(options);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.grad_norms, second.grad_norms);
  ExpectSameBits(second.final, first.final, options.mesh);
}

// All ranks post their collectives of all groups in one order: else waiting for each where it is
// posted would be a deadlock.
TEST_P(Parity, WaitingForEachCollectiveWhereItIsPostedGivesTheSameBits) {
  LlamaRunOptions options = Options({{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}, GetParam());
  options.steps = 3;
  for (const bool sequence_parallel : {false, true}) {
    options.sequence_parallel = sequence_parallel;
    options.synchronous = false;
    const LlamaRun expected = Train(options);
    options.synchronous = true;
    const LlamaRun run = Train(options);
    EXPECT_EQ(run.losses, expected.losses);
    EXPECT_EQ(run.grad_norms, expected.grad_norms);
    ExpectSameBits(run.final, expected.final, options.mesh);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Parity, ::testing::Values(DType::kF32, DType::kF64),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace shardmesh::testing
