// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/internal/reduction.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/fsdp/internal/coordinator.h"
#include "shardmesh/fsdp/internal/counting.h"
#include "shardmesh/fsdp/internal/unit.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp::internal {
namespace {

// `to`, but with the summands of `from` where no reduce-scatter takes them.
Layout WithSummandsOf(const Layout& from, const Layout& to) {
  Layout scattered = to;
  for (int axis = 0; axis < to.num_axes(); ++axis) {
    if (from.placement(axis).IsPartial() && !to.placement(axis).IsShard())
      scattered = scattered.With(axis, Partial());
  }
  return scattered;
}

// True if `to` splits each dim as `from` does, and then further.
bool OnlySplitsFurther(const Layout& from, const Layout& to) {
  for (int dim = 0; dim < from.global_shape().size(); ++dim) {
    const AxisList &before = from.SplitAxes(dim), &after = to.SplitAxes(dim);
    if (before.size() > after.size() || !std::equal(before.begin(), before.end(), after.begin()))
      return false;
  }
  return true;
}

// Appends the moves from one layout of a gradient to another, without those that move nothing.
// Summands are reduce-scattered over all axes that shard, as one group, and all-reduced over all
// others, whatever the boxes: all gradients of a unit take the same steps, in one batch. The
// planner would find that those of some shapes have cheaper ways of their own.
void AppendSteps(const DeviceMesh& mesh, UnitParameter& parameter, Layout from, const Layout& to,
                 std::vector<Step>& steps) {
  AxisList scatters, reduces;
  bool has_other_changes = false;
  for (int axis = 0; axis < mesh.shape().num_axes(); ++axis) {
    const Placement &before = from.placement(axis), &after = to.placement(axis);
    if (before == after || mesh.shape().size(axis) == 1) continue;
    has_other_changes |= !before.IsPartial() || after.IsPartial();
    (after.IsShard() ? scatters : reduces).push_back(axis);
  }
  if (!has_other_changes && OnlySplitsFurther(from, to)) {
    const Layout scattered = WithSummandsOf(from, to);
    if (!scatters.empty()) steps.push_back({StepKind::kReduceScatter, scatters, from, scattered});
    if (!reduces.empty()) steps.push_back({StepKind::kAllReduce, reduces, scattered, to});
    return;
  }
  const int64_t element_bytes = SizeOf(parameter.gradient().dtype());
  for (const Step& step : MakePlan(from, to, {.element_bytes = element_bytes}).steps) {
    if (shardmesh::internal::GroupOf(mesh, step.axes).size() > 1) steps.push_back(step);
  }
}

}  // namespace

Reduction::Reduction(const DeviceMesh& mesh, const std::string& unit,
                     std::vector<UnitParameter*> parameters, bool all_reduce, UnitStats& stats)
    : mesh_(mesh), stats_(&stats) {
  std::vector<nn::Parameter> named;
  for (UnitParameter* parameter : parameters) {
    entries_.push_back(EntryOf(*parameter, all_reduce));
    num_phases_ = std::max(num_phases_, entries_.back().steps.size());
    named.push_back(parameter->parameter());
  }
  op_ = CollectiveName("fsdp_reduce", unit, named);
  ++stats_->reductions;
  Join(0);
  Post(0);
}

Reduction::Entry Reduction::EntryOf(UnitParameter& parameter, bool all_reduce) const {
  Entry entry;
  entry.parameter = &parameter;
  entry.result = parameter.sharded_layout();
  const Layout waiting = parameter.scattered_layout();
  if (!parameter.gradient()) {
    AppendSteps(mesh_, parameter, waiting, entry.result, entry.steps);
    entry.value = parameter.TakeScattered();
    return entry;
  }
  Layout from = parameter.gradient().layout();
  if (!all_reduce || waiting) {
    const Layout scattered = waiting ? waiting : WithSummandsOf(from, entry.result);
    AppendSteps(mesh_, parameter, from, scattered, entry.steps);
    entry.joins_after = entry.steps.size();
    if (all_reduce) {
      entry.earlier = parameter.TakeScattered();
    } else {
      entry.result = scattered;
    }
    from = scattered;
  }
  AppendSteps(mesh_, parameter, from, entry.result, entry.steps);
  entry.value = parameter.gradient().Take();
  return entry;
}

void Reduction::Join(size_t phase) {
  for (Entry& entry : entries_) {
    if (!entry.earlier || entry.joins_after != phase) continue;
    ops::Accumulate(mesh_.context(), std::exchange(entry.earlier, Tensor()), entry.value);
  }
}

void Reduction::Finish() {
  for (size_t phase = 0; phase < num_phases_; ++phase) {
    if (phase > 0) Post(phase);
    {
      const WaitTimer timer(stats_->reduce_wait_seconds);
      for (Work& work : works_) work.Wait();
    }
    works_.clear();
    for (Entry& entry : entries_) {
      if (entry.target) entry.value = std::exchange(entry.target, Tensor());
    }
    Join(phase + 1);
  }
  for (Entry& entry : entries_) {
    if (entry.result == entry.parameter->sharded_layout()) {
      entry.parameter->AddReduced(std::move(entry.value));
    } else {
      entry.parameter->AddScattered(std::move(entry.value), entry.result);
    }
  }
  entries_.clear();
}

void Reduction::Abandon() {
  for (Work& work : works_) {
    try {
      work.Wait();
    } catch (...) {
      // The world has failed; the first cause is on its way already.
    }
  }
  works_.clear();
  entries_.clear();
}

// Steps of the same kind over the same group form one batched collective.
void Reduction::Post(size_t phase) {
  const CountsSentBytes counts(mesh_, stats_->reduce_bytes_sent);
  struct Batch {
    std::vector<ReduceScatterItem> scatter;
    std::vector<AllReduceItem> reduce;
  };
  std::map<std::pair<StepKind, std::vector<int>>, Batch> batches;
  for (Entry& entry : entries_) {
    if (phase >= entry.steps.size()) continue;
    const Step& step = entry.steps[phase];
    Batch& batch = batches[{step.kind, std::vector<int>(step.axes.begin(), step.axes.end())}];
    if (step.kind == StepKind::kReduceScatter) {
      entry.target = Tensor::Empty(mesh_.context(), step.to.LocalShape(mesh_.coord()),
                                   entry.value.dtype(), MemoryCategory::kGradients);
      batch.scatter.push_back(
          shardmesh::internal::ScatterItem(mesh_, step, entry.value, entry.target));
    } else if (step.kind == StepKind::kAllReduce) {
      batch.reduce.push_back({entry.value, entry.value});
    } else {
      PostLocally(step, entry);
    }
  }
  for (auto& [key, batch] : batches) {
    const AxisList axes(key.second.begin(), key.second.end());
    Communicator& group = shardmesh::internal::GroupOf(mesh_, axes);
    if (!batch.scatter.empty())
      works_.push_back(group.ReduceScatter(std::move(batch.scatter), ReduceOp::kSum, op_));
    if (!batch.reduce.empty())
      works_.push_back(group.AllReduce(std::move(batch.reduce), ReduceOp::kSum, op_));
  }
}

// A gradient that is replicated along a shard axis needs only a local slice; rare.
void Reduction::PostLocally(const Step& step, Entry& entry) {
  ExecutionContext& context = mesh_.context();
  entry.target = Tensor::Empty(context, step.to.LocalShape(mesh_.coord()), entry.value.dtype(),
                               MemoryCategory::kGradients);
  const Tensor moved =
      shardmesh::internal::Move(Runtime::Of(mesh_), mesh_, entry.value, entry.value.dtype(),
                                step.from, step.to, "fsdp_reduce");
  ops::Copy(context, moved, entry.target);
  Coordinator::Of(mesh_)->staging.staging_bytes += entry.target.Bytes();
}

}  // namespace shardmesh::fsdp::internal
