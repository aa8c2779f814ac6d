// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic, comparisons and selection: broadcasting, dtypes, in-place writes.

#include <limits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::DeviceOf;
using internal::EmptyOn;

void RequireOneDType(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return;
  ThrowInvalid(op, ": ", a.ToString(), " and ", b.ToString(), " differ in dtype; cast one of them");
}

void RequireArithmetic(BinaryOp op, const Tensor& x) {
  switch (op) {
    case BinaryOp::kDiv:
    case BinaryOp::kRDiv:
      if (!IsFloating(x.dtype())) ThrowNotFloating(x.dtype(), Name(op));
      break;
    case BinaryOp::kSub:
    case BinaryOp::kRSub:
      if (x.dtype() == DType::kBool) ThrowInvalid(Name(op).data(), ": not defined for bool");
      break;
    default:
      break;
  }
}

Tensor ExpandTo(const Tensor& x, const Dims& shape) {
  return x.shape() == shape ? x : x.Expand(shape);
}

// For an op in place on `a`: b as the kernel may read it, in a's shape and in no memory that is
// written before it is read.
Tensor ReadableFor(ExecutionContext& context, const char* op, const Tensor& a, const Tensor& b) {
  if (BroadcastShapes(a.shape(), b.shape(), op) != a.shape()) {
    ThrowInvalid(op, ": the result in place of ", a.ToString(), " cannot have the shape of ",
                 b.ToString());
  }
  return ExpandTo(internal::MayOverlap(a, b) ? Clone(context, b) : b, a.shape());
}

}  // namespace

Tensor Binary(ExecutionContext& context, BinaryOp op, const Tensor& a, const Tensor& b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a, &b});
  RequireOneDType(name, a, b);
  RequireArithmetic(op, a);
  if (a.shape() == b.shape()) {
    Tensor out = EmptyOn(context, device, a.shape(), a.dtype());
    KernelsFor(device).binary(context, op, a, b, out);
    return out;
  }
  const Dims shape = BroadcastShapes(a.shape(), b.shape(), name);
  Tensor out = EmptyOn(context, device, shape, a.dtype());
  KernelsFor(device).binary(context, op, ExpandTo(a, shape), ExpandTo(b, shape), out);
  return out;
}

Tensor Binary(ExecutionContext& context, BinaryOp op, const Tensor& a, double b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a});
  RequireArithmetic(op, a);
  internal::RequireRepresentable(name, a.dtype(), b);
  Tensor out = EmptyOn(context, device, a.shape(), a.dtype());
  KernelsFor(device).binary_scalar(context, op, a, b, out);
  return out;
}

void BinaryInto(ExecutionContext& context, BinaryOp op, Tensor& a, const Tensor& b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a, &b});
  RequireOneDType(name, a, b);
  RequireArithmetic(op, a);
  internal::RequireWritable(name, a);
  const Tensor readable = ReadableFor(context, name, a, b);
  KernelsFor(device).binary(context, op, a, readable, a);
  a.storage()->BumpVersion();
}

void BinaryInto(ExecutionContext& context, BinaryOp op, Tensor& a, double b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a});
  RequireArithmetic(op, a);
  internal::RequireRepresentable(name, a.dtype(), b);
  internal::RequireWritable(name, a);
  KernelsFor(device).binary_scalar(context, op, a, b, a);
  a.storage()->BumpVersion();
}

Tensor Compare(ExecutionContext& context, CompareOp op, const Tensor& a, const Tensor& b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a, &b});
  RequireOneDType(name, a, b);
  const Dims shape = BroadcastShapes(a.shape(), b.shape(), name);
  Tensor out = EmptyOn(context, device, shape, DType::kBool);
  KernelsFor(device).compare(context, op, ExpandTo(a, shape), ExpandTo(b, shape), out);
  return out;
}

Tensor Compare(ExecutionContext& context, CompareOp op, const Tensor& a, double b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a});
  internal::RequireRepresentable(name, a.dtype(), b);
  Tensor out = EmptyOn(context, device, a.shape(), DType::kBool);
  KernelsFor(device).compare_scalar(context, op, a, b, out);
  return out;
}

Tensor CompareInteger(ExecutionContext& context, CompareOp op, const Tensor& a, int64_t b) {
  const char* name = Name(op).data();
  const Device device = DeviceOf(name, {&a});
  if (a.dtype() != DType::kI64 && a.dtype() != DType::kI32)
    ThrowInvalid(name, ": expected a tensor of integers, got ", a.ToString());
  Tensor out = EmptyOn(context, device, a.shape(), DType::kBool);
  using I32 = std::numeric_limits<int32_t>;
  if (a.dtype() == DType::kI64 || (I32::min() <= b && b <= I32::max())) {
    KernelsFor(device).compare_integer(context, op, a, b, out);
    return out;
  }
  const bool greater = b < 0;  // Every element than b; else every one is less.
  const bool result = op == CompareOp::kNotEqual ||
                      (greater ? op == CompareOp::kGreater || op == CompareOp::kGreaterEqual
                               : op == CompareOp::kLess || op == CompareOp::kLessEqual);
  KernelsFor(device).fill(context, result ? 1.0 : 0.0, out);
  return out;
}

Tensor Where(ExecutionContext& context, const Tensor& cond, const Tensor& a, const Tensor& b) {
  const Device device = DeviceOf("where", {&cond, &a, &b});
  internal::RequireDType("where", "the condition", cond, DType::kBool);
  RequireOneDType("where", a, b);
  const Dims values = BroadcastShapes(a.shape(), b.shape(), "where");
  const Dims shape = BroadcastShapes(cond.shape(), values, "where");
  Tensor out = EmptyOn(context, device, shape, a.dtype());
  KernelsFor(device).where(context, ExpandTo(cond, shape), ExpandTo(a, shape), ExpandTo(b, shape),
                           out);
  return out;
}

void Accumulate(ExecutionContext& context, const Tensor& x, Tensor& out) {
  const Device device = DeviceOf("accumulate", {&x, &out});
  const bool widens =
      IsFloating(x.dtype()) && IsFloating(out.dtype()) && SizeOf(out.dtype()) > SizeOf(x.dtype());
  if (x.dtype() != out.dtype() && !widens) {
    ThrowInvalid("accumulate: cannot add ", x.ToString(), " to ", out.ToString(),
                 ", whose dtype is not as wide");
  }
  internal::RequireShape("accumulate", "what is added", x, out.shape());
  internal::RequireWritable("accumulate", out);
  const Tensor readable = internal::MayOverlap(out, x) ? Clone(context, x) : x;
  KernelsFor(device).accumulate(context, readable, out);
  out.storage()->BumpVersion();
}

}  // namespace shardmesh::ops
