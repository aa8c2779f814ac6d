// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

constexpr Op kSum{"sum"}, kMax{"max"}, kMin{"min"};

uint64_t Mask(const std::vector<int>& dims) {
  uint64_t mask = 0;
  for (int d : dims) mask |= uint64_t{1} << d;
  return mask;
}

Dims KeptShape(const Dims& shape, uint64_t mask, bool keepdim) {
  Dims kept;
  for (int d = 0; d < shape.size(); ++d) {
    if (((mask >> d) & 1u) == 0) {
      kept.push_back(shape[d]);
    } else if (keepdim) {
      kept.push_back(1);
    }
  }
  return kept;
}

OpRule ReduceRule(const DTensor& x, uint64_t mask, bool keepdim, ReduceOp reduction) {
  Rule rule = internal::FactorsOf(x.shape());
  rule.reduction = reduction;
  rule.outputs.emplace_back();
  for (int d = 0; d < x.num_dims(); ++d) {
    if (((mask >> d) & 1u) == 0) {
      rule.outputs[0].push_back(d);
    } else if (keepdim) {
      rule.outputs[0].push_back(Rule::kNotShardable);
    }
  }
  rule.Pass(reduction, 1u);
  return {std::move(rule), {KeptShape(x.shape(), mask, keepdim)}};
}

DTensor Extremum(const Op& op, ReduceOp reduction, const DTensor& x, const std::vector<int>& given,
                 bool keepdim) {
  internal::CheckUsable(op.name, x);
  if (x.dtype() == DType::kBool) {  // Of which no Partial exists.
    return Cast(Extremum(op, reduction, Cast(x, DType::kI32), given, keepdim), DType::kBool);
  }
  const std::vector<int> dims = internal::NormalizedDims(op.name, x, given);
  const uint64_t mask = Mask(dims);
  OpCall call(op, {&x});
  call.Attribute(mask, keepdim).Decide([&] {
    for (int d : dims) {
      if (x.shape()[d] == 0)
        ThrowInvalid(op.name, ": dim ", d, " of ", x.ToString(), " is empty and has no ", op.name);
    }
    return ReduceRule(x, mask, keepdim, reduction);
  });
  // An empty box has the identity, -inf or inf, which loses to every other rank.
  DTensor y = call.Result(ops::Reduce(call.context(), reduction, call.local(0), dims, keepdim));
  if (!call.Records()) return y;
  call.Record({&y}, [&op, dims, keepdim, mask, sx = Saved(call.input(0)), sy = Saved(y)](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor in = sx.Get(op.name);
    const Dims kept = KeptShape(in.shape(), mask, /*keepdim=*/true);
    const DTensor extremum = keepdim ? sy.Get(op.name) : Reshape(sy.Get(op.name), kept);
    const DTensor grad = keepdim ? grads[0] : Reshape(grads[0], kept);
    const DTensor hits = Compare(CompareOp::kEqual, in, extremum);
    if (dims.empty()) {
      out.Set(0, internal::Select(hits, grad));
      return;
    }
    const DTensor count = Cast(Sum(hits, dims, /*keepdim=*/true), grad.dtype());
    out.Set(0, internal::Select(hits, Div(grad, count)));
  });
  return y;
}

// In `dtype`: that of a sum over elements of x, or its accumulator.
DTensor SumAs(DType dtype, const DTensor& x, const std::vector<int>& given, bool keepdim) {
  const std::vector<int> dims = internal::NormalizedDims(kSum.name, x, given);
  const uint64_t mask = Mask(dims);
  OpCall call(kSum, {&x});
  call.Attribute(mask, keepdim).Decide([&] {
    return ReduceRule(x, mask, keepdim, ReduceOp::kSum);
  });
  DTensor y = call.ResultOf(dtype, ops::Reduce(call.context(), ReduceOp::kSum, call.local(0), dims,
                                               keepdim, call.LocalDType(dtype)));
  call.Record({&y}, [shape = x.shape(), dtype = x.dtype(), mask, keepdim](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor given = grads[0].dtype() == dtype ? grads[0] : Cast(grads[0], dtype);
    const DTensor grad = keepdim ? given : Reshape(given, KeptShape(shape, mask, /*keepdim=*/true));
    out.Set(0, Expand(grad, shape));
  });
  return y;
}

}  // namespace

DTensor Sum(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  internal::CheckUsable(kSum.name, x);
  return SumAs(IsFloating(x.dtype()) ? x.dtype() : DType::kI64, x, dims, keepdim);
}

DTensor Mean(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  internal::CheckUsable("mean", x);
  int64_t count = 1;
  for (int d : internal::NormalizedDims("mean", x, dims)) count *= x.shape()[d];
  if (!IsFloating(x.dtype()))
    ThrowInvalid("mean: ", x.ToString(), " is not of a floating-point dtype; cast it");
  const bool is_small = x.dtype() == DType::kBF16 || x.dtype() == DType::kF16;
  if (!is_small) return Div(Sum(x, dims, keepdim), static_cast<double>(count));
  // Rounded once, after the division: the sum may be out of x's range.
  const DTensor sum = SumAs(DType::kF32, x, dims, keepdim);
  return Cast(Div(sum, static_cast<double>(count)), x.dtype());
}

DTensor Max(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  return Extremum(kMax, ReduceOp::kMax, x, dims, keepdim);
}

DTensor Min(const DTensor& x, const std::vector<int>& dims, bool keepdim) {
  return Extremum(kMin, ReduceOp::kMin, x, dims, keepdim);
}

}  // namespace shardmesh
