// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/internal/adam_step.h"

#include <cmath>

#include "shardmesh/optim/internal/tiles.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim::internal {
namespace {

// By squaring: the C library's pow differs between processors.
double Power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}

// x = factor x + weight y.
void Blend(ExecutionContext& context, double factor, Tensor& x, double weight, const Tensor& y) {
  ops::BinaryInto(context, BinaryOp::kMul, x, factor);
  ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, y, weight), x);
}

// m / root; 0 where eps and all gradients so far are 0.
Tensor Ratio(ExecutionContext& context, const Tensor& m, const Tensor& root, double eps) {
  Tensor ratio = ops::Binary(context, BinaryOp::kDiv, m, root);
  if (eps > 0) return ratio;
  const Tensor is_zero = ops::Compare(context, CompareOp::kEqual, root, 0);
  return ops::Where(context, is_zero, ops::Zeros(context, m.shape(), m.dtype()), ratio);
}

// Source: S. J. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and beyond", ICLR 2018;
// with bias correction, as PyTorch has it.
void AmsgradStep(ExecutionContext& context, const AdamWStep& o, const Tensor& g, Tensor& p,
                 Tensor& m, Tensor& v, Tensor& largest) {
  Blend(context, o.beta1, m, 1 - o.beta1, g);
  Blend(context, o.beta2, v, 1 - o.beta2, ops::Unary(context, ElementwiseOp::kSquare, g));
  ops::BinaryInto(context, BinaryOp::kMaximum, largest, v);
  Tensor root = ops::Unary(context, ElementwiseOp::kSqrt, largest);
  ops::BinaryInto(context, BinaryOp::kDiv, root, std::sqrt(1 - Power(o.beta2, o.step)));
  ops::BinaryInto(context, BinaryOp::kAdd, root, o.eps);
  const Tensor ratio = Ratio(context, m, root, o.eps);
  Blend(context, 1 - o.lr * o.weight_decay, p, -o.lr / (1 - Power(o.beta1, o.step)), ratio);
}

}  // namespace

std::vector<std::string> AdamStateNames(bool amsgrad) {
  std::vector<std::string> names = {"exp_avg", "exp_avg_sq"};
  if (amsgrad) names.push_back("max_exp_avg_sq");
  return names;
}

void AdamStep(const AdamRule& rule, ParameterUpdate& update) {
  ExecutionContext& context = update.context;
  const AdamWStep step = {.lr = rule.lr,
                          .beta1 = rule.beta1,
                          .beta2 = rule.beta2,
                          .eps = rule.eps,
                          .weight_decay = rule.decoupled_decay,
                          .step = update.step};
  Tensor &m = update.LocalState("exp_avg"), &v = update.LocalState("exp_avg_sq");
  if (!rule.amsgrad && rule.l2_decay == 0) {
    return ops::AdamW(context, step, update.gradient, update.value, m, v);
  }
  std::vector<Tensor> tensors = {update.gradient, update.value, m, v};
  if (rule.amsgrad) tensors.push_back(update.LocalState("max_exp_avg_sq"));
  ForTiles(tensors, [&](std::vector<Tensor>& tile) {
    Tensor gradient = tile[0];
    if (rule.l2_decay != 0) {
      gradient = ops::Binary(context, BinaryOp::kMul, tile[1], rule.l2_decay);
      ops::Accumulate(context, tile[0], gradient);
    }
    if (rule.amsgrad)
      return AmsgradStep(context, step, gradient, tile[1], tile[2], tile[3], tile[4]);
    ops::AdamW(context, step, gradient, tile[1], tile[2], tile[3]);
  });
}

}  // namespace shardmesh::optim::internal
