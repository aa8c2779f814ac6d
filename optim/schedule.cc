// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/elementary.h"

namespace shardmesh::optim {

double CosineSchedule::At(int64_t step) const {
  if (step < 0) ThrowInvalid("CosineSchedule: step ", step, " is negative");
  if (total_steps < 0) ThrowInvalid("CosineSchedule: total_steps ", total_steps, " is negative");
  if (warmup_steps < 0) ThrowInvalid("CosineSchedule: warmup_steps ", warmup_steps, " is negative");
  if (!(peak_lr >= 0) || std::isinf(peak_lr)) {
    ThrowInvalid("CosineSchedule: peak_lr is ", peak_lr, ", expected 0 or more, and finite");
  }
  if (!(min_ratio >= 0 && min_ratio <= 1)) {
    ThrowInvalid("CosineSchedule: min_ratio is ", min_ratio, ", expected 0 to 1");
  }
  if (step < warmup_steps) {
    return peak_lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return peak_lr * min_ratio;
  const double progress = static_cast<double>(step - warmup_steps + 1) /
                          static_cast<double>(total_steps - warmup_steps);
  const double cosine = 0.5 * (1 + elementary::Cos(std::numbers::pi * progress));
  return peak_lr * (min_ratio + (1 - min_ratio) * cosine);
}

}  // namespace shardmesh::optim
