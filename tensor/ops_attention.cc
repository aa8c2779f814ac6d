// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::DeviceOf;
using internal::EmptyInOrderOf;
using internal::RequireDType;
using internal::RequireOneFloatingDType;
using internal::RequireShape;

void RequireHeads(const char* op, const char* name, const Tensor& x) {
  if (x.num_dims() != 4) {
    ThrowInvalid(op, ": ", name, " needs the dims [batch, heads, sequence, head_dim], got ",
                 x.ToString());
  }
}

// What q, k and v have to do with each other.
void CheckAttention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  RequireOneFloatingDType(op, {&q, &k, &v});
  RequireHeads(op, "q", q);
  RequireHeads(op, "k", k);
  RequireShape(op, "v", v, k.shape());
  if (q.dim(0) != k.dim(0) || q.dim(3) != k.dim(3)) {
    ThrowInvalid(op, ": q ", q.ToString(), " and k ", k.ToString(), " differ in batch or head_dim");
  }
  if (q.dim(3) < 1) ThrowInvalid(op, ": head_dim must be positive, got ", q.ToString());
  const int64_t heads = q.dim(1), key_heads = k.dim(1);
  if (key_heads == 0 ? heads != 0 : heads % key_heads != 0) {
    ThrowInvalid(op, ": ", heads, " query heads do not share ", key_heads, " key heads evenly");
  }
}

Tensor WithContiguousRows(ExecutionContext& context, const Tensor& x) {
  return x.dim(-1) <= 1 || x.strides().back() == 1 ? x : Contiguous(context, x);
}

// The largest score of each query, and its sum of exponentials.
Dims StatisticsShape(const Tensor& q) { return {q.dim(0), q.dim(1), q.dim(2), 2}; }

}  // namespace

Tensor Rotary(ExecutionContext& context, const Tensor& x, const Tensor& cos, const Tensor& sin,
              bool inverse) {
  const Device device = DeviceOf("rotary", {&x, &cos, &sin});
  RequireOneFloatingDType("rotary", {&x});
  RequireHeads("rotary", "x", x);
  if (x.dim(3) % 2 != 0) ThrowInvalid("rotary: head_dim must be even, got ", x.ToString());
  for (const auto& [name, table] : {std::pair{"cos", &cos}, std::pair{"sin", &sin}}) {
    RequireShape("rotary", name, *table, {x.dim(2), x.dim(3) / 2});
    RequireDType("rotary", name, *table, internal::AccumulatorDType(x.dtype()));
  }
  const Tensor rows = WithContiguousRows(context, x);
  Tensor out = EmptyInOrderOf(context, rows, x.shape(), x.dtype());
  KernelsFor(device).rotary(context, rows, Contiguous(context, cos), Contiguous(context, sin),
                            inverse, out);
  return out;
}

AttentionResult Attention(ExecutionContext& context, const Tensor& q, const Tensor& k,
                          const Tensor& v, bool causal, double scale) {
  const Device device = DeviceOf("attention", {&q, &k, &v});
  CheckAttention("attention", q, k, v);
  const Tensor queries = WithContiguousRows(context, q);
  AttentionResult result;
  result.out = EmptyInOrderOf(context, queries, q.shape(), q.dtype());
  result.statistics =
      internal::EmptyOn(context, device, StatisticsShape(q), internal::AccumulatorDType(q.dtype()));
  KernelsFor(device).attention(context, queries, WithContiguousRows(context, k),
                               WithContiguousRows(context, v), causal, scale, result.out,
                               result.statistics);
  return result;
}

AttentionGradients AttentionBackward(ExecutionContext& context, const Tensor& grad, const Tensor& q,
                                     const Tensor& k, const Tensor& v, const Tensor& out,
                                     const Tensor& statistics, bool causal, double scale) {
  const char* op = "attention backward";
  const Device device = DeviceOf(op, {&grad, &q, &k, &v, &out, &statistics});
  CheckAttention(op, q, k, v);
  RequireOneFloatingDType(op, {&q, &grad, &out});
  RequireShape(op, "the gradient", grad, q.shape());
  RequireShape(op, "out", out, q.shape());
  RequireShape(op, "statistics", statistics, StatisticsShape(q));
  RequireDType(op, "statistics", statistics, internal::AccumulatorDType(q.dtype()));
  const Tensor rows[] = {WithContiguousRows(context, q), WithContiguousRows(context, k),
                         WithContiguousRows(context, v)};
  AttentionGradients gradients;
  gradients.dq = EmptyInOrderOf(context, rows[0], q.shape(), q.dtype());
  gradients.dk = EmptyInOrderOf(context, rows[1], k.shape(), k.dtype());
  gradients.dv = EmptyInOrderOf(context, rows[2], v.shape(), v.dtype());
  KernelsFor(device).attention_backward(context, WithContiguousRows(context, grad), rows[0],
                                        rows[1], rows[2], WithContiguousRows(context, out),
                                        statistics, causal, scale, gradients.dq, gradients.dk,
                                        gradients.dv);
  return gradients;
}

}  // namespace shardmesh::ops
