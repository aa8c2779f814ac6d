// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/norms.h"

#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"

namespace shardmesh {

using internal::InF32IfSmall;
using internal::Operands;

namespace {

// ---- operands -----------------------------------------------------------------------------------

void CheckChannels(const char* op, const DTensor& x) {
  internal::CheckUsable(op, x);
  internal::CheckRankAtLeast(op, x, 2);
  if (!IsFloating(x.dtype()))
    ThrowInvalid(op, ": ", x.ToString(), " is not of a floating-point dtype; cast it");
}

// Of one element per channel, or missing.
void CheckPerChannel(const char* op, const char* name, const DTensor& x, const DTensor& vector) {
  if (!vector || (vector.shape() == Dims{x.dim(1)} && IsFloating(vector.dtype()))) return;
  ThrowInvalid(op, ": ", name, " ", vector.ToString(), ", expected one number for each of ",
               x.dim(1), " channels of ", x.ToString());
}

void CheckAffine(const char* op, const DTensor& x, const DTensor& weight, const DTensor& bias) {
  CheckPerChannel(op, "weight", x, weight);
  CheckPerChannel(op, "bias", x, bias);
  for (const DTensor* vector : {&weight, &bias}) {
    if (*vector && vector->dtype() != x.dtype())
      ThrowInvalid(op, ": ", x.ToString(), " and ", vector->ToString(),
                   " differ in dtype; cast one");
  }
}

void CheckRunning(const char* op, const DTensor& x, const RunningStatistics& running) {
  CheckPerChannel(op, "running mean", x, running.mean);
  CheckPerChannel(op, "running variance", x, running.variance);
  if (static_cast<bool>(running.mean) != static_cast<bool>(running.variance))
    ThrowInvalid(op, ": of the running statistics for ", x.ToString(), " only one is given");
}

// A vector over the channels so that it broadcasts to x.
DTensor PerChannel(const DTensor& vector, const DTensor& x) {
  Dims shape = Dims::Filled(x.num_dims() - 1, 1);
  shape[0] = vector.dim(0);
  return Reshape(vector, shape);
}

DTensor WithAffine(const DTensor& y, const DTensor& weight, const DTensor& bias) {
  const DTensor scaled = weight ? Mul(y, PerChannel(weight, y)) : y;
  return bias ? Add(scaled, PerChannel(bias, y)) : scaled;
}

// x with its summands added up: once for all that read it.
DTensor Reduced(const DTensor& x) {
  return x.layout().HasPartial() ? Redistribute(x, x.layout().PartialAsReplicate()) : x;
}

DTensor Standardized(const DTensor& centred, const DTensor& variance, double eps) {
  return Mul(centred, Rsqrt(Add(variance, eps)));
}

// Mean and biased variance over `dims`, of which extents of 1 are left, and x less the mean.
struct Moments {
  Moments(const DTensor& x, const std::vector<int>& dims)
      : mean(Reduced(Mean(x, dims, /*keepdim=*/true))),
        centred(Sub(x, mean)),
        variance(Reduced(Mean(Square(centred), dims, /*keepdim=*/true))) {}
  DTensor mean, centred, variance;
};

// Dims from `first` on.
std::vector<int> DimsFrom(const DTensor& x, int first) {
  std::vector<int> dims;
  for (int d = first; d < x.num_dims(); ++d) dims.push_back(d);
  return dims;
}

int64_t CountOver(const DTensor& x, const std::vector<int>& dims) {
  int64_t count = 1;
  for (const int d : dims) count *= x.dim(d);
  return count;
}

// ---- statistics ---------------------------------------------------------------------------------

// running = (1 - momentum) running + momentum * batch.
void MoveTowards(const DTensor& running, const DTensor& batch, double momentum) {
  MulInPlace(running, 1 - momentum);
  AddInPlace(running, Mul(Cast(batch, running.dtype()), momentum));
}

// `moments` of `count` elements each, with all extents but that of dim 1 being 1, or the batch too,
// of which the mean is taken.
void Update(const RunningStatistics& running, const Moments& moments, int64_t count) {
  if (!running.mean || moments.mean.dim(0) == 0) return;
  const NoGrad no_grad(running.mean.mesh());
  const auto per_channel = [](const DTensor& x) {
    return Reshape(x.dim(0) == 1 ? x : Mean(x, {0}), {x.dim(1)});
  };
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  MoveTowards(running.mean, per_channel(moments.mean), running.momentum);
  MoveTowards(running.variance, Mul(per_channel(moments.variance), unbiased), running.momentum);
}

// BatchNorm with statistics over `dims`.
DTensor NormOver(const char* op, const std::vector<int>& dims, const DTensor& x,
                 const DTensor& weight, const DTensor& bias, double eps,
                 const RunningStatistics& running) {
  const int64_t count = CountOver(x, dims);
  if (count < 2) {
    ThrowInvalid(op, ": ", x.ToString(), " has ", count,
                 " elements for each mean, expected at least 2");
  }
  return InF32IfSmall(op, {x, weight, bias}, [&](const Operands& o) {
    const Moments moments(o[0], dims);
    Update(running, moments, count);
    return WithAffine(Standardized(moments.centred, moments.variance, eps), o[1], o[2]);
  });
}

// ---- trailing dims ------------------------------------------------------------------------------

// weight or bias, as a vector; ones if it is missing.
DTensor Vector(const DTensor& given, const DTensor& rows) {
  if (given) return Flatten(given);
  const std::vector<Placement> replicated(static_cast<size_t>(rows.layout().num_axes()));
  return Ones(rows.mesh(), {rows.dim(-1)}, rows.dtype(), replicated);
}

void CheckTrailing(const char* op, const DTensor& x, int dims, const DTensor& weight,
                   const DTensor& bias) {
  internal::CheckUsable(op, x);
  if (dims < 1 || dims > x.num_dims()) {
    ThrowInvalid(op, ": over the last ", dims, " dims of ", x.ToString(),
                 ", expected at least one, and no more than there are");
  }
  const Dims shape(std::span<const int64_t>(x.shape().end() - dims, x.shape().end()));
  for (const DTensor* vector : {&weight, &bias}) {
    if (!*vector || vector->shape() == shape) continue;
    ThrowInvalid(op, ": ", vector->ToString(), ", expected a weight or bias of shape ",
                 shape.ToString(), ", the last ", dims, " dims of ", x.ToString());
  }
}

}  // namespace

DTensor BatchNorm(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps,
                  const RunningStatistics& running) {
  CheckChannels("batch_norm", x);
  CheckAffine("batch_norm", x, weight, bias);
  CheckRunning("batch_norm", x, running);
  std::vector<int> dims = DimsFrom(x, 2);
  dims.insert(dims.begin(), 0);
  return NormOver("batch_norm", dims, x, weight, bias, eps, running);
}

DTensor BatchNormWith(const DTensor& x, const DTensor& mean, const DTensor& variance,
                      const DTensor& weight, const DTensor& bias, double eps) {
  constexpr const char* kName = "batch_norm";
  CheckChannels(kName, x);
  internal::CheckUsable(kName, mean);
  internal::CheckUsable(kName, variance);
  CheckRunning(kName, x, {mean, variance});
  CheckAffine(kName, x, weight, bias);
  return InF32IfSmall(kName, {x, weight, bias}, [&](const Operands& o) {
    const auto statistic = [&](const DTensor& s) {
      return PerChannel(Cast(s, o[0].dtype()), o[0]);
    };
    const DTensor centred = Sub(o[0], statistic(mean));
    return WithAffine(Standardized(centred, statistic(variance), eps), o[1], o[2]);
  });
}

DTensor InstanceNorm(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps,
                     const RunningStatistics& running) {
  CheckChannels("instance_norm", x);
  CheckAffine("instance_norm", x, weight, bias);
  CheckRunning("instance_norm", x, running);
  internal::CheckRankAtLeast("instance_norm", x, 3);
  return NormOver("instance_norm", DimsFrom(x, 2), x, weight, bias, eps, running);
}

DTensor GroupNorm(const DTensor& x, int64_t groups, const DTensor& weight, const DTensor& bias,
                  double eps) {
  CheckChannels("group_norm", x);
  CheckAffine("group_norm", x, weight, bias);
  if (groups < 1 || x.dim(1) % groups != 0) {
    ThrowInvalid("group_norm: ", groups, " groups do not divide the ", x.dim(1), " channels of ",
                 x.ToString());
  }
  return InF32IfSmall("group_norm", {x, weight, bias}, [&](const Operands& o) {
    const DTensor in = Unflatten(o[0], 1, {groups, x.dim(1) / groups});
    const Moments moments(in, DimsFrom(in, 2));
    const DTensor y = Standardized(moments.centred, moments.variance, eps);
    return WithAffine(Flatten(y, 1, 2), o[1], o[2]);
  });
}

DTensor LocalResponseNorm(const DTensor& x, int64_t size, double alpha, double beta, double k) {
  constexpr const char* kName = "local_response_norm";
  CheckChannels(kName, x);
  if (size < 1 || size > INT32_MAX) {
    ThrowInvalid(kName, ": `size` is ", size, " for ", x.ToString(),
                 ", expected a positive number");
  }
  return InF32IfSmall(kName, {x}, [&](const Operands& o) {
    std::vector<int64_t> pads(static_cast<size_t>(2 * (x.num_dims() - 2)), 0);
    pads.push_back(size / 2);
    pads.push_back((size - 1) / 2);
    const DTensor sums = Sum(Unfold(Pad(Square(o[0]), pads), 1, size, 1), {-1});
    const DTensor base = Add(Mul(sums, alpha / static_cast<double>(size)), k);
    return Div(o[0], Pow(base, beta));
  });
}

DTensor LayerNormOver(const DTensor& x, int dims, const DTensor& weight, const DTensor& bias,
                      double eps) {
  CheckTrailing("layer_norm", x, dims, weight, bias);
  const DTensor rows = Flatten(x, x.num_dims() - dims, -1);
  const DTensor y =
      LayerNorm(rows, Vector(weight, rows), bias ? Vector(bias, rows) : DTensor(), eps);
  return Reshape(y, x.shape());
}

DTensor RmsNormOver(const DTensor& x, int dims, const DTensor& weight, double eps) {
  CheckTrailing("rms_norm", x, dims, weight, {});
  const DTensor rows = Flatten(x, x.num_dims() - dims, -1);
  return Reshape(RmsNorm(rows, Vector(weight, rows), eps), x.shape());
}

DTensor CDist(const DTensor& a, const DTensor& b, double order) {
  constexpr const char* kName = "cdist";
  for (const DTensor* x : {&a, &b}) {
    internal::CheckUsable(kName, *x);
    internal::CheckRankAtLeast(kName, *x, 2);
  }
  if (a.dim(-1) != b.dim(-1) || !IsFloating(a.dtype()) || a.dtype() != b.dtype()) {
    ThrowInvalid(kName, ": ", a.ToString(), " and ", b.ToString(),
                 ", expected rows of one length and of one floating-point dtype");
  }
  return InF32IfSmall(kName, {a, b}, [&](const Operands& o) {
    return VectorNorm(Sub(Unsqueeze(o[0], -2), Unsqueeze(o[1], -3)), order, {-1});
  });
}

}  // namespace shardmesh
