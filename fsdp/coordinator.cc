// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/coordinator.h"

#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/fsdp/internal/unit.h"
#include "shardmesh/nn/replicas.h"

namespace shardmesh::fsdp::internal {

std::vector<std::shared_ptr<Unit>> Coordinator::LiveUnits() {
  std::vector<std::shared_ptr<Unit>> live;
  std::erase_if(units_, [](const std::weak_ptr<Unit>& unit) { return unit.expired(); });
  for (const std::weak_ptr<Unit>& unit : units_) live.push_back(unit.lock());
  return live;
}

std::vector<std::shared_ptr<Unit>> Coordinator::Participants() {
  std::vector<std::shared_ptr<Unit>> units = LiveUnits();  // Those of joined_ among them.
  std::erase_if(units, [this](const auto& unit) { return models_.count(unit->model()) == 0; });
  return units;
}

// ---- forward ------------------------------------------------------------------------------------

void Coordinator::BeginCall(const std::shared_ptr<Unit>& unit, nn::Module& module) {
  if (open_calls_++ == 0) {
    model_ = unit->model();
    order_.clear();
    position_ = 0;
    Model& model = *model_;
    if (std::exchange(model.has_lost_gradients, false)) {
      Throw(absl::StatusCode::kFailedPrecondition,
            "FullyShard: a backward that threw took with it the gradients that earlier "
            "micro-batches had accumulated without synchronisation; start the accumulation again");
    }
    if (!model.has_compared_replicas) {
      nn::CheckReplicas(Outermost(module));
      // A list may say to gather units that no forward has come to.
      for (const nn::Module::NamedModule& named : Outermost(module).NamedModules()) {
        if (const std::shared_ptr<Unit>& other = UnitOf(*named.module))
          other->Locate(*named.module);
      }
    }
    model.has_compared_replicas = true;
  }
  if (prefetched_.lock() != unit) ReleasePrefetched();
  prefetched_.reset();
  std::erase_if(ahead_, [&](const std::weak_ptr<Unit>& other) { return other.lock() == unit; });
  order_.push_back(unit);
  // One that leaves out calls of the last forward is followed on; one that goes another way is
  // followed no more.
  const std::vector<std::weak_ptr<Unit>>& last = model_->order;
  for (size_t i = position_; i < last.size(); ++i) {
    if (last[i].lock() != unit) continue;
    position_ = i + 1;
    return;
  }
  position_ = last.size();
}

std::shared_ptr<Unit> Coordinator::Predicted() const {
  return position_ < model_->order.size() ? model_->order[position_].lock() : nullptr;
}

void Coordinator::PrefetchNext(const Unit& unit) {
  if (unit.forward_prefetch) return GatherAhead(*unit.forward_prefetch, ahead_);
  const std::shared_ptr<Unit> next = Predicted();
  if (next == nullptr || next->is_gathered()) return;
  next->Prefetch();
  prefetched_ = next;
}

bool Coordinator::KeepsForNextCall(const std::shared_ptr<Unit>& unit) {
  if (Predicted() != unit) return false;
  ReleasePrefetched();
  prefetched_ = unit;
  return true;
}

void Coordinator::EndCall(bool failed) {
  if (--open_calls_ > 0) return;
  ReleasePrefetched();
  ReleaseAhead(ahead_);
  const std::shared_ptr<Model> model = std::move(model_);
  if (!failed) {
    model->order = std::move(order_);
    return;
  }
  for (const std::shared_ptr<Unit>& unit : LiveUnits()) unit->ReshardIfIdle();
}

void Coordinator::ReleasePrefetched() {
  if (const std::shared_ptr<Unit> unit = prefetched_.lock()) unit->ReshardIfIdle();
  prefetched_.reset();
}

// Units whose collectives have no name yet, as no forward of their model has run, are left out.
void Coordinator::GatherAhead(const std::vector<std::weak_ptr<Unit>>& units,
                              std::vector<std::weak_ptr<Unit>>& ahead) {
  for (const std::weak_ptr<Unit>& entry : units) {
    const std::shared_ptr<Unit> unit = entry.lock();
    if (unit == nullptr || unit->model() == nullptr || unit->is_gathered()) continue;
    unit->Prefetch();
    ahead.push_back(entry);
  }
}

void Coordinator::ReleaseAhead(std::vector<std::weak_ptr<Unit>>& ahead) {
  for (const std::weak_ptr<Unit>& entry : ahead) {
    if (const std::shared_ptr<Unit> unit = entry.lock()) unit->ReshardIfIdle();
  }
  ahead.clear();
}

// ---- backward -----------------------------------------------------------------------------------

void Coordinator::Join(Unit& unit) {
  models_.insert(unit.model());
  joined_.insert(unit.shared_from_this());
  JoinBackward(unit.mesh(), shared_from_this());
}

void Coordinator::GatherAheadInBackward(const std::vector<std::weak_ptr<Unit>>& units) {
  GatherAhead(units, ahead_in_backward_);
}

void Coordinator::StartReduction(Unit& unit) {
  FinishReduction();
  reduction_.emplace(unit.TakeGradients());
}

void Coordinator::FinishReduction() {
  if (!reduction_) return;
  reduction_->Finish();
  reduction_.reset();
}

void Coordinator::Finish(BackwardRun& run) {
  const std::vector<std::shared_ptr<Unit>> units = Participants();
  for (const std::shared_ptr<Unit>& unit : units) unit->ReshardAfterBackward();
  // Of other models; those of these have done as their options say.
  std::erase_if(ahead_in_backward_, [this](const std::weak_ptr<Unit>& entry) {
    const std::shared_ptr<Unit> unit = entry.lock();
    return unit == nullptr || models_.count(unit->model()) > 0;
  });
  ReleaseAhead(ahead_in_backward_);
  for (const std::shared_ptr<Unit>& unit : units) {
    // What earlier micro-batches have accumulated, and what came outside the unit's forward.
    if (unit->sync && unit->HasGradients()) StartReduction(*unit);
  }
  FinishReduction();
  for (const std::shared_ptr<Unit>& unit : units) unit->Deliver(run);
}

void Coordinator::Succeeded() {
  for (const std::shared_ptr<Unit>& unit : Participants()) unit->EndBackward();
  models_.clear();
  joined_.clear();
}

void Coordinator::Failed() {
  if (reduction_) reduction_->Abandon();
  reduction_.reset();
  const std::vector<std::shared_ptr<Unit>> units = Participants();
  for (const std::shared_ptr<Unit>& unit : units)
    unit->model()->has_lost_gradients |= unit->AbandonBackward();
  // A sum that lacks some micro-batches in some units is of no use.
  for (const std::shared_ptr<Unit>& unit : units) {
    if (unit->model()->has_lost_gradients) unit->DiscardGradients();
  }
  ReleaseAhead(ahead_in_backward_);
  models_.clear();
  joined_.clear();
}

}  // namespace shardmesh::fsdp::internal
