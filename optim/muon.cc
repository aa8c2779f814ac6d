// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

// Of the iteration: chosen for a steep slope at 0, so that few steps bring all singular values into
// about 0.7 to 1.2.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;

// Every shard along `dim`; as it is where that is so already.
Layout ShardedAlong(int dim, const Layout& layout) {
  Placements placements = layout.placements();
  for (Placement& placement : placements) {
    if (placement.IsShard()) placement = Shard(dim);
  }
  if (placements == layout.placements()) return layout;
  return Layout::Make(layout.mesh(), placements, layout.global_shape());
}

// Shape: x [m, n] -> [m, n], whose singular vectors are those of x and whose singular values are
// about 1.
DTensor NewtonSchulz(const DTensor& matrix, int64_t steps) {
  const bool is_tall = matrix.dim(0) > matrix.dim(1);
  DTensor x = Redistribute(matrix, ShardedAlong(is_tall ? 0 : 1, matrix.layout()));
  if (is_tall) x = Transpose(x, 0, 1);  // The product below is the smaller one of the two.
  x = x / Maximum(Sqrt(Sum(Square(x))), kLeastNorm);
  const std::vector<Placement> everywhere(x.layout().num_axes(), Replicate());
  for (int64_t i = 0; i < steps; ++i) {
    // Reduced once, for its three uses.
    const DTensor gram = Redistribute(MatMul(x, Transpose(x, 0, 1)), everywhere);
    x = x * kA + MatMul(gram * kB + MatMul(gram, gram) * kC, x);
  }
  if (is_tall) x = Transpose(x, 0, 1);
  return Redistribute(x, matrix.layout());
}

double ScaleOf(const MuonOptions& options, const nn::Parameter& parameter) {
  const auto rows = static_cast<double>(parameter.shape()[0]);
  const auto columns = static_cast<double>(parameter.shape()[1]);
  if (options.match_rms_adamw) return 0.2 * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

std::vector<OptionField> MuonOptions::Fields() {
  return {{"lr", &lr},
          {"momentum", &momentum, 0, 1},
          {"weight_decay", &weight_decay},
          {"nesterov", &nesterov},
          {"ns_steps", &ns_steps, /*low=*/0, /*high=*/100},
          {"match_rms_adamw", &match_rms_adamw}};
}

Muon::Muon(std::vector<nn::Parameter> parameters, const MuonOptions& options,
           const std::vector<ParameterGroup<MuonOptions>>& groups)
    : OptimizerOf("Muon", std::move(parameters), options, groups) {
  for (const nn::Parameter& parameter : this->parameters()) {
    if (parameter.shape().size() == 2) continue;
    ThrowInvalid("Muon: parameter ", parameter.ToString(), " has ", parameter.shape().size(),
                 " dims, expected 2; give it to another optimizer, AdamW for example");
  }
}

std::vector<std::string> Muon::StateNames(const MuonOptions&) const { return {"momentum_buffer"}; }

void Muon::Update(const MuonOptions& options, ParameterUpdate& update) {
  const nn::Parameter& parameter = update.parameter;
  if (parameter.shape().NumElements() == 0) return;
  const DTensor& gradient = parameter.data().grad();
  const NoGrad no_grad(parameter.mesh());
  const DTensor& buffer = update.GlobalState("momentum_buffer");
  MulInPlace(buffer, options.momentum);
  AddInPlace(buffer, gradient * (1 - options.momentum));
  DTensor direction = buffer;
  if (options.nesterov) direction = gradient * (1 - options.momentum) + buffer * options.momentum;
  direction = NewtonSchulz(direction, options.ns_steps);
  MulInPlace(parameter.data(), 1 - options.lr * options.weight_decay);
  AddInPlace(parameter.data(), direction * (-options.lr * ScaleOf(options, parameter)));
}

}  // namespace shardmesh::optim
