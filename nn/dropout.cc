// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/dropout.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/checkpoint.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::nn {

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) ThrowInvalid("Dropout: probability ", p, " is not in [0, 1]");
}

Outputs Dropout::Forward(const Inputs& inputs) {
  if (!training() || p_ == 0) return inputs[0];
  if (!seed_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Dropout ", FullName(),
          " has no seed: call Initialize on the model (values that were loaded stay)");
  }
  const RandomKey key = OnceInCheckpoint(inputs[0].mesh(), [this] {
    // No parameter's name ends like this, so initial values come from other random streams.
    const std::string name = FullName() + "/dropout";
    return RandomKey{.seed = *seed_, .stream = RandomStreamOf(name, /*salt=*/calls_++)};
  });
  return shardmesh::Dropout(inputs[0], p_, key);
}

void Dropout::AddOwnState(StateDict& state) {
  StateEntry seed;
  seed.name = "seed";
  seed.get = [this] { return StateValue(static_cast<int64_t>(seed_.value_or(0))); };
  seed.set = [this](StateValue value) { seed_ = static_cast<uint64_t>(std::get<int64_t>(value)); };
  state.Add(std::move(seed));
  state.Bind("calls", &calls_);
}

void Dropout::Reseed(uint64_t seed) {
  seed_ = seed;
  calls_ = 0;
}

}  // namespace shardmesh::nn
