// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/lr_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/testing/parameters.h"

namespace shardmesh::optim {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;

constexpr CosineSchedule kCosine = {.total_steps = 11, .warmup_steps = 3, .min_ratio = 0.2};

std::vector<nn::Parameter> MatrixAndBias() {
  return {nn::Parameter({3, 2}, DType::kF32, nn::Init::Constant(0)),
          nn::Parameter({3}, DType::kF32, nn::Init::Constant(0))};
}

TEST(LrScheduler, GivesEachGroupTheScheduleOfItsOwnRate) {
  AdamW optimizer(MatrixAndBias(), {.lr = 0.3},
                  {{.parameters = IsNormOrBias, .change = [](auto& o) { o.lr = 0.7; }}});
  LrScheduler scheduler(optimizer, kCosine);
  EXPECT_THAT(scheduler.base_lrs(), ElementsAre(0.3, 0.7));
  CosineSchedule slow = kCosine, fast = kCosine;
  slow.peak_lr = 0.3;
  fast.peak_lr = 0.7;
  for (int step = 0; step < 14; ++step) {
    EXPECT_EQ(scheduler.step(), step);
    // The very bits that a trainer without a scheduler sets.
    EXPECT_EQ(optimizer.lr(0), slow.At(step));
    EXPECT_EQ(optimizer.lr(1), fast.At(step));
    scheduler.Step();
  }
}

TEST(LrScheduler, GoesOnFromItsState) {
  AdamW optimizer(MatrixAndBias(), {.lr = 0.3});
  LrScheduler scheduler(optimizer, kCosine);
  for (int i = 0; i < 6; ++i) scheduler.Step();
  const StateDict saved = scheduler.State();
  EXPECT_EQ(saved.Integer("step"), 6);
  EXPECT_EQ(saved.Number("base_lrs.0"), 0.3);

  AdamW other(MatrixAndBias(), {.lr = 0.1});
  LrScheduler later(other, kCosine);
  StateDict state = later.State();
  for (const StateEntry& entry : state.entries()) entry.set(saved.Find(entry.name)->Get());
  EXPECT_EQ(other.lr(), optimizer.lr());
  scheduler.Step();
  later.Step();
  EXPECT_EQ(other.lr(), optimizer.lr());
  EXPECT_EQ(ErrorOf([&] { state.Find("step")->set(int64_t{-1}); }),
            "LrScheduler: step is given i64 -1, expected i64, 0 or more");
  EXPECT_EQ(ErrorOf([&] { state.Find("step")->set(1.0); }),
            "LrScheduler: step is given f64, expected i64, 0 or more");
  EXPECT_EQ(ErrorOf([&] { state.Find("base_lrs.0")->set(-0.5); }),
            "LrScheduler: base_lrs.0 is given f64 -0.5, expected f64, 0 or more, and finite");
}

TEST(LrScheduler, TakesAScheduleOfOnesOwn) {
  struct Halving {
    double peak_lr = 1;
    double At(int64_t step) const { return peak_lr * std::exp2(-static_cast<double>(step)); }
  };
  AdamW optimizer(MatrixAndBias(), {.lr = 4});
  LrScheduler scheduler(optimizer, Halving{});
  scheduler.Step();
  scheduler.Step();
  EXPECT_EQ(optimizer.lr(), 1);
  EXPECT_EQ(Schedule(Halving{.peak_lr = 8}).At(1), 4);
}

TEST(LrScheduler, RefusesAScheduleThatMakesNoSense) {
  AdamW optimizer(MatrixAndBias());
  EXPECT_EQ(ErrorOf([&] { LrScheduler(optimizer, LinearSchedule{.total_steps = -1}); }),
            "LinearSchedule: total_steps -1 is negative");
}

}  // namespace
}  // namespace shardmesh::optim
