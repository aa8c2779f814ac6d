// SPDX-License-Identifier: Apache-2.0
//
// The memory of a Llama's training by category, against what the layouts say, whatever the timing
// of the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

constexpr int64_t kRows = 5, kLength = 9, kVocabulary = 61, kLayers = 3;
constexpr int kSteps = 6;

LlamaRunOptions Options(const MeshShape& mesh, bool bf16) {
  LlamaRunOptions options = ThreeLayers(mesh, kVocabulary);
  options.bf16 = bf16;
  return options;
}

std::vector<int64_t> Tokens(int64_t stride) {
  return StridedIds(kRows * kLength, stride, kVocabulary);
}

// Elements of this rank's part of `parameters`; `gathered`: along dp.
int64_t Elements(const std::vector<nn::Parameter>& parameters, const DeviceMesh& mesh,
                 bool gathered) {
  int64_t elements = 0;
  for (const nn::Parameter& parameter : parameters) {
    Layout layout = parameter.layout();
    if (gathered) layout = layout.With(mesh.shape().Index("dp"), Replicate());
    elements += layout.LocalShape(mesh.coord()).NumElements();
  }
  return elements;
}

using Peaks = std::array<int64_t, kNumMemoryCategories>;

// One rank's training. Checks what layouts say; returns the peaks of each step from the third on.
std::vector<Peaks> Train(const DeviceMesh& mesh, const LlamaRunOptions& options, int delays) {
  models::Llama model(options.config);
  ParallelizeLlama(model, mesh, options);
  model.Initialize(3);
  std::mt19937 random(100 * delays + mesh.WorldGroup().rank());
  for (auto& block : model.Blocks()) {
    block.AddForwardPreHook([&random](nn::Module&, nn::Inputs&) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    });
  }
  optim::AdamW optimizer(model.Parameters());

  const int64_t own = Elements(model.Parameters(), mesh, false);
  const int64_t block = Elements(model.Blocks()[0].Parameters(), mesh, true);
  const int64_t root = Elements(model.Parameters(), mesh, true) - kLayers * block;
  const int64_t gathered_bytes = (root + 2 * block) * (options.bf16 ? 2 : 4);
  Allocator& memory = *mesh.context().allocator();
  const auto peak = [&](MemoryCategory category) { return memory.stats(category).peak_bytes; };

  std::vector<Peaks> steps;
  for (int step = 0; step < kSteps; ++step) {
    memory.ResetPeaks();
    Backward(CrossEntropy(model(ShardedTokens(mesh, kRows, kLength, Tokens(7))),
                          ShardedTokens(mesh, kRows, kLength, Tokens(11))));
    optim::ClipGradNorm(model.Parameters(), 1.0);
    optimizer.Step();
    if (step < 2) continue;
    EXPECT_EQ(peak(MemoryCategory::kParameters), own * 4);
    EXPECT_EQ(peak(MemoryCategory::kGradients), own * 4);
    EXPECT_EQ(peak(MemoryCategory::kOptimizer), own * 8);
    EXPECT_EQ(peak(MemoryCategory::kUnshardedParameters), gathered_bytes);
    EXPECT_LE(peak(MemoryCategory::kUnshardedGradients), (root + 2 * block) * 4);
    EXPECT_GT(peak(MemoryCategory::kUnshardedGradients), 0);
    EXPECT_GT(peak(MemoryCategory::kActivations), 0);
    for (const auto category :
         {MemoryCategory::kUnshardedParameters, MemoryCategory::kUnshardedGradients,
          MemoryCategory::kGradients, MemoryCategory::kCommunication, MemoryCategory::kScratch}) {
      EXPECT_EQ(memory.stats(category).bytes, 0) << Name(category) << " after a step";
    }
    steps.emplace_back();
    for (int i = 0; i < kNumMemoryCategories; ++i) {
      steps.back()[i] = peak(static_cast<MemoryCategory>(i));
    }
  }
  EXPECT_EQ(fsdp::GetStagingStats(mesh).staging_bytes, 0);
  EXPECT_EQ(fsdp::GetStagingStats(mesh).cast_bytes > 0, options.bf16);
  return steps;
}

TEST(LlamaMemory, IsWhatLayoutsSayInEveryStepWhateverTheTiming) {
  for (const MeshShape& shape : {MeshShape{{"dp", 2}, {"tp", 2}}, MeshShape{{"dp", 3}},
                                 MeshShape{{"dp_replicate", 2}, {"dp", 2}, {"tp", 2}}}) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(shape.ToString() + (bf16 ? " bf16" : ""));
      const int ranks = static_cast<int>(shape.NumRanks());
      std::vector<std::vector<Peaks>> runs[2] = {std::vector<std::vector<Peaks>>(ranks),
                                                 std::vector<std::vector<Peaks>>(ranks)};
      for (int delays = 0; delays < 2; ++delays) {
        const absl::Status status = RunRanks(ranks, [&](Communicator& world) {
          const DeviceMesh mesh = DeviceMesh::Create(world, shape);
          runs[delays][world.rank()] = Train(mesh, Options(shape, bf16), delays);
        });
        EXPECT_TRUE(status.ok()) << status;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Peaks& peaks : runs[1][rank]) EXPECT_EQ(peaks, runs[0][rank][0]);
        for (const Peaks& peaks : runs[0][rank]) EXPECT_EQ(peaks, runs[0][rank][0]);
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::testing
