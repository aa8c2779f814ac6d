// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(Schedules, AreRightAtTheirEdges) {
  const ConstantSchedule constant = {.peak_lr = 8, .warmup_steps = 4};
  const LinearSchedule line = {
      .peak_lr = 8, .total_steps = 12, .warmup_steps = 4, .min_ratio = 0.25};
  const WsdSchedule wsd = {
      .peak_lr = 8, .total_steps = 20, .warmup_steps = 4, .decay_steps = 4, .min_ratio = 0.5};
  const struct {
    Schedule schedule;
    int64_t step;
    double rate;
  } rows[] = {
      // Warm-up begins with a part and ends with the whole, in all of them.
      {constant, 0, 2},
      {line, 0, 2},
      {wsd, 0, 2},
      {constant, 3, 8},
      {line, 3, 8},
      {wsd, 3, 8},
      {line, 4, 7.25},  // An eighth of the way from 8 to 2,
      {line, 7, 5},
      {line, 11, 2},  // half of it, and all, in the last step;
      {line, 12, 2},
      {line, 99, 2},  // nothing follows.
      {constant, 4, 8},
      {constant, 1000000, 8},
      {wsd, 4, 8},
      {wsd, 15, 8},  // Stable until four steps before the end,
      {wsd, 16, 7},
      {wsd, 17, 6},
      {wsd, 19, 4},  // which go down to a half.
      {wsd, 20, 4},
      {wsd, 99, 4},
      {ConstantSchedule{.peak_lr = 3}, 0, 3},
      {LinearSchedule{.peak_lr = 3, .total_steps = 3}, 0, 2},
      {LinearSchedule{.peak_lr = 3, .total_steps = 3}, 2, 0},
      {LinearSchedule{.peak_lr = 3, .total_steps = 2, .warmup_steps = 3}, 1, 2},
      {LinearSchedule{.peak_lr = 3, .total_steps = 2, .warmup_steps = 3}, 3, 0},
      {WsdSchedule{.peak_lr = 3, .total_steps = 5}, 4, 3},  // No decay.
      {WsdSchedule{.peak_lr = 3, .total_steps = 5}, 5, 0},
      {WsdSchedule{.peak_lr = 3, .total_steps = 3, .decay_steps = 3}, 0, 2},  // Nothing else.
      {WsdSchedule{.peak_lr = 4, .total_steps = 4, .warmup_steps = 2, .decay_steps = 4}, 2, 1},
  };
  for (const auto& [schedule, step, rate] : rows) {
    EXPECT_NEAR(schedule.At(step), rate, 1e-14) << step;
    EXPECT_NEAR(schedule.At(step, 2), 2 * schedule.At(step, 1), 1e-14) << step;  // Another peak.
  }
}

TEST(Schedules, NameTheFieldThatMakesNoSense) {
  const auto message = [](const Schedule& schedule, int64_t step = 0) {
    try {
      schedule.At(step);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(ConstantSchedule{}, -1), "ConstantSchedule: step -1 is negative");
  EXPECT_EQ(message(ConstantSchedule{.warmup_steps = -2}),
            "ConstantSchedule: warmup_steps -2 is negative");
  EXPECT_EQ(message(ConstantSchedule{.peak_lr = -1}),
            "ConstantSchedule: peak_lr is -1, expected 0 or more, and finite");
  EXPECT_EQ(message(LinearSchedule{.total_steps = -3}),
            "LinearSchedule: total_steps -3 is negative");
  EXPECT_EQ(message(LinearSchedule{.min_ratio = 1.5}),
            "LinearSchedule: min_ratio is 1.5, expected 0 to 1");
  EXPECT_EQ(message(WsdSchedule{.total_steps = 5, .decay_steps = 6}),
            "WsdSchedule: decay_steps is 6, expected 0 to total_steps 5");
  EXPECT_EQ(message(WsdSchedule{.total_steps = 5, .decay_steps = -1}),
            "WsdSchedule: decay_steps is -1, expected 0 to total_steps 5");
  EXPECT_EQ(message(WsdSchedule{.peak_lr = std::nan("")}),
            "WsdSchedule: peak_lr is nan, expected 0 or more, and finite");
}

}  // namespace
}  // namespace shardmesh::optim
