// SPDX-License-Identifier: Apache-2.0
//
// A rank that fails in the middle of training ends the run on every rank, in bounded time, with the
// first cause.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/models/llama/llama_tp_plan.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/tests/training/llama_run.h"
#include "shardmesh/tp/parallelize.h"

namespace shardmesh::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int64_t kRows = 4, kLength = 8, kVocabulary = 32;

LlamaRunOptions Options() {
  LlamaRunOptions options;
  options.config.vocab_size = kVocabulary;
  options.config.hidden_size = 16;
  options.config.intermediate_size = 22;
  options.config.num_hidden_layers = 2;
  options.config.num_attention_heads = 2;
  options.mesh = {{"dp", 2}, {"tp", 2}};
  return options;
}

// What a rank does before step 3 (false: leave the program), and what came of it.
struct Outcome {
  absl::Status status;
  std::vector<absl::Status> by_rank{kRanks};  // What each rank caught.
  std::vector<double> seconds_after_cause = std::vector<double>(kRanks, -1);
};

Outcome Train(
    absl::Duration timeout,
    const std::function<bool(int rank, const std::function<void()>& cause)>& before_third) {
  Outcome outcome;
  std::atomic<Clock::rep> cause{0};
  const auto note_cause = [&] { cause = Clock::now().time_since_epoch().count(); };
  outcome.status = RunRanks(
      kRanks,
      [&](Communicator& world) {
        const LlamaRunOptions options = Options();
        DeviceMesh mesh = DeviceMesh::Create(world, options.mesh);
        models::Llama model(options.config);
        ParallelizeLlama(model, mesh, options);
        model.Initialize(1);
        optim::AdamW optimizer(model.Parameters());
        const std::vector<int64_t> tokens(kRows * kLength, 5);
        try {
          for (int step = 1; step <= 5; ++step) {
            if (step == 3 && !before_third(world.rank(), note_cause)) return;
            const DTensor loss = CrossEntropy(model(ShardedTokens(mesh, kRows, kLength, tokens)),
                                              ShardedTokens(mesh, kRows, kLength, tokens));
            Backward(loss);
            optim::ClipGradNorm(model.Parameters(), 1.0);
            optimizer.Step();
          }
        } catch (...) {
          outcome.by_rank[world.rank()] = StatusOf(std::current_exception());
          const Clock::duration since(Clock::now().time_since_epoch().count() - cause.load());
          outcome.seconds_after_cause[world.rank()] = std::chrono::duration<double>(since).count();
          throw;
        }
      },
      {.timeout = timeout});
  return outcome;
}

void ExpectOthersFail(const Outcome& outcome, int culprit, double within_seconds,
                      const std::string& cause) {
  EXPECT_FALSE(outcome.status.ok());
  EXPECT_NE(std::string(outcome.status.message()).find(cause), std::string::npos) << outcome.status;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == culprit) continue;
    EXPECT_NE(std::string(outcome.by_rank[rank].message()).find(cause), std::string::npos)
        << "rank " << rank << ": " << outcome.by_rank[rank];
    EXPECT_GE(outcome.seconds_after_cause[rank], 0);
    EXPECT_LT(outcome.seconds_after_cause[rank], within_seconds) << "rank " << rank;
  }
}

TEST(TrainingFailure, ARankThatThrowsInStepThreeEndsAllAtOnce) {
  const Outcome outcome = Train(absl::Minutes(5), [](int rank, const auto& cause) {
    if (rank != 2) return true;
    cause();
    throw std::runtime_error("the disk is on fire");
  });
  ExpectOthersFail(outcome, 2, 0.2, "the disk is on fire");
  EXPECT_NE(std::string(outcome.status.message()).find("rank 2"), std::string::npos)
      << outcome.status;
}

TEST(TrainingFailure, ARankThatLeavesInStepThreeEndsAllAtOnce) {
  const Outcome outcome = Train(absl::Minutes(5), [](int rank, const auto& cause) {
    if (rank != 1) return true;
    cause();
    return false;
  });
  ExpectOthersFail(outcome, 1, 0.2, "rank 1");
}

TEST(TrainingFailure, ARankThatNeverArrivesEndsTheOthersWithinTwiceTheTimeOut) {
  const Outcome outcome = Train(absl::Milliseconds(400), [](int rank, const auto& cause) {
    if (rank != 3) return true;
    cause();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return true;
  });
  ExpectOthersFail(outcome, 3, 0.8, "3");
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded) << outcome.status;
}

TEST(TrainingFailure, ParallelizeAfterFullyShardIsRefused) {
  const absl::Status status = RunRanks(kRanks, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, Options().mesh);
    models::Llama model(Options().config);
    fsdp::FullyShard(model, mesh);
    tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan(/*sequence_parallel=*/false));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("FullyShard relies on its placement"), std::string::npos)
      << status;
}

}  // namespace
}  // namespace shardmesh::testing
