// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/report.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cerrno>
#include <sstream>
#include <streambuf>

#include "absl/strings/match.h"

namespace shardmesh::examples {
namespace {

TrainOptions Tiny(int64_t steps) {
  TrainOptions options;
  options.model.hidden_size = 16;
  options.model.intermediate_size = 24;
  options.model.num_hidden_layers = 2;
  options.model.num_attention_heads = 2;
  options.model.num_key_value_heads = 2;
  options.steps = steps;
  options.batch = 3;
  options.sequence = 5;
  options.sample_bytes = 4;
  return options;
}

std::string ReportOf(int64_t steps, bool is_terminal) {
  std::ostringstream out;
  Report report(out, is_terminal);
  const absl::Status status =
      RunTraining(Tiny(steps), ByteText("the quick brown fox jumps over the lazy dog"), {&report});
  EXPECT_TRUE(status.ok()) << status;
  return out.str();
}

int64_t CountOf(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(DescribeMesh, DrawsTheLastAxisAcross) {
  EXPECT_EQ(DescribeMesh({{"dp", 2}, {"tp", 3}}),
            "mesh [dp=2, tp=3]: 6 ranks\n"
            "        tp 0  tp 1  tp 2\n"
            "  dp 0     0     1     2\n"
            "  dp 1     3     4     5\n");
  EXPECT_EQ(DescribeMesh({{"dp", 2}}),
            "mesh [dp=2]: 2 ranks\n"
            "  dp 0  dp 1\n"
            "     0     1\n");
  EXPECT_EQ(DescribeMesh({{"dp_replicate", 2}, {"dp", 1}, {"tp", 2}}),
            "mesh [dp_replicate=2, dp=1, tp=2]: 4 ranks\n"
            "                        tp 0  tp 1\n"
            "  dp_replicate 0  dp 0     0     1\n"
            "  dp_replicate 1  dp 0     2     3\n");
}

TEST(DescribeTraffic, AddsUp) {
  const TrafficTotals traffic = {{{"dp", "all_gather", "fsdp"}, {.count = 5, .bytes = 1200}},
                                 {{"tp", "all_reduce", "linear"}, {.count = 16, .bytes = 90}}};
  EXPECT_EQ(DescribeTraffic(traffic),
            "  axis   kind        for     count  bytes\n"
            "  dp     all_gather  fsdp        5   1200\n"
            "  tp     all_reduce  linear     16     90\n"
            "  total                         21   1290\n");
  EXPECT_EQ(DescribeTraffic({}), "  none\n");
}

TEST(DescribeMemory, LeavesOutWhatNobodyUses) {
  std::vector<std::vector<int64_t>> peaks(2, std::vector<int64_t>(kNumMemoryCategories, 0));
  peaks[0][static_cast<int>(MemoryCategory::kParameters)] = 3 << 19;
  peaks[1][static_cast<int>(MemoryCategory::kOptimizer)] = 1 << 20;
  EXPECT_EQ(DescribeMemory(peaks),
            "  rank  parameters  optimizer\n"
            "  0           1.50       0.00\n"
            "  1           0.00       1.00\n");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("a\nb\x1b[2J\r\xff~"), "a\nb\\x1b[2J\\x0d\\xff~");
}

TEST(Report, WritesWholeLinesForALogFile) {
  const std::string text = ReportOf(/*steps=*/45, /*is_terminal=*/false);
  EXPECT_FALSE(absl::StrContains(text, "\r"));
  // The first, every second, the last.
  EXPECT_EQ(CountOf(text, "\nstep "), 1 + 22 + 1);
  EXPECT_TRUE(absl::StrContains(text, "\nstep    1/45  loss 5.")) << text;
  EXPECT_TRUE(absl::StrContains(text, "\nstep   45/45  loss ")) << text;
}

TEST(Report, WritesOverTheLineOfAPassingStepOnATerminal) {
  const std::string text = ReportOf(/*steps=*/45, /*is_terminal=*/true);
  EXPECT_EQ(CountOf(text, "\r\033[Kstep "), 45);
  EXPECT_EQ(CountOf(text, " per rank\n"), 1 + 22 + 1);
}

StepMetrics Step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 9 - static_cast<double>(step);
  metrics.step_ms = 250;
  metrics.peak_bytes = {1000, 1001};
  metrics.traffic = {{{"tp", "all_reduce", "linear"}, {.count = 2, .bytes = 64}}};
  // The first step is not like the others.
  metrics.phases = {{"forward", step == 0 ? 1000 : 3}, {"backward", 1}};
  metrics.activities = {{"GEMM", 1}, {"dispatch", step == 0 ? 1000 : 1}};
  return metrics;
}

std::string SummaryOf(int64_t steps) {
  std::ostringstream out;
  Report report(out, /*is_terminal=*/false);
  for (int64_t step = 0; step < steps; ++step) report.OnStep(Step(step));
  report.OnTrained(
      std::vector<std::vector<int64_t>>(2, std::vector<int64_t>(kNumMemoryCategories)));
  return out.str();
}

TEST(Report, SumsUpLossAndTimeWithoutTheFirstStep) {
  const std::string one = SummaryOf(1);
  EXPECT_TRUE(absl::StrContains(one, "loss: 9.0000 at first, 9.0000 nats per byte in the last 1 "));
  EXPECT_TRUE(
      absl::StrContains(one, "time: 1 steps in 0.2 s; rank 0: forward 100 %, backward 0 %"));
  const std::string eight = SummaryOf(8);
  EXPECT_TRUE(
      absl::StrContains(eight, "loss: 9.0000 at first, 4.0000 nats per byte in the last 5 "));
  EXPECT_TRUE(
      absl::StrContains(eight, "time: 8 steps in 2.0 s; rank 0: forward 75 %, backward 25 %"));
  EXPECT_TRUE(absl::StrContains(eight, "of that GEMM 50 %, dispatch 50 %\n")) << eight;
}

struct NullBuffer : std::streambuf {
  int overflow(int c) override { return c; }
};

// Every step's metrics were kept, 1.9 KB each.
TEST(Report, DoesNotGrowWithTheNumberOfSteps) {
  NullBuffer buffer;
  std::ostream out(&buffer);
  Report report(out, /*is_terminal=*/true);
  for (int64_t step = 0; step < 10; ++step) report.OnStep(Step(step));
  const size_t before = ::mallinfo2().uordblks;
  for (int64_t step = 10; step < 20'000; ++step) report.OnStep(Step(step));
  EXPECT_LT(::mallinfo2().uordblks, before + 100'000);
}

struct FullBuffer : std::streambuf {
  int sync() override {
    errno = ENOSPC;
    return -1;
  }
  int overflow(int c) override { return c; }
};

// What could not be written was lost without a word.
TEST(Report, EndsTheRunWithTheReasonWhenItCannotBeWritten) {
  FullBuffer buffer;
  std::ostream out(&buffer);
  Report report(out, /*is_terminal=*/false);
  const absl::Status status =
      RunTraining(Tiny(2), ByteText("the quick brown fox jumps over the lazy dog"), {&report});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(
      absl::StrContains(status.message(), "cannot write the report: No space left on device"))
      << status;
}

TEST(Report, ShowsLayoutsTrafficMemoryAndSample) {
  const std::string text = ReportOf(/*steps=*/2, /*is_terminal=*/false);
  for (const char* part : {
           "mesh [dp=2, tp=2]: 4 ranks\n",
           "  model.layers.*.mlp.up_proj.weight               f32[24,16]   [S(0)/1, S(0)/0]  "
           "[0:6, 0:16]      x 2\n",
           "collectives of rank 0 in the last step:\n",
           "reduce_scatter",
           "unsharded_parameters",
           "the model writes:\n",
       }) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace shardmesh::examples
