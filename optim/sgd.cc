// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/sgd.h"

#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/optim/internal/tiles.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

// p -= lr d.
void Descend(ExecutionContext& context, double lr, const Tensor& d, Tensor& p) {
  Tensor no_buffer;
  ops::Sgd(context, lr, /*momentum=*/0, /*weight_decay=*/0, /*first=*/true, d, p, no_buffer);
}

// What the fused kernel does not know: dampening and Nesterov's momentum.
void StepInParts(ExecutionContext& context, const SgdOptions& options, bool first, const Tensor& g,
                 Tensor& p, Tensor& b) {
  Tensor d = ops::Binary(context, BinaryOp::kMul, p, options.weight_decay);
  ops::Accumulate(context, g, d);
  if (first) {
    ops::Copy(context, d, b);
  } else {
    ops::BinaryInto(context, BinaryOp::kMul, b, options.momentum);
    ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, d, 1 - options.dampening), b);
  }
  if (!options.nesterov) return Descend(context, options.lr, b, p);
  ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, b, options.momentum), d);
  Descend(context, options.lr, d, p);
}

}  // namespace

std::vector<OptionField> SgdOptions::Fields() {
  return {{"lr", &lr},
          {"momentum", &momentum},
          {"weight_decay", &weight_decay},
          {"dampening", &dampening},
          {"nesterov", &nesterov}};
}

void SgdOptions::Validate(std::string_view optimizer) const {
  if (!nesterov || (momentum > 0 && dampening == 0)) return;
  ThrowInvalid(std::string(optimizer), ": nesterov needs a momentum and no dampening, got ",
               momentum, " and ", dampening);
}

Sgd::Sgd(std::vector<nn::Parameter> parameters, const SgdOptions& options,
         const std::vector<ParameterGroup<SgdOptions>>& groups)
    : OptimizerOf("Sgd", std::move(parameters), options, groups) {}

std::vector<std::string> Sgd::StateNames(const SgdOptions& options) const {
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

void Sgd::Update(const SgdOptions& options, ParameterUpdate& update) {
  ExecutionContext& context = update.context;
  if (options.momentum == 0) {
    Tensor no_buffer;
    return ops::Sgd(context, options.lr, /*momentum=*/0, options.weight_decay, /*first=*/false,
                    update.gradient, update.value, no_buffer);
  }
  const bool first = update.IsNew("momentum_buffer");
  Tensor& buffer = update.LocalState("momentum_buffer");
  if (options.dampening == 0 && !options.nesterov) {
    return ops::Sgd(context, options.lr, options.momentum, options.weight_decay, first,
                    update.gradient, update.value, buffer);
  }
  internal::ForTiles({update.gradient, update.value, buffer}, [&](std::vector<Tensor>& tile) {
    StepInParts(context, options, first, tile[0], tile[1], tile[2]);
  });
}

}  // namespace shardmesh::optim
