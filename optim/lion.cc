// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/lion.h"

#include <utility>

#include "shardmesh/optim/internal/tiles.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

// 1, -1, 0 of 0, nan of nan: x divided by its magnitude, which is 1 in place of 0. An infinity is
// brought down first.
Tensor Sign(ExecutionContext& context, const Tensor& x) {
  Tensor sign = ops::Binary(context, BinaryOp::kMaximum, x, -1);
  ops::BinaryInto(context, BinaryOp::kMinimum, sign, 1);
  Tensor magnitude = ops::Unary(context, ElementwiseOp::kAbs, sign);
  const Tensor is_zero = ops::Compare(context, CompareOp::kEqual, magnitude, 0);
  ops::Accumulate(context, ops::Cast(context, is_zero, x.dtype()), magnitude);
  ops::BinaryInto(context, BinaryOp::kDiv, sign, magnitude);
  return sign;
}

// factor x + weight y.
Tensor Blended(ExecutionContext& context, double factor, const Tensor& x, double weight,
               const Tensor& y) {
  Tensor result = ops::Binary(context, BinaryOp::kMul, x, factor);
  ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, y, weight), result);
  return result;
}

}  // namespace

std::vector<OptionField> LionOptions::Fields() {
  return {{"lr", &lr},
          {"beta1", &beta1, 0, 1},
          {"beta2", &beta2, 0, 1},
          {"weight_decay", &weight_decay}};
}

Lion::Lion(std::vector<nn::Parameter> parameters, const LionOptions& options,
           const std::vector<ParameterGroup<LionOptions>>& groups)
    : OptimizerOf("Lion", std::move(parameters), options, groups) {}

std::vector<std::string> Lion::StateNames(const LionOptions&) const { return {"exp_avg"}; }

void Lion::Update(const LionOptions& options, ParameterUpdate& update) {
  ExecutionContext& context = update.context;
  const std::vector<Tensor> tensors = {update.gradient, update.value, update.LocalState("exp_avg")};
  internal::ForTiles(tensors, [&](std::vector<Tensor>& tile) {
    Tensor &g = tile[0], &p = tile[1], &m = tile[2];
    const Tensor sign = Sign(context, Blended(context, options.beta1, m, 1 - options.beta1, g));
    ops::Copy(context,
              Blended(context, 1 - options.lr * options.weight_decay, p, -options.lr, sign), p);
    ops::Copy(context, Blended(context, options.beta2, m, 1 - options.beta2, g), m);
  });
}

}  // namespace shardmesh::optim
