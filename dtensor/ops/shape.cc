// SPDX-License-Identifier: Apache-2.0
//
// Ops that rearrange. A result aliases its operand where no data moves; where data moves, in-place
// ops on the result are refused, as they would not reach the operand.
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/internal/view.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {

using internal::MemoryOrder;
using internal::ViewResult;

namespace {

constexpr Op kReshape{"reshape"}, kTranspose{"transpose"}, kExpand{"expand"}, kSlice{"slice"};
constexpr Op kSliceBackward{"slice_backward"}, kConcat{"concat"};

// Both shapes are cut, from the left, into groups of dims with equal products. Within a group a
// shard of the first dim survives where the number of shards divides both first dims: then the
// pieces are the same elements. A dim of extent 1 that comes or goes is in no group: it would stand
// first where the shard is on the next.
OpRule ReshapeRule(const DTensor& x, const Dims& shape) {
  const Dims& from = x.shape();
  Rule rule;
  rule.inputs.emplace_back();
  rule.outputs.emplace_back();
  int i = 0, j = 0;
  while (i < from.size() || j < shape.size()) {
    const bool has_one = i < from.size() && from[i] == 1;
    const bool gets_one = j < shape.size() && shape[j] == 1;
    if (has_one != gets_one) {
      (has_one ? rule.inputs : rule.outputs)[0].push_back(Rule::kNotShardable);
      ++(has_one ? i : j);
      continue;
    }
    const int first_i = i, first_j = j;
    int64_t left = i < from.size() ? from[i++] : 1;
    int64_t right = j < shape.size() ? shape[j++] : 1;
    while (left != right) {
      if (left < right) {
        left *= from[i++];
      } else {
        right *= shape[j++];
      }
    }
    const bool has_both = first_i < i && first_j < j;
    const bool same = has_both && i - first_i == 1 && j - first_j == 1;
    int factor = Rule::kNotShardable;
    if (has_both) {
      factor = static_cast<int>(rule.factors.size());
      rule.factors.push_back({"g", false, {}});
      if (!same) rule.factors.back().must_divide = {from[first_i], shape[first_j]};
    }
    for (int d = first_i; d < i; ++d)
      rule.inputs[0].push_back(d == first_i ? factor : Rule::kNotShardable);
    for (int d = first_j; d < j; ++d)
      rule.outputs[0].push_back(d == first_j ? factor : Rule::kNotShardable);
  }
  rule.PassAll(1u);
  return {std::move(rule), {shape}};
}

// With an extent of 0 the groups have no meaning: nothing is sharded.
OpRule EmptyReshapeRule(const DTensor& x, const Dims& shape) {
  Rule rule;
  rule.inputs.emplace_back(x.num_dims(), Rule::kNotShardable);
  rule.outputs.emplace_back(shape.size(), Rule::kNotShardable);
  return {std::move(rule), {shape}};
}

DTensor SliceBackward(const DTensor& grad, const Dims& shape, int dim, int64_t start) {
  OpCall call(kSliceBackward, {&grad});
  call.Attribute(shape, dim).Decide([&] {
    Rule rule = internal::FactorsOf(grad.shape(), {dim});
    rule.outputs = {rule.inputs[0]};
    rule.outputs[0][dim] = Rule::kNotShardable;
    rule.linear = {1u};
    return OpRule{std::move(rule), {shape}};
  });
  const Dims local_shape = call.output_layout().LocalShape(grad.mesh().coord());
  Tensor local = ops::Zeros(call.context(), local_shape, call.LocalDType(grad.dtype()));
  Tensor part = local.Narrow(dim, start, grad.shape()[dim]);
  ops::Copy(call.context(), call.local(0), part);
  return call.Result(std::move(local));
}

}  // namespace

DTensor Reshape(const DTensor& x, const Dims& given) {
  internal::CheckUsable(kReshape.name, x);
  const Dims shape = internal::ResolvedShape(kReshape.name, x, given, x.NumElements());
  OpCall call(kReshape, {&x});
  call.Attribute(shape).Decide(
      [&] { return x.NumElements() == 0 ? EmptyReshapeRule(x, shape) : ReshapeRule(x, shape); });
  // Where strides may keep some rank from viewing, every rank copies.
  const bool is_view = !call.IsMoved(0) && x.impl()->order.IsRowMajor();
  const Tensor from = is_view ? call.local(0) : ops::Clone(call.context(), call.local(0));
  const Dims local_shape = call.output_layout().LocalShape(x.mesh().coord());
  Tensor local = ops::Reshape(call.context(), from, local_shape);
  if (local.storage() != from.storage()) {
    Throw(absl::StatusCode::kInternal, kReshape.name, ": ", from.ToString(), " of ", x.ToString(),
          " should have a view of shape ", local_shape.ToString());
  }
  DTensor y =
      call.View(std::move(local), MemoryOrder::RowMajor(),
                is_view && x.impl()->may_write && call.local(0).dtype() == x.local().dtype());
  call.Record({&y}, [from = x.shape()](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Reshape(grads[0], from));
  });
  return y;
}

DTensor Transpose(const DTensor& x, int given0, int given1) {
  internal::CheckUsable(kTranspose.name, x);
  if (x.num_dims() == 0) {  // Dim 0 of a number is itself.
    internal::DimOf(kTranspose.name, x, given0, /*scalar_has_one=*/true);
    internal::DimOf(kTranspose.name, x, given1, /*scalar_has_one=*/true);
    return Permute(x, {});
  }
  const int dim0 = internal::DimOf(kTranspose.name, x, given0);
  const int dim1 = internal::DimOf(kTranspose.name, x, given1);
  OpCall call(kTranspose, {&x});
  call.Attribute(dim0, dim1).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs = {rule.inputs[0]};
    std::swap(rule.outputs[0][dim0], rule.outputs[0][dim1]);
    rule.PassAll(1u);
    Dims shape = x.shape();
    std::swap(shape[dim0], shape[dim1]);
    return OpRule{std::move(rule), {shape}};
  });
  const MemoryOrder order = x.impl()->order;
  DTensor y = ViewResult(call, x, call.local(0).Transpose(dim0, dim1),
                         order == MemoryOrder::Unknown() ? order : order.Transposed(dim0, dim1));
  call.Record({&y}, [dim0, dim1](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Transpose(grads[0], dim0, dim1));
  });
  return y;
}

DTensor Expand(const DTensor& x, const Dims& shape) {
  OpCall call(kExpand, {&x});
  call.Attribute(shape).Decide([&] {
    const int lead = shape.size() - x.num_dims();
    if (lead < 0 || !(BroadcastShapes(x.shape(), shape, kExpand.name) == shape)) {
      ThrowInvalid(kExpand.name, ": ", x.ToString(), " does not expand to ", shape.ToString());
    }
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs.emplace_back(lead, Rule::kNotShardable);
    for (int d = 0; d < x.num_dims(); ++d) {
      const bool repeated = x.shape()[d] != shape[lead + d];
      if (repeated) rule.inputs[0][d] = Rule::kNotShardable;
      rule.outputs[0].push_back(repeated ? Rule::kNotShardable : d);
    }
    rule.PassAll(1u);
    return OpRule{std::move(rule), {shape}};
  });
  Tensor local = call.local(0).Expand(call.output_layout().LocalShape(x.mesh().coord()));
  // Several elements share one place in memory.
  DTensor y = call.View(std::move(local), MemoryOrder::Unknown(), /*may_write=*/false);
  call.Record({&y}, [from = x.shape()](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, internal::SumTo(grads[0], from));
  });
  return y;
}

DTensor Slice(const DTensor& x, int given, int64_t start, int64_t length) {
  internal::CheckUsable(kSlice.name, x);
  const int dim = internal::DimOf(kSlice.name, x, given);
  OpCall call(kSlice, {&x});
  call.Attribute(dim, length);
  if (start < 0 || length < 0 || start > x.shape()[dim] - length) {
    ThrowInvalid(kSlice.name, ": ", length, " from ", start, " on is not within dim ", dim, " of ",
                 x.ToString());
  }
  call.Decide([&] {
    Rule rule = internal::FactorsOf(x.shape(), {dim});
    rule.outputs = {rule.inputs[0]};
    rule.outputs[0][dim] = Rule::kNotShardable;
    rule.PassAll(1u);
    Dims shape = x.shape();
    shape[dim] = length;
    return OpRule{std::move(rule), {shape}};
  });
  const MemoryOrder order = x.impl()->order;
  const bool keeps_order = length == x.shape()[dim] || order.IsOutermost(dim);
  DTensor y = ViewResult(call, x, call.local(0).Narrow(dim, start, length),
                         keeps_order ? order : MemoryOrder::Unknown());
  call.Record({&y},
              [shape = x.shape(), dim, start](std::span<const DTensor> grads, Gradients& out) {
                out.Set(0, SliceBackward(grads[0], shape, dim, start));
              });
  return y;
}

std::vector<DTensor> Split(const DTensor& x, const std::vector<int64_t>& sizes, int dim) {
  internal::CheckUsable("split", x);
  int64_t total = 0;
  for (int64_t size : sizes) {
    if (size < 0) ThrowInvalid("split: negative size ", size);
    if (__builtin_add_overflow(total, size, &total))
      ThrowInvalid("split: size ", size, " is more than dim ", dim, " of ", x.ToString(), " has");
  }
  if (total != x.shape()[internal::DimOf("split", x, dim)]) {
    ThrowInvalid("split: sizes add up to ", total, ", not to the extent of dim ", dim, " of ",
                 x.ToString());
  }
  std::vector<DTensor> parts;
  int64_t start = 0;
  for (int64_t size : sizes) {
    parts.push_back(Slice(x, dim, start, size));
    start += size;
  }
  return parts;
}

DTensor Concat(const std::vector<DTensor>& parts, int given) {
  if (parts.empty()) ThrowInvalid(kConcat.name, ": no tensors");
  internal::CheckUsable(kConcat.name, parts[0]);
  const int dim = internal::DimOf(kConcat.name, parts[0], given);
  absl::InlinedVector<const DTensor*, 4> operands;
  for (const DTensor& part : parts) operands.push_back(&part);
  OpCall call(kConcat, std::span<const DTensor* const>(operands.data(), operands.size()));
  call.Attribute(dim).Decide([&] {
    Dims shape = parts[0].shape();
    shape[dim] = 0;
    Rule rule = internal::FactorsOf(parts[0].shape(), {dim});
    rule.inputs[0][dim] = Rule::kNotShardable;
    rule.outputs = {rule.inputs[0]};
    rule.inputs.assign(parts.size(), rule.outputs[0]);
    for (const DTensor& part : parts) {
      Dims other = part.shape();
      if (other.size() == shape.size()) other[dim] = shape[dim];
      if (!(other == shape)) {
        ThrowInvalid(kConcat.name, ": ", parts[0].ToString(), " and ", part.ToString(),
                     " differ in a dim other than ", dim);
      }
      shape[dim] += part.shape()[dim];
    }
    if (parts.size() < 32) rule.PassAll((1u << parts.size()) - 1);
    return OpRule{std::move(rule), {shape}};
  });
  std::vector<Tensor> locals;
  for (size_t i = 0; i < parts.size(); ++i) locals.push_back(call.local(static_cast<int>(i)));
  DTensor y = call.Result(ops::Concat(call.context(), locals, dim));
  std::vector<int64_t> sizes;
  for (const DTensor& part : parts) sizes.push_back(part.shape()[dim]);
  call.Record({&y}, [sizes, dim](std::span<const DTensor> grads, Gradients& out) {
    int64_t start = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (out.Needs(static_cast<int>(i)))
        out.Set(static_cast<int>(i), Slice(grads[0], dim, start, sizes[i]));
      start += sizes[i];
    }
  });
  return y;
}

}  // namespace shardmesh
