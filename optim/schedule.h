// SPDX-License-Identifier: Apache-2.0
//
// Learning rates over the steps of a training.
//
//   optim::CosineSchedule schedule = {.peak_lr = 3e-3, .total_steps = 100, .warmup_steps = 10};
//   optimizer.set_lr(schedule.At(step));
#ifndef SHARDMESH_OPTIM_SCHEDULE_H_
#define SHARDMESH_OPTIM_SCHEDULE_H_

#include <cstdint>

namespace shardmesh::optim {

/// Linear warm-up, then half a cosine. With w = warmup_steps, n = total_steps, r = min_ratio:
///
///   | step s (from 0)   | learning rate / peak_lr                                      |
///   |-------------------|--------------------------------------------------------------|
///   | s < w             | (s + 1) / w                                                  |
///   | w <= s < n        | r + (1 - r) (1 + cos(pi (s - w + 1) / (n - w))) / 2          |
///   | s >= n, s >= w    | r                                                            |
///
/// So step n - 1 has the ratio r. Where n <= w all n steps are warm-up, and nothing is divided by
/// zero. Value type.
struct CosineSchedule {
  double peak_lr = 1e-3;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;

  /// Errors: throws Error(kInvalidArgument) naming the value if `step` or a number of steps is
  /// negative, the rate is negative or not finite, or the ratio is not within 0 to 1.
  double At(int64_t step) const;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_SCHEDULE_H_
