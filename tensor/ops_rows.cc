// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

using internal::DeviceOf;
using internal::EmptyOn;
using internal::RequireDType;
using internal::RequireOneFloatingDType;
using internal::RequireRank;
using internal::RequireShape;

// Shapes and dtypes of a norm's input and weights.
void CheckNorm(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  DeviceOf(op, {&x, &w}, {&b});
  RequireOneFloatingDType(op, {&x, &w, &b});
  RequireRank(op, "x", x, 1);
  RequireShape(op, "the weight", w, {x.dim(-1)});
  RequireShape(op, "the bias", b, {x.dim(-1)});
}

// A statistic with one value per row.
Tensor EmptyPerRow(ExecutionContext& context, const Tensor& x) {
  return EmptyOn(context, x.device(), internal::WithoutLast(x.shape()),
                 internal::AccumulatorDType(x.dtype()));
}
void CheckPerRow(const char* op, const char* name, const Tensor& statistic, const Tensor& x) {
  RequireShape(op, name, statistic, internal::WithoutLast(x.shape()));
  RequireDType(op, name, statistic, internal::AccumulatorDType(x.dtype()));
}

// The gradient of a weight has the dtype of x or of its accumulator.
void CheckWeightGradient(const char* op, const char* name, const Tensor& dw, const Tensor& x) {
  RequireShape(op, name, dw, {x.dim(-1)});
  if (dw && dw.dtype() != x.dtype())
    RequireDType(op, name, dw, internal::AccumulatorDType(x.dtype()));
}

void BumpVersions(std::initializer_list<Tensor*> written) {
  for (Tensor* x : written) {
    if (*x) x->storage()->BumpVersion();
  }
}

}  // namespace

Tensor Softmax(ExecutionContext& context, const Tensor& x, int dim, bool log) {
  const char* op = log ? "log_softmax" : "softmax";
  const Device device = DeviceOf(op, {&x});
  RequireOneFloatingDType(op, {&x});
  const int d = NormalizeDim(dim, x.num_dims(), op);
  Tensor out = EmptyOn(context, device, x.shape(), x.dtype());
  Tensor rows = out.Transpose(d, -1);
  KernelsFor(device).softmax(context, x.Transpose(d, -1), log, rows);
  return out;
}

Tensor SoftmaxBackward(ExecutionContext& context, const Tensor& grad, const Tensor& y, int dim,
                       bool log) {
  const char* op = log ? "log_softmax backward" : "softmax backward";
  const Device device = DeviceOf(op, {&y, &grad});
  RequireOneFloatingDType(op, {&y, &grad});
  RequireShape(op, "the gradient", grad, y.shape());
  const int d = NormalizeDim(dim, y.num_dims(), op);
  Tensor out = EmptyOn(context, device, y.shape(), y.dtype());
  Tensor rows = out.Transpose(d, -1);
  KernelsFor(device).softmax_backward(context, grad.Transpose(d, -1), y.Transpose(d, -1), log,
                                      rows);
  return out;
}

NormResult RmsNorm(ExecutionContext& context, const Tensor& x, const Tensor& w, double eps) {
  CheckNorm("rms_norm", x, w, Tensor());
  NormResult result;
  result.y = EmptyOn(context, x.device(), x.shape(), x.dtype());
  result.inv_std = EmptyPerRow(context, x);
  KernelsFor(x.device()).rms_norm(context, x, w, eps, result.y, result.inv_std);
  return result;
}

void RmsNormBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                     const Tensor& w, const Tensor& inv_rms, Tensor& dx, bool accumulate_dw,
                     Tensor& dw) {
  const char* op = "rms_norm backward";
  DeviceOf(op, {&x, &grad, &w, &inv_rms}, {&dx, &dw});
  RequireOneFloatingDType(op, {&x, &grad, &w, &dx});
  RequireRank(op, "x", x, 1);
  RequireShape(op, "the gradient", grad, x.shape());
  RequireShape(op, "the weight", w, {x.dim(-1)});
  CheckPerRow(op, "inv_rms", inv_rms, x);
  RequireShape(op, "dx", dx, x.shape());
  CheckWeightGradient(op, "dw", dw, x);
  for (const Tensor* out : {&dx, &dw}) internal::RequireApart(op, *out, {&grad, &x, &w, &inv_rms});
  KernelsFor(x.device()).rms_norm_backward(context, grad, x, w, inv_rms, dx, accumulate_dw, dw);
  BumpVersions({&dx, &dw});
}

NormResult LayerNorm(ExecutionContext& context, const Tensor& x, const Tensor& w, const Tensor& b,
                     double eps) {
  CheckNorm("layer_norm", x, w, b);
  NormResult result;
  result.y = EmptyOn(context, x.device(), x.shape(), x.dtype());
  result.mean = EmptyPerRow(context, x);
  result.inv_std = EmptyPerRow(context, x);
  KernelsFor(x.device()).layer_norm(context, x, w, b, eps, result.y, result.mean, result.inv_std);
  return result;
}

void LayerNormBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                       const Tensor& w, const Tensor& mean, const Tensor& inv_std, Tensor& dx,
                       bool accumulate, Tensor& dw, Tensor& db) {
  const char* op = "layer_norm backward";
  DeviceOf(op, {&x, &grad, &w, &mean, &inv_std}, {&dx, &dw, &db});
  RequireOneFloatingDType(op, {&x, &grad, &w, &dx});
  RequireRank(op, "x", x, 1);
  RequireShape(op, "the gradient", grad, x.shape());
  RequireShape(op, "the weight", w, {x.dim(-1)});
  CheckPerRow(op, "mean", mean, x);
  CheckPerRow(op, "inv_std", inv_std, x);
  RequireShape(op, "dx", dx, x.shape());
  CheckWeightGradient(op, "dw", dw, x);
  CheckWeightGradient(op, "db", db, x);
  for (const Tensor* out : {&dx, &dw, &db}) {
    internal::RequireApart(op, *out, {&grad, &x, &w, &mean, &inv_std});
  }
  KernelsFor(x.device())
      .layer_norm_backward(context, grad, x, w, mean, inv_std, dx, accumulate, dw, db);
  BumpVersions({&dx, &dw, &db});
}

}  // namespace shardmesh::ops
