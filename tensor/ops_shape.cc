// SPDX-License-Identifier: Apache-2.0
//
// Creation, copies, and what only moves elements.
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/operands.h"
#include "shardmesh/tensor/internal/writes.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::ops {
namespace {

// The shape of the parts side by side along `dim`, which is normalised.
Dims ConcatShape(std::span<const Tensor> parts, int dim) {
  const Tensor& first = parts[0];
  Dims shape = first.shape();
  for (const Tensor& part : parts.subspan(1)) {
    if (part.dtype() != first.dtype()) {
      ThrowInvalid("concat: ", first.ToString(), " and ", part.ToString(),
                   " differ in dtype; cast one of them");
    }
    Dims others = part.shape();
    if (others.size() == shape.size()) others[dim] = first.dim(dim);
    if (others != first.shape()) {
      ThrowInvalid("concat: ", first.ToString(), " and ", part.ToString(),
                   " differ in more than dim ", dim);
    }
    shape[dim] += part.dim(dim);
  }
  return shape;
}

}  // namespace

Tensor Full(ExecutionContext& context, const Dims& shape, DType dtype, double value) {
  internal::RequireRepresentable("full", dtype, value);
  Tensor out = Tensor::Empty(context, shape, dtype);
  KernelsFor(out.device()).fill(context, value, out);
  return out;
}

Tensor Zeros(ExecutionContext& context, const Dims& shape, DType dtype) {
  return Full(context, shape, dtype, 0.0);
}

void Fill(ExecutionContext& context, Tensor& out, double value) {
  const Device device = internal::DeviceOf("fill", {&out});
  internal::RequireRepresentable("fill", out.dtype(), value);
  KernelsFor(device).fill(context, value, out);
  out.storage()->BumpVersion();
}

void Copy(ExecutionContext& context, const Tensor& x, Tensor& out) {
  const Device device = internal::DeviceOf("copy", {&x, &out});
  internal::RequireShape("copy", "the source", x, out.shape());
  internal::RequireWritable("copy", out);
  const Tensor readable = internal::MayOverlap(out, x) ? Clone(context, x) : x;
  KernelsFor(device).copy(context, readable, out);
  out.storage()->BumpVersion();
}

Tensor Contiguous(ExecutionContext& context, const Tensor& x) {
  return x.IsContiguous() ? x : Clone(context, x);
}

Tensor Clone(ExecutionContext& context, const Tensor& x) {
  const Device device = internal::DeviceOf("clone", {&x});
  Tensor out = internal::EmptyOn(context, device, x.shape(), x.dtype());
  KernelsFor(device).copy(context, x, out);
  return out;
}

Tensor Cast(ExecutionContext& context, const Tensor& x, DType dtype) {
  const Device device = internal::DeviceOf("cast", {&x});
  if (x.dtype() == dtype) return x;
  Tensor out = internal::EmptyOn(context, device, x.shape(), dtype);
  KernelsFor(device).copy(context, x, out);
  return out;
}

Tensor Reshape(ExecutionContext& context, const Tensor& x, const Dims& shape) {
  internal::DeviceOf("reshape", {&x});
  if (std::optional<Tensor> view = x.TryView(shape)) return *view;
  return *Clone(context, x).TryView(shape);
}

Tensor Concat(ExecutionContext& context, std::span<const Tensor> parts, int dim) {
  if (parts.empty()) ThrowInvalid("concat: no tensors");
  for (const Tensor& part : parts) internal::DeviceOf("concat", {&parts[0], &part});
  const Device device = parts[0].device();
  dim = NormalizeDim(dim, parts[0].num_dims(), "concat");
  Tensor out = internal::EmptyOn(context, device, ConcatShape(parts, dim), parts[0].dtype());
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    Tensor slice = out.Narrow(dim, begin, part.dim(dim));
    KernelsFor(device).copy(context, part, slice);
    begin += part.dim(dim);
  }
  return out;
}

std::vector<Tensor> Split(const Tensor& x, std::span<const int64_t> sizes, int dim) {
  internal::DeviceOf("split", {&x});
  dim = NormalizeDim(dim, x.num_dims(), "split");
  int64_t total = 0;
  for (const int64_t size : sizes) {
    if (size < 0) ThrowInvalid("split: negative size ", size);
    if (__builtin_add_overflow(total, size, &total))
      ThrowInvalid("split: size ", size, " is more than dim ", dim, " of ", x.ToString(), " has");
  }
  if (total != x.dim(dim)) {
    ThrowInvalid("split: sizes add up to ", total, ", dim ", dim, " of ", x.ToString(),
                 " does not");
  }
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.Narrow(dim, begin, size));
    begin += size;
  }
  return parts;
}

}  // namespace shardmesh::ops
