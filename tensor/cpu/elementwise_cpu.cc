// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/elementwise_cpu.h"

#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"

namespace shardmesh {
namespace {

using cpu::ElementwiseLoop;
using cpu::ElementwiseLoops;

const ElementwiseLoops& LoopsFor(ElementwiseOp op) {
  const int row = static_cast<int>(op);
  switch (RowOf(op).arity) {
    case 1:
      return cpu::UnaryLoops()[row];
    case 2:
      return cpu::BinaryLoops()[row - NumUnaryOps()];
    default:
      return cpu::TernaryLoops()[row - NumUnaryOps() - NumBinaryOps()];
  }
}

void Run(ExecutionContext& context, ElementwiseOp op, ElementwiseLoop loop, const double* params,
         std::span<const Tensor* const> inputs, std::span<const Tensor* const> outputs) {
  SHARDMESH_CHECK(loop != nullptr) << Name(op) << " has no such loop";
  cpu::ForEachRun(context, inputs, outputs,
                  [&](char* const* data, int64_t n) { loop(data, n, params); });
}

void Elementwise(ExecutionContext& context, ElementwiseOp op, const double* params,
                 std::span<const Tensor* const> operands, Tensor& out) {
  const Tensor* const outputs[] = {&out};
  const ElementwiseLoop loop = LoopsFor(op).value[static_cast<int>(operands[0]->dtype())];
  Run(context, op, loop, params, operands, outputs);
}

void ElementwiseGradient(ExecutionContext& context, ElementwiseOp op, int operand,
                         const double* params, const Tensor& grad,
                         std::span<const Tensor* const> reads, std::span<Tensor* const> outs) {
  const ElementwiseLoops& loops = LoopsFor(op);
  const int dtype = static_cast<int>(grad.dtype());
  const ElementwiseLoop loop =
      outs.size() == 2 ? loops.both[dtype] : loops.gradient[operand][dtype];
  const Tensor* inputs[5] = {&grad};
  size_t count = 1;
  for (const Tensor* read : reads) inputs[count++] = read;
  const Tensor* outputs[2] = {outs[0], outs.back()};
  Run(context, op, loop, params, {inputs, count}, {outputs, outs.size()});
}

}  // namespace

void FillElementwiseKernels(KernelTable& table) {
  table.elementwise = Elementwise;
  table.elementwise_gradient = ElementwiseGradient;
}

}  // namespace shardmesh
