// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/elementary.h"

namespace shardmesh::optim {
namespace {

void CheckSteps(const char* schedule, const char* what, int64_t steps) {
  if (steps < 0) ThrowInvalid(schedule, ": ", what, " ", steps, " is negative");
}

void CheckRate(const char* schedule, double peak_lr) {
  if (peak_lr >= 0 && !std::isinf(peak_lr)) return;
  ThrowInvalid(schedule, ": peak_lr is ", peak_lr, ", expected 0 or more, and finite");
}

// Of those that end.
template <typename Schedule>
void Check(const char* name, const Schedule& schedule, int64_t step) {
  CheckSteps(name, "step", step);
  CheckSteps(name, "total_steps", schedule.total_steps);
  CheckSteps(name, "warmup_steps", schedule.warmup_steps);
  CheckRate(name, schedule.peak_lr);
  if (!(schedule.min_ratio >= 0 && schedule.min_ratio <= 1)) {
    ThrowInvalid(name, ": min_ratio is ", schedule.min_ratio, ", expected 0 to 1");
  }
}

double WarmUp(double peak_lr, int64_t step, int64_t warmup_steps) {
  return peak_lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
}

// From the step before `begin`, where it is the peak, to that before `end`, where it is the ratio.
double Line(double peak_lr, double min_ratio, int64_t step, int64_t begin, int64_t end) {
  const double progress = static_cast<double>(step - begin + 1) / static_cast<double>(end - begin);
  return peak_lr * (1 - (1 - min_ratio) * progress);
}

}  // namespace

double ConstantSchedule::At(int64_t step) const {
  CheckSteps("ConstantSchedule", "step", step);
  CheckSteps("ConstantSchedule", "warmup_steps", warmup_steps);
  CheckRate("ConstantSchedule", peak_lr);
  return step < warmup_steps ? WarmUp(peak_lr, step, warmup_steps) : peak_lr;
}

double LinearSchedule::At(int64_t step) const {
  Check("LinearSchedule", *this, step);
  if (step < warmup_steps) return WarmUp(peak_lr, step, warmup_steps);
  if (step >= total_steps) return peak_lr * min_ratio;
  return Line(peak_lr, min_ratio, step, warmup_steps, total_steps);
}

double CosineSchedule::At(int64_t step) const {
  Check("CosineSchedule", *this, step);
  if (step < warmup_steps) return WarmUp(peak_lr, step, warmup_steps);
  if (step >= total_steps) return peak_lr * min_ratio;
  const double progress = static_cast<double>(step - warmup_steps + 1) /
                          static_cast<double>(total_steps - warmup_steps);
  const double cosine = 0.5 * (1 + elementary::Cos(std::numbers::pi * progress));
  return peak_lr * (min_ratio + (1 - min_ratio) * cosine);
}

double WsdSchedule::At(int64_t step) const {
  Check("WsdSchedule", *this, step);
  if (decay_steps < 0 || decay_steps > total_steps) {
    ThrowInvalid("WsdSchedule: decay_steps is ", decay_steps, ", expected 0 to total_steps ",
                 total_steps);
  }
  if (step < warmup_steps) return WarmUp(peak_lr, step, warmup_steps);
  if (step >= total_steps) return peak_lr * min_ratio;
  const int64_t begin = total_steps - decay_steps;
  return step < begin ? peak_lr : Line(peak_lr, min_ratio, step, begin, total_steps);
}

}  // namespace shardmesh::optim
