// SPDX-License-Identifier: Apache-2.0
//
// Ops that write into their first operand. The layout of what is written never changes, so the
// other operand moves to it; where that is impossible, or the target does not alias what the caller
// thinks, they throw.
#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/move.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

void CheckWritable(const char* op, const DTensor& a) {
  internal::CheckUsable(op, a);
  if (!a.impl()->may_write) {
    Throw(absl::StatusCode::kFailedPrecondition, op, ": ", a.ToString(),
          " is a copy (data moved to make it), so writing it would not change the tensor it came "
          "from; write that one");
  }
  if (a.RequiresGrad() && a.impl()->runtime->grad_enabled) {
    Throw(absl::StatusCode::kFailedPrecondition, op, ": ", a.ToString(),
          " requires a gradient; in-place ops are not recorded (use the op that returns a new "
          "tensor, or NoGrad)");
  }
}

void CheckOperands(const char* op, const DTensor& a, const DTensor& b) {
  CheckWritable(op, a);
  internal::CheckUsable(op, b);
  internal::CheckTogether(op, a, b);
  if (b.RequiresGrad() && a.impl()->runtime->grad_enabled) {
    Throw(absl::StatusCode::kFailedPrecondition, op, ": ", b.ToString(),
          " requires a gradient, which would be lost, as in-place ops are not recorded (use "
          "the op that returns a new tensor, or Detach or NoGrad)");
  }
}

// b in the layout that lines up with a's: the same placements on the dims they share.
Tensor Aligned(const char* op, const DTensor& a, const DTensor& b) {
  if (!(BroadcastShapes(a.shape(), b.shape(), op) == a.shape())) {
    ThrowInvalid(op, ": ", b.ToString(), " does not broadcast to ", a.ToString());
  }
  if (a.dtype() != b.dtype())
    ThrowInvalid(op, ": ", a.ToString(), " and ", b.ToString(), " differ in dtype; cast one");
  const int lead = a.num_dims() - b.num_dims();
  Placements placements;
  AxisList order;
  for (int d = 0; d < a.num_dims(); ++d) {
    for (int axis : a.layout().SplitAxes(d)) {
      if (d >= lead && b.shape()[d - lead] == a.shape()[d]) order.push_back(axis);
    }
  }
  for (int axis = 0; axis < a.layout().num_axes(); ++axis) {
    const Placement& p = a.layout().placement(axis);
    const bool shared =
        p.IsShard() && p.dim() >= lead && b.shape()[p.dim() - lead] == a.shape()[p.dim()];
    placements.push_back(p.IsShard() ? (shared ? Shard(p.dim() - lead) : Replicate()) : p);
  }
  const Layout target = Layout::Make(a.layout().mesh(), std::span<const Placement>(placements),
                                     b.shape(), std::span<const int>(order.data(), order.size()));
  ExecutionContext& context = a.mesh().context();
  const Tensor moved =
      ops::Cast(context, internal::MoveTo(b, target, op).local(), a.local().dtype());
  // Another view of what is written must not change while it is read. (Views share memory on every
  // rank or on none.)
  const bool overlaps =
      moved.storage() == a.local().storage() &&
      (moved.strides() != a.local().strides() || moved.offset() != a.local().offset());
  return overlaps ? ops::Clone(context, moved) : moved;
}

}  // namespace

void AddInPlace(const DTensor& a, const DTensor& b) {
  CheckOperands("add_in_place", a, b);
  if (a.layout().HasPartial() && !(a.shape() == b.shape())) {
    ThrowInvalid("add_in_place: ", a.ToString(), " is Partial; ", b.ToString(),
                 " must have its shape");
  }
  for (const Placement& p : a.layout().placements()) {
    if (p.IsPartial() && p.op() != ReduceOp::kSum)
      ThrowInvalid("add_in_place: ", a.ToString(), " is not a sum");
  }
  Tensor target = a.local();
  ops::BinaryInto(a.mesh().context(), BinaryOp::kAdd, target, Aligned("add_in_place", a, b));
}

void MulInPlace(const DTensor& a, double b) {
  CheckWritable("mul_in_place", a);
  for (const Placement& p : a.layout().placements()) {
    if (p.IsPartial() && p.op() != ReduceOp::kSum)
      ThrowInvalid("mul_in_place: ", a.ToString(), " is not a sum");
    if (p.IsPartial() && !std::isfinite(b)) {
      ThrowInvalid("mul_in_place: ", a.ToString(), " times ", b,
                   " is not the sum of its summands times that; redistribute it first");
    }
  }
  Tensor target = a.local();
  ops::BinaryInto(a.mesh().context(), BinaryOp::kMul, target, b);
}

void FillInPlace(const DTensor& a, double value) {
  CheckWritable("fill_in_place", a);
  if (a.layout().HasPartial())
    ThrowInvalid("fill_in_place: ", a.ToString(), " is Partial; its layout would have to change");
  Tensor target = a.local();
  ops::Fill(a.mesh().context(), target, value);
}

void CopyInPlace(const DTensor& target, const DTensor& source) {
  CheckOperands("copy_in_place", target, source);
  if (!(target.shape() == source.shape())) {
    ThrowInvalid("copy_in_place: ", source.ToString(), " does not have the shape of ",
                 target.ToString());
  }
  Tensor local = target.local();
  ops::Copy(target.mesh().context(), Aligned("copy_in_place", target, source), local);
}

}  // namespace shardmesh
