// SPDX-License-Identifier: Apache-2.0
//
// Scans, sorting, and reading and writing at indices along one dim.
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::DeviceOf;
using internal::EmptyOn;

bool IsSmall(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// A tensor without dims has one line of one element.
int DimOf(const char* op, const Tensor& x, int dim) {
  return NormalizeDim(dim, std::max(1, x.num_dims()), op);
}

// Returns the normalised dim.
int CheckIndex(ExecutionContext& context, const char* op, const Tensor& x, int given,
               const Tensor& index) {
  const int dim = DimOf(op, x, given);
  internal::RequireDType(op, "the index", index, DType::kI64);
  bool fits = index.num_dims() == x.num_dims();
  for (int d = 0; fits && d < x.num_dims(); ++d) fits = d == dim || index.dim(d) <= x.dim(d);
  if (!fits) {
    ThrowInvalid(op, ": the index ", index.ToString(), " does not fit ", x.ToString(),
                 " along dim ", dim);
  }
  CheckIndices(context, op, index, 0, x.num_dims() == 0 ? 1 : x.dim(dim));
  return dim;
}

}  // namespace

Tensor Scan(ExecutionContext& context, ScanOp op, const Tensor& x, int dim, bool reverse) {
  const Device device = DeviceOf("scan", {&x});
  if (op == ScanOp::kLogSumExp && !IsFloating(x.dtype()))
    ThrowNotFloating(x.dtype(), "logcumsumexp");
  const DType dtype = x.dtype() == DType::kBool ? DType::kI64 : x.dtype();
  Tensor out = EmptyOn(context, device, x.shape(), dtype);
  Tensor none;
  KernelsFor(device).scan(context, op, Contiguous(context, Cast(context, x, dtype)),
                          DimOf("scan", x, dim), reverse, out, none);
  return out;
}

std::pair<Tensor, Tensor> ScanExtremum(ExecutionContext& context, ScanOp op, const Tensor& x,
                                       int dim) {
  const Device device = DeviceOf("scan", {&x});
  Tensor out = EmptyOn(context, device, x.shape(), x.dtype());
  Tensor indices = EmptyOn(context, device, x.shape(), DType::kI64);
  KernelsFor(device).scan(context, op, Contiguous(context, x), DimOf("scan", x, dim),
                          /*reverse=*/false, out, indices);
  return {out, indices};
}

Tensor CumulativeProductBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                                 int dim) {
  const char* op = "cumprod backward";
  const Device device = DeviceOf(op, {&grad, &x});
  internal::RequireOneFloatingDType(op, {&grad, &x});
  internal::RequireShape(op, "grad", grad, x.shape());
  Tensor out = EmptyOn(context, device, x.shape(), x.dtype());
  KernelsFor(device).cumulative_product_backward(context, Contiguous(context, grad),
                                                 Contiguous(context, x), DimOf(op, x, dim), out);
  return out;
}

std::pair<Tensor, Tensor> Sort(ExecutionContext& context, const Tensor& x, int dim,
                               bool descending) {
  const Device device = DeviceOf("sort", {&x});
  Tensor values = EmptyOn(context, device, x.shape(), x.dtype());
  Tensor indices = EmptyOn(context, device, x.shape(), DType::kI64);
  KernelsFor(device).sort(context, Contiguous(context, x), DimOf("sort", x, dim), descending,
                          values, indices);
  return {values, indices};
}

Tensor Gather(ExecutionContext& context, const Tensor& x, int given, const Tensor& index) {
  const Device device = DeviceOf("gather", {&x, &index});
  const int dim = CheckIndex(context, "gather", x, given, index);
  Tensor out = EmptyOn(context, device, index.shape(), x.dtype());
  KernelsFor(device).gather(context, Contiguous(context, x), dim, Contiguous(context, index), out);
  return out;
}

Tensor Scatter(ExecutionContext& context, ScatterOp op, const Tensor& x, int given,
               const Tensor& index, const Tensor& source) {
  const Device device = DeviceOf("scatter", {&x, &index, &source});
  internal::RequireDType("scatter", "the source", source, x.dtype());
  internal::RequireShape("scatter", "the source", source, index.shape());
  if (IsSmall(x.dtype()) && op != ScatterOp::kSet) {
    const Tensor wide = Scatter(context, op, Cast(context, x, DType::kF32), given, index,
                                Cast(context, source, DType::kF32));
    return Cast(context, wide, x.dtype());
  }
  const int dim = CheckIndex(context, "scatter", x, given, index);
  Tensor out = Clone(context, x);
  KernelsFor(device).scatter(context, op, dim, Contiguous(context, index),
                             Contiguous(context, source), out);
  return out;
}

}  // namespace shardmesh::ops
