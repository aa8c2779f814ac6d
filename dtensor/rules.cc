// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::internal {
namespace {

constexpr Op kSumTo{"sum_to_shape"}, kSelect{"select"};

// Bit d: dim d of `from` is summed to get `to`.
uint32_t SummedDims(const Dims& from, const Dims& to) {
  const int lead = from.size() - to.size();
  uint32_t summed = 0;
  for (int d = 0; d < from.size(); ++d) {
    if (d < lead || (to[d - lead] == 1 && from[d] != 1)) summed |= 1u << d;
  }
  return summed;
}

OpRule SumToRule(const DTensor& grad, const Dims& shape) {
  const uint32_t summed = SummedDims(grad.shape(), shape);
  const int lead = grad.num_dims() - shape.size();
  Rule rule = FactorsOf(grad.shape());
  rule.outputs.emplace_back();
  for (int d = lead; d < grad.num_dims(); ++d) {
    rule.outputs[0].push_back(((summed >> d) & 1u) != 0 ? Rule::kNotShardable : rule.inputs[0][d]);
  }
  rule.linear = {1u};
  return {std::move(rule), {shape}};
}

void SumInto(ExecutionContext& context, const Tensor& grad, uint32_t summed, bool accumulate,
             Tensor& target) {
  Dims keep = grad.shape();
  for (int d = 0; d < keep.size(); ++d) {
    if (((summed >> d) & 1u) != 0) keep[d] = 1;
  }
  const KernelTable& kernels = KernelsFor(context.device());
  if (!accumulate) {
    Tensor view = *target.TryView(keep);
    kernels.reduce(context, ReduceOp::kSum, grad, summed, view);
    return;
  }
  Tensor sum = Tensor::Empty(context, keep, target.dtype());
  kernels.reduce(context, ReduceOp::kSum, grad, summed, sum);
  ops::Accumulate(context, *sum.TryView(target.shape()), target);
}

}  // namespace

Rule FactorsOf(const Dims& shape, std::initializer_list<int> whole) {
  Rule rule;
  rule.inputs.emplace_back();
  for (int d = 0; d < shape.size(); ++d) {
    const bool is_whole = std::find(whole.begin(), whole.end(), d) != whole.end();
    rule.factors.push_back({absl::StrCat("d", d), is_whole, {}});
    rule.inputs[0].push_back(d);
  }
  return rule;
}

OpRule ElementwiseRule(const char* op, std::span<const DTensor* const> operands,
                       std::initializer_list<uint32_t> linear) {
  Dims shape = operands[0]->shape();
  for (const DTensor* operand : operands) shape = BroadcastShapes(shape, operand->shape(), op);
  Rule rule = FactorsOf(shape);
  rule.outputs = {rule.inputs[0]};
  rule.inputs.clear();
  for (const DTensor* operand : operands) {
    const int lead = shape.size() - operand->num_dims();
    Rule::FactorOfDim dims;
    for (int d = 0; d < operand->num_dims(); ++d) {
      dims.push_back(operand->shape()[d] == shape[lead + d] ? lead + d : Rule::kNotShardable);
    }
    rule.inputs.push_back(std::move(dims));
  }
  rule.linear = linear;
  return {std::move(rule), {shape}};
}

DTensor Select(const DTensor& mask, const DTensor& x, bool keep) {
  OpCall call(kSelect, {&mask, &x});
  call.Decide([&] {
    const DTensor* operands[] = {&mask, &x};
    return ElementwiseRule(kSelect.name, operands, {2u});
  });
  const Tensor zero = ops::Zeros(call.context(), {}, call.local(1).dtype());
  const Tensor& a = keep ? call.local(1) : zero;
  const Tensor& b = keep ? zero : call.local(1);
  return call.Result(ops::Where(call.context(), call.local(0), a, b));
}

DTensor SumTo(const DTensor& grad, const Dims& shape) {
  if (grad.shape() == shape) return grad;
  OpCall call(kSumTo, {&grad});
  call.Attribute(shape).Decide([&] { return SumToRule(grad, shape); });
  const Layout& layout = call.output_layout();
  Tensor sum = Tensor::Empty(call.context(), layout.LocalShape(grad.mesh().coord()),
                             call.LocalDType(grad.dtype()));
  SumInto(call.context(), call.local(0), SummedDims(grad.shape(), shape), /*accumulate=*/false,
          sum);
  return call.Result(std::move(sum));
}

void WriteSumTo(Gradients& out, int operand, const DTensor& grad, const Dims& shape) {
  if (grad.shape() == shape) {
    out.Set(operand, grad);
    return;
  }
  OpCall call(kSumTo, {&grad});
  call.Attribute(shape).Decide([&] { return SumToRule(grad, shape); });
  out.Write(operand, grad.mesh(), call.output_layout(), grad.dtype(),
            [&](Tensor& target, bool accumulate) {
              SumInto(call.context(), call.local(0), SummedDims(grad.shape(), shape), accumulate,
                      target);
            });
}

int DimOf(const char* op, const DTensor& x, int dim, bool scalar_has_one, int extra) {
  const int dims = std::max(scalar_has_one ? 1 : 0, x.num_dims()) + extra;
  if (dim >= -dims && dim < dims) return dim < 0 ? dim + dims : dim;
  ThrowInvalid(op, ": dim ", dim, " is out of range for ", x.ToString());
}

Dims ResolvedShape(const char* op, const DTensor& x, const Dims& shape, int64_t num_elements) {
  try {
    return ResolveShape(shape, num_elements, op);
  } catch (const Error& error) {
    Throw(error.code(), error.message(), "; called with ", x.ToString());
  }
}

void CheckSameDType(const char* op, const DTensor& a, const DTensor& b) {
  if (a.dtype() == b.dtype()) return;
  ThrowInvalid(op, ": ", a.ToString(), " and ", b.ToString(), " differ in dtype; cast one of them");
}

void CheckFloating(const char* op, const DTensor& x) {
  if (IsFloating(x.dtype())) return;
  ThrowInvalid(op, ": needs a floating-point dtype, got ", x.ToString(), "; cast it");
}

std::vector<int> NormalizedDims(const char* op, const DTensor& x, const std::vector<int>& dims) {
  // A tensor without dims has one to reduce over all the same, of extent 1.
  std::vector<bool> reduced(static_cast<size_t>(std::max(1, x.num_dims())), dims.empty());
  for (int dim : dims) {
    const int d = DimOf(op, x, dim, /*scalar_has_one=*/true);
    if (reduced[d]) ThrowInvalid(op, ": dim ", dim, " of ", x.ToString(), " is given twice");
    reduced[d] = true;
  }
  std::vector<int> result;
  for (int d = 0; d < x.num_dims(); ++d) {
    if (reduced[d]) result.push_back(d);
  }
  return result;
}

void CheckRankAtLeast(const char* op, const DTensor& x, int rank) {
  if (x.num_dims() < rank)
    ThrowInvalid(op, ": expected at least ", rank, " dims, got ", x.ToString());
}

}  // namespace shardmesh::internal
