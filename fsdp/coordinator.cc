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
    if (!model.has_compared_replicas) nn::CheckReplicas(Outermost(module));
    model.has_compared_replicas = true;
  }
  if (prefetched_.lock() != unit) ReleasePrefetched();
  prefetched_.reset();
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

void Coordinator::PrefetchNext() {
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

// ---- backward -----------------------------------------------------------------------------------

void Coordinator::Join(Unit& unit) {
  models_.insert(unit.model());
  joined_.insert(unit.shared_from_this());
  JoinBackward(unit.mesh(), shared_from_this());
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
  models_.clear();
  joined_.clear();
}

}  // namespace shardmesh::fsdp::internal
