// SPDX-License-Identifier: Apache-2.0
//
// The rows of elementwise_ops.inc on local tensors.
#include <algorithm>
#include <array>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using Operands = std::span<const Tensor* const>;

void CheckDType(const ElementwiseRow& row, DType dtype) {
  const bool is_integer = dtype == DType::kI32 || dtype == DType::kI64;
  if (row.Has(elementwise::kIntegers)) {
    if (is_integer || (dtype == DType::kBool && row.Has(elementwise::kBools))) return;
    ThrowInvalid(row.name, ": needs an integer dtype, got ", std::string(Name(dtype)));
  }
  if (IsFloating(dtype) || (is_integer && row.Has(elementwise::kNumbers)) ||
      (dtype == DType::kBool && row.Has(elementwise::kBools)))
    return;
  if (!row.Has(elementwise::kNumbers)) ThrowNotFloating(dtype, row.name);
  ThrowInvalid(row.name, ": not defined for ", std::string(Name(dtype)));
}

// One device and one dtype. Returns the device.
Device CheckOperands(const char* op, Operands operands) {
  const Tensor& first = *operands[0];
  for (const Tensor* x : operands) {
    if (!*x) ThrowInvalid(op, ": an operand is missing");
    internal::DeviceOf(op, {&first, x});
    if (x->dtype() == first.dtype()) continue;
    ThrowInvalid(op, ": ", first.ToString(), " and ", x->ToString(),
                 " differ in dtype; cast one of them");
  }
  return first.device();
}

// Integers have no number for a division by 0.
void CheckDivisor(ExecutionContext& context, const char* op, const Tensor& b) {
  if (IsFloating(b.dtype()) || b.device().kind == DeviceKind::kMeta) return;
  const Tensor is_zero = Compare(context, CompareOp::kEqual, b, 0.0);
  if (Reduce(context, ReduceOp::kMax, is_zero, {}, /*keepdim=*/false).Item() != 0)
    ThrowInvalid(op, ": an integer is divided by 0 in ", b.ToString());
}

// Operands as views of one shape.
class Expanded {
 public:
  Expanded(Operands operands, const Dims& shape) {
    for (const Tensor* x : operands) {
      if (!(x->shape() == shape)) views_.push_back(x->Expand(shape));
    }
    size_t next = 0;
    for (const Tensor* x : operands) pointers_.push_back(x->shape() == shape ? x : &views_[next++]);
  }
  Operands operands() const { return {pointers_.data(), pointers_.size()}; }

 private:
  absl::InlinedVector<Tensor, 4> views_;
  absl::InlinedVector<const Tensor*, 4> pointers_;
};

void CheckReads(const ElementwiseRow& row, const Tensor& grad, Operands reads) {
  absl::InlinedVector<const Tensor*, 5> all = {&grad};
  all.insert(all.end(), reads.begin(), reads.end());
  CheckOperands(row.name, {all.data(), all.size()});
  if (!IsFloating(grad.dtype())) ThrowNotFloating(grad.dtype(), row.name);
}

}  // namespace

Tensor Elementwise(ExecutionContext& context, ElementwiseOp op, Operands operands,
                   const ElementwiseParams& params) {
  const ElementwiseRow& row = RowOf(op);
  const Device device = CheckOperands(row.name, operands);
  CheckDType(row, operands[0]->dtype());
  Dims shape = operands[0]->shape();
  bool is_one_shape = true;
  for (const Tensor* x : operands.subspan(1)) {
    if (x->shape() == shape) continue;
    shape = BroadcastShapes(shape, x->shape(), row.name);
    is_one_shape = false;
  }
  if (row.Has(elementwise::kWholeDivisor)) CheckDivisor(context, row.name, *operands[1]);
  Tensor out =
      internal::EmptyOn(context, device, shape,
                        row.Has(elementwise::kBoolResult) ? DType::kBool : operands[0]->dtype());
  if (is_one_shape) {
    KernelsFor(device).elementwise(context, op, params.data(), operands, out);
  } else {
    const Expanded expanded(operands, shape);
    KernelsFor(device).elementwise(context, op, params.data(), expanded.operands(), out);
  }
  return out;
}

Tensor ElementwiseGradient(ExecutionContext& context, ElementwiseOp op, int operand,
                           const Tensor& grad, Operands reads, const ElementwiseParams& params) {
  CheckReads(RowOf(op), grad, reads);
  Tensor out = internal::EmptyOn(context, grad.device(), grad.shape(), grad.dtype());
  Tensor* const outs[] = {&out};
  const Expanded expanded(reads, grad.shape());
  KernelsFor(grad.device())
      .elementwise_gradient(context, op, operand, params.data(), grad, expanded.operands(),
                            std::span(outs));
  return out;
}

std::pair<Tensor, Tensor> ElementwiseGradients(ExecutionContext& context, ElementwiseOp op,
                                               const Tensor& grad, Operands reads,
                                               const ElementwiseParams& params) {
  CheckReads(RowOf(op), grad, reads);
  Tensor da = internal::EmptyOn(context, grad.device(), grad.shape(), grad.dtype());
  Tensor db = internal::EmptyOn(context, grad.device(), grad.shape(), grad.dtype());
  Tensor* const outs[] = {&da, &db};
  const Expanded expanded(reads, grad.shape());
  KernelsFor(grad.device())
      .elementwise_gradient(context, op, 0, params.data(), grad, expanded.operands(),
                            std::span(outs));
  return {da, db};
}

}  // namespace shardmesh::ops
