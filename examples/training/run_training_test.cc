// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/run_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/examples/training/interrupt.h"
#include "shardmesh/examples/training/mesh_flag.h"

namespace shardmesh::examples {
namespace {

ByteText Fox() {
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    absl::StrAppend(&bytes, "the quick brown fox jumps over the lazy dog ", i * i, " times\n");
  }
  return ByteText(bytes);
}

TrainOptions Small(const char* mesh) {
  TrainOptions options;
  options.mesh = *ParseMesh(mesh);
  options.model.hidden_size = 32;
  options.model.intermediate_size = 44;
  options.model.num_hidden_layers = 2;
  options.model.num_attention_heads = 4;
  options.model.num_key_value_heads = 2;
  options.steps = 30;
  options.batch = 7;
  options.sequence = 24;
  options.optimizer.lr = 1e-2;
  options.sample_bytes = 40;
  return options;
}

struct Recorder : TrainObserver {
  void OnStep(const StepMetrics& metrics) override {
    steps.push_back(metrics);
    if (on_step) on_step();
  }
  void OnTrained(const std::vector<std::vector<int64_t>>& memory_peaks) override {
    peaks = memory_peaks;
  }
  void OnSample(const std::string& text) override { sample = text; }

  std::function<void()> on_step;
  std::vector<StepMetrics> steps;
  std::vector<std::vector<int64_t>> peaks;
  std::string sample;
};

Recorder RecordingOf(const TrainOptions& options) {
  Recorder recorder;
  const absl::Status status = RunTraining(options, Fox(), {&recorder});
  EXPECT_TRUE(status.ok()) << status;
  return recorder;
}

TEST(RunTraining, LearnsTheSameAndWritesTheSameOnEveryMesh) {
  const Recorder alone = RecordingOf(Small("dp=1"));
  ASSERT_EQ(alone.steps.size(), 30u);
  EXPECT_NEAR(alone.steps.front().loss, std::log(256), 0.05);
  EXPECT_LT(alone.steps.back().loss, 2.5);
  EXPECT_EQ(alone.sample.size(), 40u);
  for (const char* mesh : {"dp=2,tp=2", "tp=2,dp=2", "dp_replicate=2,dp=2", "dp=3", "tp=2"}) {
    const Recorder recorder = RecordingOf(Small(mesh));
    for (size_t i = 0; i < alone.steps.size(); ++i) {
      EXPECT_NEAR(recorder.steps[i].loss, alone.steps[i].loss, 1e-4) << mesh << ", step " << i;
      EXPECT_NEAR(recorder.steps[i].grad_norm, alone.steps[i].grad_norm, 1e-3) << mesh;
    }
    EXPECT_EQ(recorder.sample, alone.sample) << mesh;
  }
}

TEST(RunTraining, TakesAnyPrecisionAndSequenceParallelism) {
  const Recorder f32 = RecordingOf(Small("dp=2,tp=2"));
  for (const Precision precision : {Precision::kF64, Precision::kBF16}) {
    TrainOptions options = Small("dp=2,tp=2");
    options.precision = precision;
    options.sequence_parallel = true;
    const Recorder recorder = RecordingOf(options);
    const double tolerance = precision == Precision::kBF16 ? 0.1 : 1e-4;
    EXPECT_NEAR(recorder.steps.back().loss, f32.steps.back().loss, tolerance);
  }
}

// All that moves is what plans, FullyShard and losses ask for.
TEST(RunTraining, ComputesTheSameWithoutImplicitMoves) {
  for (const char* const mesh : {"dp=2,tp=2", "dp_replicate=2,dp=2", "tp=2", "dp=3"}) {
    for (const bool sequence_parallel : {false, true}) {
      TrainOptions options = Small(mesh);
      options.sequence_parallel = sequence_parallel;
      const Recorder automatic = RecordingOf(options);
      options.explicit_moves = true;
      const Recorder recorder = RecordingOf(options);
      EXPECT_EQ(recorder.steps.back().loss, automatic.steps.back().loss) << mesh;
    }
  }
}

TEST(RunTraining, CountsTheStepAloneAndOneMemoryPeakPerRank) {
  const Recorder recorder = RecordingOf(Small("dp=2,tp=2"));
  const StepMetrics& last = recorder.steps.back();
  EXPECT_EQ(last.peak_bytes.size(), 4u);
  EXPECT_EQ(recorder.peaks.size(), 4u);
  EXPECT_EQ(last.peak_bytes, recorder.steps[2].peak_bytes);
  for (const auto& [what, total] : last.traffic) {
    EXPECT_NE(what.axis, "world") << what.op;  // The measurements' own.
  }
  EXPECT_DOUBLE_EQ(last.tokens_per_s, 7 * 24 / (last.step_ms * 1e-3));
  const auto sum = [](const Breakdown& parts) {
    double total = 0;
    for (const auto& [part, ms] : parts) {
      EXPECT_GT(ms, 0) << part;
      total += ms;
    }
    return total;
  };
  EXPECT_EQ(last.phases.size(), 4);
  EXPECT_EQ(last.activities.size(), 4);
  EXPECT_NEAR(sum(last.activities), sum(last.phases), 1e-9);
  EXPECT_GE(last.step_ms, sum(last.phases) * (1 - 1e-9));
}

TEST(RunTraining, EndsWithTheErrorOfWhatDoesNotFit) {
  const auto error_of = [](const TrainOptions& options, const ByteText& text) {
    const absl::Status status = RunTraining(options, text, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error_of(Small("dp=2"), ByteText("too short")),
            "the text has 9 bytes; a sequence of 24 and its next byte need at least 25");
  EXPECT_TRUE(absl::StrContains(error_of(Small("tp=3"), Fox()), "heads"));
  TrainOptions options = Small("dp=2");
  options.steps = -1;
  EXPECT_EQ(error_of(options, Fox()), "steps is -1; expected at least 1");
}

TEST(RunTraining, StopsAtTheStepWhoseLossIsNotFinite) {
  TrainOptions options = Small("dp=2,tp=2");
  options.optimizer.lr = 1e6;  // The largest that is accepted; with f32 the logits overflow.
  options.warmup_steps = 0;
  options.optimizer.weight_decay = 1e6;
  Recorder recorder;
  const absl::Status status = RunTraining(options, Fox(), {&recorder});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  ASSERT_FALSE(recorder.steps.empty());
  ASSERT_LT(recorder.steps.size(), 30u);
  for (size_t i = 0; i + 1 < recorder.steps.size(); ++i) {
    EXPECT_TRUE(std::isfinite(recorder.steps[i].loss)) << i;
  }
  EXPECT_TRUE(absl::StartsWith(
      status.message(),
      absl::StrCat("training stops at step ", recorder.steps.size(), " of 30: the ")))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "(learning rate there: ")) << status;
  EXPECT_EQ(recorder.peaks.size(), 4u);
  EXPECT_EQ(recorder.sample, "");
}

TEST(RunTraining, EndsWhenAnObserverThrows) {
  Recorder recorder;
  recorder.on_step = [] { Throw(absl::StatusCode::kDataLoss, "the disk is full"); };
  const absl::Status status = RunTraining(Small("dp=2,tp=2"), Fox(), {&recorder});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the disk is full")) << status;
  EXPECT_EQ(recorder.steps.size(), 1u);
}

// The last test: InterruptSignal() keeps its value.
TEST(RunTraining, EndsCleanlyBetweenTwoStepsWhenInterrupted) {
  WatchInterrupt();
  EXPECT_EQ(InterruptSignal(), 0);
  Recorder recorder;
  recorder.on_step = [&] {
    if (recorder.steps.size() == 3) std::raise(SIGTERM);
  };
  const absl::Status status = RunTraining(Small("dp=2,tp=2"), Fox(), {&recorder});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(status.message(), "interrupted by SIGTERM after step 3 of 30");
  EXPECT_EQ(recorder.steps.size(), 3u);
  EXPECT_EQ(recorder.peaks.size(), 4u);
  EXPECT_EQ(recorder.sample, "");
}

}  // namespace
}  // namespace shardmesh::examples
