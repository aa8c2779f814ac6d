// SPDX-License-Identifier: Apache-2.0
//
// A schedule bound to an optimizer: it sets the learning rate of each group, step by step, and is
// saved with it.
//
//   optim::LrScheduler scheduler(optimizer, optim::CosineSchedule{.total_steps = n});
//   for (...) {
//     optimizer.Step();
//     scheduler.Step();            // the rates of the next step
//   }
#ifndef SHARDMESH_OPTIM_LR_SCHEDULER_H_
#define SHARDMESH_OPTIM_LR_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "shardmesh/optim/optimizer.h"
#include "shardmesh/optim/schedule.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::optim {

/// Belongs to one rank. The optimizer must outlive it. Not copyable: states hold its address.
class LrScheduler {
 public:
  /// The peak of each group is the rate that the group has now, whatever peak the schedule has; the
  /// rates of step 0 are set. All groups follow one schedule. Local.
  /// Errors: as the schedule's.
  LrScheduler(Optimizer& optimizer, Schedule schedule);
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;

  /// Sets the rates of the next step, in place of what others have set. Local.
  void Step();
  int64_t step() const { return step_; }  ///< That whose rates are set.
  /// By group.
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  /// Live entries "step" and "base_lrs.<group>"; setting one sets the rates of the optimizer. The
  /// scheduler must outlive the result. What sets an entry throws Error(kInvalidArgument) naming it
  /// if the value is of another type, negative or not finite.
  StateDict State();

 private:
  void SetRates();

  Optimizer& optimizer_;
  Schedule schedule_;
  std::vector<double> base_lrs_;
  int64_t step_ = 0;
};

}  // namespace shardmesh::optim

#endif  // SHARDMESH_OPTIM_LR_SCHEDULER_H_
