// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh {

bool HoldsSummands(const Layout& layout) {
  for (const Placement& p : layout.placements()) {
    if (p.IsPartial() && (p.op() == ReduceOp::kSum || p.op() == ReduceOp::kProduct)) return true;
  }
  return false;
}

const Decision* Runtime::FindDecision(const DecisionKey& key) const {
  auto found = decisions_.find(key);
  return found == decisions_.end() ? nullptr : found->second.get();
}

const Decision& Runtime::AddDecision(const DecisionKey& key, Decision decision) {
  ++decision_misses_;
  if (decisions_.size() >= max_decisions) {
    if (open_calls_ > 0) retired_.push_back(std::move(decisions_));
    decisions_ = Decisions();
  }
  auto entry = std::make_unique<const Decision>(std::move(decision));
  return *decisions_.emplace(key, std::move(entry)).first->second;
}

PartialPrecisionScope::PartialPrecisionScope(const DeviceMesh& mesh, PartialPrecision precision)
    : runtime_(Runtime::Of(mesh)), before_(runtime_.partial_precision) {
  runtime_.partial_precision = precision;
}

PartialPrecisionScope::~PartialPrecisionScope() { runtime_.partial_precision = before_; }

ReshardPolicyScope::ReshardPolicyScope(const DeviceMesh& mesh, ReshardPolicy policy)
    : runtime_(Runtime::Of(mesh)), before_(runtime_.reshard_policy) {
  runtime_.reshard_policy = policy;
}

ReshardPolicyScope::~ReshardPolicyScope() { runtime_.reshard_policy = before_; }

}  // namespace shardmesh
