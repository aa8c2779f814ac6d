// SPDX-License-Identifier: Apache-2.0
//
// How much of a time-out a waiter has used up.
//
//   Patience patience(timeout);
//   while (!has_news()) {
//     condition.wait_until(lock, patience.NextLook());
//     if (!has_news() && patience.IsExhausted()) return Fail(...);
//   }
#ifndef SHARDMESH_COMM_INTERNAL_PATIENCE_H_
#define SHARDMESH_COMM_INTERNAL_PATIENCE_H_

#include <algorithm>
#include <chrono>

namespace shardmesh::internal {

/// Counts time between looks at the clock, which are meant to be a sixteenth of the time-out apart.
///
/// A look that comes much later than that means that the process did not run: a signal, a debugger
/// or other programs held it up, and the awaited peer as well. Such time does not count, and one
/// more look follows before patience ends. At most kMaxLateLooks are forgiven, so every wait ends.
/// A busy machine wakes a thread up to kUsualDelay late: that counts like other time.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLooks = 16;
  static constexpr int kMaxLateLooks = 32;
  static constexpr std::chrono::milliseconds kUsualDelay{100};

  explicit Patience(Clock::duration timeout, Clock::time_point now = Clock::now())
      : left_(timeout), step_(std::max(timeout / kLooks, Clock::duration(1))), last_look_(now) {}

  /// When to look at the clock again.
  Clock::time_point NextLook() const { return last_look_ + step_; }

  /// Looks at the clock: whether the time-out has passed.
  bool IsExhausted(Clock::time_point now = Clock::now()) {
    const Clock::duration elapsed = now - last_look_;
    last_look_ = now;
    if (elapsed <= 2 * step_ + kUsualDelay) {
      left_ -= elapsed;
    } else if (++late_looks_ > kMaxLateLooks) {
      left_ -= step_;
    }
    return left_ <= Clock::duration(0);
  }

 private:
  Clock::duration left_;
  Clock::duration step_;
  Clock::time_point last_look_;
  int late_looks_ = 0;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_PATIENCE_H_
