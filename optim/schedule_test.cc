// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/schedule.h"

#include <gtest/gtest.h>

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"

namespace shardmesh::optim {
namespace {

TEST(CosineSchedule, GivesTheRatesOfTheGoldenTraining) {
  ExecutionContext context;
  Tensor expected = Tensor::Empty(context, {10}, DType::kF64);
  const auto file = SafetensorsFile::Open("tests/testdata/golden/llama/plain/data.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Read("learning_rates", expected).ok());
  const CosineSchedule schedule = {
      .peak_lr = 0.03, .total_steps = 10, .warmup_steps = 3, .min_ratio = 0.1};
  for (int step = 0; step < 10; ++step) {
    EXPECT_NEAR(schedule.At(step), expected.data<double>()[step], 1e-17) << step;
  }
}

TEST(CosineSchedule, IsRightAtItsEdges) {
  const struct {
    int64_t total, warmup, step;
    double ratio;
  } cases[] = {
      {100, 10, 0, 0.1},   // Warm-up begins with a part, not with nothing,
      {100, 10, 9, 1},     // ends with the whole,
      {100, 10, 54, 0.6},  // and half of the rest later the cosine is at its middle.
      {100, 10, 99, 0.2},  // The last step has the smallest rate,
      {100, 10, 100, 0.2}, {100, 10, 10000, 0.2},  // and what comes after it too.
      {4, 0, 1, 0.6},                              // No warm-up.
      {4, 0, 3, 0.2},      {1, 0, 0, 0.2},         // One step is the last one.
      {5, 10, 0, 0.1},     {5, 10, 4, 0.5},        // Steps end within the warm-up,
      {5, 10, 9, 1},                               // which goes on for who goes on.
      {5, 10, 10, 0.2},    {10, 10, 9, 1},        {10, 10, 10, 0.2}, {11, 10, 10, 0.2},
  };
  for (const auto& [total, warmup, step, ratio] : cases) {
    const CosineSchedule schedule = {
        .peak_lr = 7, .total_steps = total, .warmup_steps = warmup, .min_ratio = 0.2};
    EXPECT_NEAR(schedule.At(step), 7 * ratio, 1e-14) << total << " " << warmup << " " << step;
  }
}

TEST(CosineSchedule, FallsAfterTheWarmUpAndRisesInIt) {
  const CosineSchedule schedule = {.peak_lr = 1, .total_steps = 31, .warmup_steps = 7};
  for (int step = 1; step < 31; ++step) {
    if (step < 7) {
      EXPECT_GT(schedule.At(step), schedule.At(step - 1)) << step;
    } else {
      EXPECT_LT(schedule.At(step), schedule.At(step - 1)) << step;
    }
  }
  EXPECT_THROW(schedule.At(-1), Error);
}

TEST(CosineSchedule, NamesTheFieldThatMakesNoSense) {
  const auto message = [](const CosineSchedule& schedule) {
    try {
      schedule.At(0);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({.total_steps = -3}), "CosineSchedule: total_steps -3 is negative");
  EXPECT_EQ(message({.warmup_steps = -1}), "CosineSchedule: warmup_steps -1 is negative");
  for (const double ratio : {-0.1, 7.0, std::nan("")}) {
    EXPECT_NE(message({.min_ratio = ratio}).find("min_ratio is "), std::string::npos) << ratio;
  }
  for (const double rate : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_NE(message({.peak_lr = rate}).find("peak_lr is "), std::string::npos) << rate;
  }
  EXPECT_EQ(message({.peak_lr = 0}), "no error");
}

}  // namespace
}  // namespace shardmesh::optim
