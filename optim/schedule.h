// SPDX-License-Identifier: Apache-2.0
//
// Learning rates over the steps of a training: plain values, asked step by step, or bound to an
// optimizer by an LrScheduler (lr_scheduler.h).
//
//   optim::CosineSchedule schedule = {.peak_lr = 3e-3, .total_steps = 100, .warmup_steps = 10};
//   optimizer.set_lr(schedule.At(step));
//
// All begin with a linear warm-up: with w = warmup_steps, step s (from 0) has (s + 1) / w of the
// peak while s < w, so no step has the rate 0 and step w - 1 has the whole. What follows, with
// n = total_steps, r = min_ratio, d = decay_steps:
//
//   | schedule | steps             | learning rate / peak_lr                         |
//   |----------|-------------------|-------------------------------------------------|
//   | Constant | w <= s            | 1                                               |
//   | Linear   | w <= s < n        | 1 - (1 - r) (s - w + 1) / (n - w)               |
//   |          | s >= n, s >= w    | r                                               |
//   | Cosine   | w <= s < n        | r + (1 - r) (1 + cos(pi (s - w + 1) / (n - w))) / 2 |
//   |          | s >= n, s >= w    | r                                               |
//   | Wsd      | w <= s < n - d    | 1                                               |
//   |          | n - d <= s < n    | 1 - (1 - r) (s - (n - d) + 1) / d, s >= w       |
//   |          | s >= n, s >= w    | r                                               |
//
// So step n - 1 has the ratio r. Where n <= w all n steps are warm-up, and nothing is divided by
// zero.
#ifndef SHARDMESH_OPTIM_SCHEDULE_H_
#define SHARDMESH_OPTIM_SCHEDULE_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace shardmesh::optim {

// Value types. Errors of At: throws Error(kInvalidArgument) naming the schedule and the value if
// `step` or a number of steps is negative, the rate is negative or not finite, or the ratio is not
// within 0 to 1.

/// The same rate after the warm-up.
struct ConstantSchedule {
  double peak_lr = 1e-3;
  int64_t warmup_steps = 0;

  double At(int64_t step) const;
};

/// A straight line down.
struct LinearSchedule {
  double peak_lr = 1e-3;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  double min_ratio = 0;

  double At(int64_t step) const;
};

/// Half a cosine.
struct CosineSchedule {
  double peak_lr = 1e-3;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;

  double At(int64_t step) const;
};

/// Warm-up, stable, decay: the peak until the last `decay_steps`, then a straight line down (Hu et
/// al., MiniCPM, section 4). A training may be prolonged from any step before the decay.
struct WsdSchedule {
  double peak_lr = 1e-3;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< At most total_steps.
  double min_ratio = 0;

  double At(int64_t step) const;
};

/// Any of them, or any struct with a peak_lr and At(step), whose rates grow with peak_lr. Value
/// type.
class Schedule {
 public:
  template <typename T>
  requires requires(const T& schedule) {
    { schedule.peak_lr } -> std::convertible_to<double>;
    { schedule.At(int64_t{0}) } -> std::convertible_to<double>;
  }
  Schedule(T schedule)  // NOLINT: implicit, as a schedule is what is meant.
      : peak_lr_(schedule.peak_lr), at_([schedule](int64_t step, double peak_lr) {
          T scaled = schedule;
          scaled.peak_lr = peak_lr;
          return static_cast<double>(scaled.At(step));
        }) {}

  double At(int64_t step) const { return at_(step, peak_lr_); }
  /// With another peak.
  double At(int64_t step, double peak_lr) const { return at_(step, peak_lr); }

 private:
  double peak_lr_;
  std::function<double(int64_t step, double peak_lr)> at_;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_SCHEDULE_H_
