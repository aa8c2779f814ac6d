// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/checkpoint_frame.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kRotary{"rotary"}, kAttention{"attention"}, kAttentionBackward{"attention_backward"};

// inverse: the gradient is rotated back.
DTensor Rotate(const DTensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  OpCall call(kRotary, {&x});
  call.Decide([&] {
    if (x.num_dims() != 4)
      ThrowInvalid(kRotary.name, ": expected [batch, heads, seq, d], got ", x.ToString());
    Rule rule = internal::FactorsOf(x.shape(), {2, 3});
    rule.outputs = {rule.inputs[0]};
    rule.linear = {1u};
    return OpRule{std::move(rule), {x.shape()}};
  });
  const DType dtype = call.local(0).dtype();
  const auto table = [&](const Tensor& values) {
    return values && values.dtype() == x.dtype() ? ops::Cast(call.context(), values, dtype)
                                                 : values;
  };
  DTensor y =
      call.Result(ops::Rotary(call.context(), call.local(0), table(cos), table(sin), inverse));
  call.Record({&y}, [cos = SavedTensor(cos), sin = SavedTensor(sin), inverse](
                        std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Rotate(grads[0], cos.Get(kRotary.name), sin.Get(kRotary.name), !inverse));
  });
  return y;
}

// Query and key heads are one factor: head i of q reads head i / (h / kv) of k, so that they are
// cut together, which works where the number of shards divides both.
struct AttentionRule {
  AttentionRule(const DTensor& q, const DTensor& k) {
    rule.factors = {{"b", false, {}},
                    {"h", false, {q.dim(1), k.dim(1)}},
                    {"s", true, {}},
                    {"t", true, {}},
                    {"d", true, {}}};
  }
  Rule rule;
  const Rule::FactorOfDim q{0, 1, 2, 4}, k{0, 1, 3, 4}, v{0, 1, 3, 4}, out{0, 1, 2, 4},
      statistics{0, 1, 2, Rule::kNotShardable};
};

void CheckOperands(const DTensor& q, const DTensor& k, const DTensor& v) {
  const bool ranks = q.num_dims() == 4 && k.num_dims() == 4 && v.num_dims() == 4;
  if (!ranks || q.dim(0) != k.dim(0) || q.dim(3) != k.dim(3) || !(k.shape() == v.shape())) {
    ThrowInvalid(kAttention.name, ": q ", q.ToString(), ", k ", k.ToString(), " and v ",
                 v.ToString(), " are not [b, h, s, d], [b, kv, t, d] and [b, kv, t, d]");
  }
  if (k.dim(1) == 0 || q.dim(1) % k.dim(1) != 0) {
    ThrowInvalid(kAttention.name, ": ", k.dim(1), " key heads do not divide ", q.dim(1),
                 " query heads");
  }
}

void AttentionBackward(const DTensor& grad, const DTensor& q, const DTensor& k, const DTensor& v,
                       const DTensor& y, const DTensor& statistics, bool causal, double scale,
                       Gradients& out) {
  OpCall call(kAttentionBackward, {&grad, &q, &k, &v, &y, &statistics});
  call.Decide([&] {
    AttentionRule attention(q, k);
    attention.rule.inputs = {attention.out, attention.q,   attention.k,
                             attention.v,   attention.out, attention.statistics};
    attention.rule.outputs = {attention.q, attention.k, attention.v};
    attention.rule.linear = {1u};
    return OpRule{std::move(attention.rule), {q.shape(), k.shape(), v.shape()}};
  });
  ops::AttentionGradients grads =
      ops::AttentionBackward(call.context(), call.local(0), call.local(1), call.local(2),
                             call.local(3), call.local(4), call.local(5), causal, scale);
  out.Set(0, call.Result(std::move(grads.dq), 0));
  out.Set(1, call.Result(std::move(grads.dk), 1));
  out.Set(2, call.Result(std::move(grads.dv), 2));
}

}  // namespace

DTensor Rotary(const DTensor& x, const Tensor& cos, const Tensor& sin) {
  return Rotate(x, cos, sin, false);
}

DTensor Attention(const DTensor& q, const DTensor& k, const DTensor& v, bool causal,
                  std::optional<double> scale) {
  if (internal::IsKept(kAttention.name, q))
    return internal::Kept(q, [&] { return Attention(q, k, v, causal, scale); });
  OpCall call(kAttention, {&q, &k, &v});
  call.Decide([&] {
    CheckOperands(q, k, v);
    AttentionRule attention(q, k);
    attention.rule.inputs = {attention.q, attention.k, attention.v};
    attention.rule.outputs = {attention.out, attention.statistics};
    return OpRule{std::move(attention.rule), {q.shape(), {q.dim(0), q.dim(1), q.dim(2), 2}}};
  });
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(q.dim(3))));
  ops::AttentionResult result =
      ops::Attention(call.context(), call.local(0), call.local(1), call.local(2), causal, factor);
  // The kernel gives the result the order of q, so that the heads can be merged without a copy.
  const internal::MemoryOrder order =
      call.IsMoved(0) ? internal::MemoryOrder::Unknown() : q.impl()->order;
  DTensor y = call.View(std::move(result.out), order, /*may_write=*/true);
  if (!call.Records()) return y;
  DTensor statistics = call.Result(std::move(result.statistics), 1);
  call.Record({&y}, [sq = Saved(call.input(0)), sk = Saved(call.input(1)),
                     sv = Saved(call.input(2)), sy = Saved(y), ss = Saved(std::move(statistics)),
                     causal, factor](std::span<const DTensor> grads, Gradients& out) {
    AttentionBackward(grads[0], sq.Get(kAttention.name), sk.Get(kAttention.name),
                      sv.Get(kAttention.name), sy.Get(kAttention.name), ss.Get(kAttention.name),
                      causal, factor, out);
  });
  return y;
}

}  // namespace shardmesh
