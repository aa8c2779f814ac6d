// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/ema.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/optim/internal/optimizer_state.h"
#include "shardmesh/optim/internal/tiles.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {

Ema::Ema(const std::vector<nn::Parameter>& parameters) {
  std::unordered_set<const void*> seen;
  for (const nn::Parameter& parameter : parameters) {
    if (!parameter) ThrowInvalid("Ema: one of the parameters is none");
    if (!IsFloating(parameter.dtype())) {
      ThrowInvalid("Ema: parameter ", parameter.ToString(), " is not floating-point");
    }
    if (!seen.insert(parameter.id()).second) continue;
    parameters_.push_back(parameter);
    averages_.push_back(internal::CopyOf(parameter));
  }
}

void Ema::CheckNotSwapped(const char* user) const {
  if (!is_swapped_) return;
  Throw(absl::StatusCode::kFailedPrecondition, user,
        ": the parameters have the averages now; end the Swap first");
}

void Ema::CheckReady(const char* user) const {
  CheckNotSwapped(user);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (averages_[i].layout() == parameters_[i].layout()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, user, ": parameter ", parameters_[i].ToString(),
          " has moved; its average is ", averages_[i].layout().ToString(),
          "; call Relayout() first");
  }
}

void Ema::Update(double decay) {
  if (!(decay >= 0 && decay <= 1)) ThrowInvalid("Ema: decay is ", decay, ", expected 0 to 1");
  CheckReady("Ema::Update");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DTensor& value = parameters_[i].data();
    ExecutionContext& context = value.mesh().context();
    const auto blend = [&](std::vector<Tensor>& tile) {
      ops::BinaryInto(context, BinaryOp::kMul, tile[0], decay);
      ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, tile[1], 1 - decay), tile[0]);
    };
    internal::ForTiles({averages_[i].local(), value.local()}, blend);
  }
  ++num_updates_;
}

void Ema::Exchange() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DTensor& data = parameters_[i].data();
    const DTensor value(data.mesh(), data.layout(), data.local());
    parameters_[i].SetData(averages_[i]);
    averages_[i] = value;
  }
  is_swapped_ = !is_swapped_;
}

Ema::Scope::Scope(Ema& ema) : ema_(ema) { ema_.Exchange(); }
Ema::Scope::~Scope() { ema_.Exchange(); }

Ema::Scope Ema::Swap() {
  CheckReady("Ema::Swap");
  return Scope(*this);
}

void Ema::Relayout() {
  CheckNotSwapped("Ema::Relayout");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (averages_[i].layout() == parameters_[i].layout()) continue;
    averages_[i] = internal::MovedTo(averages_[i], parameters_[i].layout());
  }
}

StateDict Ema::State() {
  CheckNotSwapped("Ema::State");
  internal::CheckNamesAreUnique("Ema", parameters_);
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    StateEntry entry;
    entry.name = absl::StrCat("average.", parameters_[i].name());
    entry.get = [this, i] { return StateValue(averages_[i]); };
    entry.set = [this, i](const StateValue& value) {
      averages_[i] = internal::TensorBeside(parameters_[i], "Ema", "the average", value);
    };
    state.Add(std::move(entry));
  }
  state.Bind("num_updates", &num_updates_);
  return state;
}

}  // namespace shardmesh::optim
