// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::internal {
namespace {

Coord CoordIn(const DeviceMesh& mesh) { return mesh.coord(); }

// A tensor that leaves a reduction unchanged, bit for bit: for floating sums -0.0, as 0.0 + -0.0 is
// 0.0.
Tensor Identity(ExecutionContext& context, const Dims& shape, DType dtype, ReduceOp op) {
  const bool floating = IsFloating(dtype);
  const bool highest = op == ReduceOp::kMin;
  switch (op) {
    case ReduceOp::kSum:
      return ops::Full(context, shape, dtype, floating ? -0.0 : 0.0);
    case ReduceOp::kProduct:
      return ops::Full(context, shape, dtype, 1.0);
    case ReduceOp::kMax:
    case ReduceOp::kMin:
      break;
  }
  using Limits = std::numeric_limits<int64_t>;
  if (dtype == DType::kI64) {  // The limits of an int64 are not both doubles.
    Tensor result = Tensor::Empty(context, shape, dtype);
    const int64_t limit = highest ? Limits::max() : Limits::min();
    ops::Copy(context, Tensor::FromValues<int64_t>(context, {}, {limit}).Expand(shape), result);
    return result;
  }
  const double limit = floating ? std::numeric_limits<double>::infinity() : 0x1p31;
  return ops::Full(context, shape, dtype, highest ? (floating ? limit : limit - 1) : -limit);
}

Tensor Slice(ExecutionContext& context, const DeviceMesh& mesh, const Step& step,
             const Tensor& local) {
  const Coord coord = CoordIn(mesh);
  // A copy also where the box is contiguous: which ranks could alias depends on their boxes, and
  // what is written in place later must show on all ranks or on none.
  return ops::Clone(context, ViewOfBox(local, step.from.LocalBox(coord), step.to.LocalBox(coord)));
}

Tensor MakePartial(ExecutionContext& context, const DeviceMesh& mesh, const Step& step,
                   const Tensor& local) {
  for (int axis : step.axes) {
    if (mesh.coord()[axis] != 0) {
      return Identity(context, local.shape(), local.dtype(), step.to.placement(axis).op());
    }
  }
  return ops::Clone(context, local);  // As the other ranks have memory of their own.
}

Tensor AllToAll(ExecutionContext& context, const DeviceMesh& mesh, const Step& step,
                const RankTransfers& transfers, const Tensor& local, std::string_view op) {
  const Coord coord = CoordIn(mesh);
  const Box from = step.from.LocalBox(coord);
  const Box to = step.to.LocalBox(coord);
  Tensor result = Tensor::Empty(context, to.Extents(), local.dtype());
  const Tensor nothing = Tensor::Empty(context, {0}, local.dtype());
  AllToAllItem item;
  item.sends.assign(transfers.group_size, nothing);
  item.receives.assign(transfers.group_size, nothing);
  for (const Transfer& transfer : transfers.sends)
    item.sends[transfer.target] = ViewOfBox(local, from, transfer.box);
  for (const Transfer& transfer : transfers.receives)
    item.receives[transfer.source] = ViewOfBox(result, to, transfer.box);
  GroupOf(mesh, step.axes).AllToAll({std::move(item)}, op).Wait();
  return result;
}

// A group of one rank has nothing to exchange: its box is the same before and after.
bool IsAlone(const DeviceMesh& mesh, const Step& step) {
  for (int axis : step.axes) {
    if (mesh.shape().size(axis) > 1) return false;
  }
  return true;
}

Tensor RunStep(const DeviceMesh& mesh, PlanCache::Entry& planned, size_t index, const Tensor& local,
               std::string_view op) {
  ExecutionContext& context = mesh.context();
  const Step& step = planned.plan().steps[index];
  if (IsAlone(mesh, step)) return local;
  switch (step.kind) {
    case StepKind::kSlice:
      return Slice(context, mesh, step, local);
    case StepKind::kMakePartial:
      return MakePartial(context, mesh, step, local);
    case StepKind::kAllToAll:
      return AllToAll(context, mesh, step, planned.TransfersOf(index, mesh.coord()), local, op);
    case StepKind::kAllGather: {
      Tensor result = Tensor::Empty(context, step.to.LocalShape(mesh.coord()), local.dtype());
      GroupOf(mesh, step.axes).AllGather({GatherItem(mesh, step, local, result)}, op).Wait();
      return result;
    }
    case StepKind::kReduceScatter: {
      Tensor result = Tensor::Empty(context, step.to.LocalShape(mesh.coord()), local.dtype());
      const ReduceOp reduction = step.from.placement(step.axes[0]).op();
      GroupOf(mesh, step.axes)
          .ReduceScatter({ScatterItem(mesh, step, local, result)}, reduction, op)
          .Wait();
      return result;
    }
    case StepKind::kAllReduce: {
      Tensor result = Tensor::Empty(context, local.shape(), local.dtype());
      const ReduceOp reduction = step.from.placement(step.axes[0]).op();
      GroupOf(mesh, step.axes).AllReduce({{local, result}}, reduction, op).Wait();
      return result;
    }
  }
  return {};
}

}  // namespace

Communicator& GroupOf(const DeviceMesh& mesh, const AxisList& axes) {
  // Axes of size 1 are left out: they would only make the names of groups longer.
  AxisList real;
  for (int axis : axes) {
    if (mesh.shape().size(axis) > 1) real.push_back(axis);
  }
  if (real.size() == 1) return mesh.Group(real[0]);
  return real.empty() ? mesh.Group(axes[0])
                      : mesh.Group(std::span<const int>(real.data(), real.size()));
}

Tensor ViewOfBox(const Tensor& local, const Box& outer, const Box& box) {
  const Box within = Relative(box, outer);
  int64_t offset = local.offset();
  for (int d = 0; d < within.num_dims(); ++d) {
    // An empty view must not point past the end.
    if (!within.IsEmpty()) offset += within.begin[d] * local.strides()[d];
  }
  return local.AsStrided(within.Extents(), local.strides(), offset);
}

AllGatherItem GatherItem(const DeviceMesh& mesh, const Step& step, const Tensor& local,
                         const Tensor& target) {
  const Coord coord = CoordIn(mesh);
  const Box whole = step.to.LocalBox(coord);
  AllGatherItem item;
  item.source = local;
  for (const Coord& member : GroupCoords(mesh.shape(), step.axes, coord)) {
    item.targets.push_back(ViewOfBox(target, whole, step.from.LocalBox(member)));
  }
  return item;
}

ReduceScatterItem ScatterItem(const DeviceMesh& mesh, const Step& step, const Tensor& local,
                              const Tensor& target) {
  const Coord coord = CoordIn(mesh);
  const Box whole = step.from.LocalBox(coord);
  ReduceScatterItem item;
  item.target = target;
  for (const Coord& member : GroupCoords(mesh.shape(), step.axes, coord)) {
    item.sources.push_back(ViewOfBox(local, whole, step.to.LocalBox(member)));
  }
  return item;
}

Tensor Move(Runtime& runtime, const DeviceMesh& mesh, const Tensor& local, DType dtype,
            const Layout& from, const Layout& to, std::string_view op) {
  if (from == to) return local;
  if (runtime.reshard_policy == ReshardPolicy::kForbid) {
    Throw(absl::StatusCode::kFailedPrecondition, std::string(op), ": would move ", from.ToString(),
          " to ", to.ToString(), ", and the reshard policy forbids every move (reshard_policy.h)");
  }
  // A handle of its own: a nested call may make the cache forget the plan.
  const std::shared_ptr<PlanCache::Entry> planned =
      runtime.plans.Get(from, to, SizeOf(local.dtype()));
  Tensor current = local;
  for (size_t i = 0; i < planned->plan().steps.size(); ++i) {
    const Step& step = planned->plan().steps[i];
    if (step.kind == StepKind::kMakePartial)
      current = ops::Cast(mesh.context(), current, runtime.StoredDType(dtype, step.to));
    current = RunStep(mesh, *planned, i, current, op);
    // Rounded once, and before it is sent on.
    if (current.dtype() != dtype && !HoldsSummands(step.to))
      current = ops::Cast(mesh.context(), current, dtype);
  }
  return current;
}

}  // namespace shardmesh::internal
