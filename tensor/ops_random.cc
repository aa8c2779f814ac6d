// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

// The box lies in the global tensor.
void CheckBox(const char* op, const RandomBox& box, const Tensor& local) {
  const Dims &shape = local.shape(), &global = box.global_shape, &begin = box.begin;
  bool fits = global.size() == shape.size() && begin.size() == shape.size();
  for (int dim = 0; fits && dim < shape.size(); ++dim) {
    fits = 0 <= begin[dim] && begin[dim] <= global[dim] && shape[dim] <= global[dim] - begin[dim];
  }
  if (fits) return;
  ThrowInvalid(op, ": ", local.ToString(), " at ", begin.ToString(),
               " does not lie in a global tensor of shape ", global.ToString());
}

void CheckOutput(const char* op, const RandomBox& box, const Tensor& out) {
  internal::DeviceOf(op, {&out});
  internal::RequireOneFloatingDType(op, {&out});
  CheckBox(op, box, out);
  internal::RequireWritable(op, out);
}

}  // namespace

void RandomUniform(ExecutionContext& context, RandomKey key, const RandomBox& box, double low,
                   double high, Tensor& out) {
  CheckOutput("uniform", box, out);
  if (!(low < high) || !std::isfinite(high - low)) {
    ThrowInvalid("uniform: needs finite limits low < high, got ", low, " and ", high);
  }
  KernelsFor(out.device()).random_uniform(context, key, box, low, high, out);
  out.storage()->BumpVersion();
}

void RandomNormal(ExecutionContext& context, RandomKey key, const RandomBox& box, double mean,
                  double stddev, Tensor& out) {
  CheckOutput("normal", box, out);
  if (!(stddev >= 0.0) || !std::isfinite(stddev) || !std::isfinite(mean)) {
    ThrowInvalid("normal: needs a finite mean and a finite stddev >= 0, got ", mean, " and ",
                 stddev);
  }
  KernelsFor(out.device()).random_normal(context, key, box, mean, stddev, out);
  out.storage()->BumpVersion();
}

Tensor Dropout(ExecutionContext& context, RandomKey key, const RandomBox& box, const Tensor& x,
               double p) {
  internal::DeviceOf("dropout", {&x});
  internal::RequireOneFloatingDType("dropout", {&x});
  CheckBox("dropout", box, x);
  if (!(0.0 <= p && p <= 1.0)) ThrowInvalid("dropout: p must be in [0, 1], got ", p);
  Tensor out = internal::EmptyOn(context, x.device(), x.shape(), x.dtype());
  KernelsFor(x.device()).dropout(context, key, box, x, p, out);
  return out;
}

}  // namespace shardmesh::ops
