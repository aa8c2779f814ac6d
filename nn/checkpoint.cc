// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/checkpoint.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"

namespace shardmesh::nn {
namespace {

// Lives as long as the module whose locals() hold it.
struct Life {};

const DTensor* FirstTensor(const Inputs& inputs) {
  const auto first = std::find_if(inputs.begin(), inputs.end(),
                                  [](const DTensor& input) { return static_cast<bool>(input); });
  return first == inputs.end() ? nullptr : &*first;
}

}  // namespace

void CheckpointActivations(Module& module, const CheckpointOptions& options) {
  module.SetCallWrapper([options](Module& callee, Inputs inputs,
                                  const std::function<Outputs(Inputs)>& call) -> Outputs {
    if (FirstTensor(inputs) == nullptr) return call(std::move(inputs));
    const std::vector<DTensor> tensors(inputs.begin(), inputs.end());
    // The tensors come from the checkpoint, the rest is passed again.
    for (DTensor& input : inputs) input = DTensor();
    const auto fn = [call, given = std::move(inputs), name = callee.FullName(),
                     life = std::weak_ptr<Life>(callee.locals().Share<Life>())](
                        std::span<const DTensor> x) -> std::vector<DTensor> {
      if (life.expired()) {
        Throw(absl::StatusCode::kFailedPrecondition, "backward has come to checkpointed module ",
              name, ", which is gone; it must live until then");
      }
      Inputs again = given;
      std::copy(x.begin(), x.end(), again.begin());
      const Outputs outputs = call(std::move(again));
      return {outputs.begin(), outputs.end()};
    };
    return Outputs(Checkpoint(fn, tensors, options));
  });
}

void KeepActivations(Module& module) {
  module.SetCallWrapper(
      [](Module&, Inputs inputs, const std::function<Outputs(Inputs)>& call) -> Outputs {
        const DTensor* const first = FirstTensor(inputs);
        if (first == nullptr) return call(std::move(inputs));
        const DeviceMesh mesh = first->mesh();
        return Outputs(KeepInCheckpoint(mesh, [&]() -> std::vector<DTensor> {
          const Outputs outputs = call(std::move(inputs));
          return {outputs.begin(), outputs.end()};
        }));
      });
}

}  // namespace shardmesh::nn
