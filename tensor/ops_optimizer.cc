// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

// One shape, contiguous; the state in the dtype of the parameter.
Device CheckStep(const char* op, const Tensor& grad, const Tensor& p,
                 std::initializer_list<std::pair<const char*, const Tensor*>> state) {
  const Device device = internal::DeviceOf(op, {&p, &grad});
  internal::RequireOneFloatingDType(op, {&grad});
  if (p.dtype() != DType::kF32 && p.dtype() != DType::kF64) {
    ThrowInvalid(op, ": parameters are f32 or f64, got ", p.ToString());
  }
  internal::RequireShape(op, "the gradient", grad, p.shape());
  bool contiguous = grad.IsContiguous() && p.IsContiguous();
  for (const auto& [name, x] : state) {
    if (!*x) continue;
    internal::DeviceOf(op, {&p, x});
    internal::RequireShape(op, name, *x, p.shape());
    internal::RequireDType(op, name, *x, p.dtype());
    contiguous = contiguous && x->IsContiguous();
  }
  if (!contiguous)
    ThrowInvalid(op, ": parameter, gradient and state must be contiguous: ", p.ToString());
  return device;
}

}  // namespace

void AdamW(ExecutionContext& context, const AdamWStep& options, const Tensor& grad, Tensor& p,
           Tensor& m, Tensor& v) {
  const Device device = CheckStep("adamw", grad, p, {{"m", &m}, {"v", &v}});
  if (!m || !v) ThrowInvalid("adamw: needs both moments of ", p.ToString());
  if (options.step < 1) ThrowInvalid("adamw: steps count from 1, got ", options.step);
  KernelsFor(device).adamw(context, options, grad, p, m, v);
  for (Tensor* written : {&p, &m, &v}) written->storage()->BumpVersion();
}

void Sgd(ExecutionContext& context, double lr, double momentum, double weight_decay, bool first,
         const Tensor& grad, Tensor& p, Tensor& buffer) {
  const Device device = CheckStep("sgd", grad, p, {{"the momentum", &buffer}});
  if (!buffer && momentum != 0.0) ThrowInvalid("sgd: a momentum of ", momentum, " needs a buffer");
  KernelsFor(device).sgd(context, lr, momentum, weight_decay, first, grad, p, buffer);
  p.storage()->BumpVersion();
  if (buffer) buffer.storage()->BumpVersion();
}

}  // namespace shardmesh::ops
