// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

// The shape of a b, whose batch dims broadcast.
Dims ProductShape(const Tensor& a, const Tensor& b) {
  internal::DeviceOf("matmul", {&a, &b});
  internal::RequireOneFloatingDType("matmul", {&a, &b});
  if (a.num_dims() < 2 || b.num_dims() < 2) {
    ThrowInvalid("matmul: operands need at least two dims: ", a.ToString(), ", ", b.ToString());
  }
  if (a.dim(-1) != b.dim(-2)) {
    ThrowInvalid("matmul: ", a.ToString(), " has ", a.dim(-1), " columns, but ", b.ToString(),
                 " has ", b.dim(-2), " rows");
  }
  const auto batch_of = [](const Tensor& x) {
    return Dims(std::span<const int64_t>(x.shape().begin(), x.num_dims() - 2));
  };
  Dims shape = BroadcastShapes(batch_of(a), batch_of(b), "matmul: batch dims");
  shape.push_back(a.dim(-2));
  shape.push_back(b.dim(-1));
  return shape;
}

// x with the batch dims of `shape`.
Tensor ExpandBatch(const Tensor& x, Dims shape) {
  shape[shape.size() - 2] = x.dim(-2);
  shape[shape.size() - 1] = x.dim(-1);
  return x.shape() == shape ? x : x.Expand(shape);
}

void Multiply(ExecutionContext& context, const Tensor& a, const Tensor& b, bool accumulate,
              Tensor& out) {
  KernelsFor(a.device())
      .matmul(context, ExpandBatch(a, out.shape()), ExpandBatch(b, out.shape()), accumulate, out);
}

}  // namespace

Tensor MatMul(ExecutionContext& context, const Tensor& a, const Tensor& b,
              std::optional<DType> out_dtype) {
  const Dims shape = ProductShape(a, b);
  const DType dtype = internal::ResultDType("matmul", a.dtype(), out_dtype);
  Tensor out = internal::EmptyOn(context, a.device(), shape, dtype);
  Multiply(context, a, b, /*accumulate=*/false, out);
  return out;
}

void MatMulInto(ExecutionContext& context, const Tensor& a, const Tensor& b, bool accumulate,
                Tensor& out) {
  const Dims shape = ProductShape(a, b);
  internal::DeviceOf("matmul", {&a, &b, &out});
  internal::RequireShape("matmul", "the result", out, shape);
  internal::ResultDType("matmul", a.dtype(), out.dtype());
  internal::RequireApart("matmul", out, {&a, &b});
  Multiply(context, a, b, accumulate, out);
  out.storage()->BumpVersion();
}

}  // namespace shardmesh::ops
