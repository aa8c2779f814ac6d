// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/gpt2_tp_plan.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/placement.h"

namespace shardmesh::models {
namespace {

/// Places a module's own parameters by name. Inputs and outputs follow from the ops.
class PlaceOwn final : public tp::Style {
 public:
  using Placements = std::vector<std::pair<std::string, Placement>>;
  explicit PlaceOwn(Placements placements) : placements_(std::move(placements)) {}

  std::vector<Placed> PlaceParameters(nn::Module& module, const std::string& name,
                                      const DeviceMesh&, int) const override {
    std::vector<Placed> placed;
    for (const auto& [own, placement] : placements_) {
      const nn::Parameter* parameter = module.FindOwnParameter(own);
      if (parameter == nullptr) ThrowInvalid(ToString(), " of ", name, ": it has no ", own);
      placed.push_back({*parameter, placement});
    }
    return placed;
  }

  void Apply(nn::Module&, const std::string&, const DeviceMesh&, int) const override {}

  std::string ToString() const override {
    std::string text;
    for (const auto& [own, placement] : placements_) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", own, " ", placement.ToString());
    }
    return absl::StrCat("PlaceOwn(", text, ")");
  }

 private:
  Placements placements_;
};

tp::StylePtr Place(PlaceOwn::Placements placements) {
  return std::make_shared<PlaceOwn>(std::move(placements));
}

}  // namespace

tp::Plan Gpt2TpPlan(bool adapters) {
  const std::string mlp = "transformer.h.*.mlp";
  tp::Plan plan = {
      {"transformer.wte", tp::Rowwise()},
      {mlp, tp::PrepareInput(Replicate())},
      {mlp + ".c_fc", Place({{"weight", Shard(1)}, {"bias", Shard(0)}})},
      {mlp + ".c_proj", Place({{"weight", Shard(0)}})},
      {mlp, tp::PrepareOutput(Replicate())},
      {"lm_head", tp::PrepareInput(Replicate())},
      {"lm_head", tp::Colwise()},
  };
  if (adapters) plan.push_back({mlp + ".adapter", Place({{"B", Shard(1)}})});
  return plan;
}

}  // namespace shardmesh::models
