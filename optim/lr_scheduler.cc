// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/lr_scheduler.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"

namespace shardmesh::optim {

LrScheduler::LrScheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  for (int group = 0; group < optimizer.num_groups(); ++group) {
    base_lrs_.push_back(optimizer.lr(group));
  }
  SetRates();
}

void LrScheduler::SetRates() {
  for (int group = 0; group < optimizer_.num_groups(); ++group) {
    optimizer_.set_lr(group, schedule_.At(step_, base_lrs_[group]));
  }
}

void LrScheduler::Step() {
  ++step_;
  SetRates();
}

StateDict LrScheduler::State() {
  StateDict state;
  StateEntry step;
  step.name = "step";
  step.get = [this] { return StateValue(step_); };
  step.set = [this](const StateValue& value) {
    const auto* given = std::get_if<int64_t>(&value);
    if (given == nullptr || *given < 0) {
      ThrowInvalid("LrScheduler: step is given ", DescribeStateValue(value),
                   given == nullptr ? "" : absl::StrCat(" ", *given), ", expected i64, 0 or more");
    }
    step_ = *given;
    SetRates();
  };
  state.Add(std::move(step));
  for (size_t group = 0; group < base_lrs_.size(); ++group) {
    StateEntry base;
    base.name = absl::StrCat("base_lrs.", group);
    base.get = [this, group] { return StateValue(base_lrs_[group]); };
    base.set = [this, group, name = base.name](const StateValue& value) {
      const auto* given = std::get_if<double>(&value);
      if (given == nullptr || !(*given >= 0) || std::isinf(*given)) {
        ThrowInvalid("LrScheduler: ", name, " is given ", DescribeStateValue(value),
                     given == nullptr ? "" : absl::StrCat(" ", *given),
                     ", expected f64, 0 or more, and finite");
      }
      base_lrs_[group] = *given;
      SetRates();
    };
    state.Add(std::move(base));
  }
  return state;
}

}  // namespace shardmesh::optim
