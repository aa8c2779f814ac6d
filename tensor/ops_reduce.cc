// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

// Sums and products of integers are i64, whatever is summed; the largest of integers is one of
// them.
DType ReducedDType(ReduceOp op, DType dtype) {
  const bool grows = op == ReduceOp::kSum || op == ReduceOp::kProduct;
  return grows && !IsFloating(dtype) ? DType::kI64 : dtype;
}

}  // namespace

Tensor Reduce(ExecutionContext& context, ReduceOp op, const Tensor& x, std::span<const int> dims,
              bool keepdim, std::optional<DType> out_dtype) {
  const char* name = Name(op).data();
  const Device device = internal::DeviceOf(name, {&x});
  const DType dtype = internal::ResultDType(name, ReducedDType(op, x.dtype()), out_dtype);
  uint32_t reduced = dims.empty() ? (1u << x.num_dims()) - 1 : 0;
  for (const int dim : dims) {
    const uint32_t bit = 1u << NormalizeDim(dim, x.num_dims(), name);
    if (reduced & bit) ThrowInvalid(name, ": dim ", dim, " of ", x.ToString(), " is given twice");
    reduced |= bit;
  }
  Dims kept, with_ones;
  for (int dim = 0; dim < x.num_dims(); ++dim) {
    const bool is_reduced = reduced >> dim & 1;
    with_ones.push_back(is_reduced ? 1 : x.dim(dim));
    if (!is_reduced) kept.push_back(x.dim(dim));
  }
  Tensor out = internal::EmptyOn(context, device, with_ones, dtype);
  KernelsFor(device).reduce(context, op, x, reduced, out);
  return keepdim ? out : *out.TryView(kept);
}

Tensor SumOfSquares(ExecutionContext& context, const Tensor& x) {
  const Device device = internal::DeviceOf("sum_of_squares", {&x});
  internal::RequireOneFloatingDType("sum_of_squares", {&x});
  Tensor out = internal::EmptyOn(context, device, {}, DType::kF64);
  KernelsFor(device).sum_of_squares(context, x, out);
  return out;
}

}  // namespace shardmesh::ops
