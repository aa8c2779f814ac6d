// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/internal/view.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {

using internal::MemoryOrder;

namespace {

constexpr Op kPermute{"permute"}, kUnsqueeze{"unsqueeze"}, kSqueeze{"squeeze"};

std::vector<int> Inverse(const std::vector<int>& dims) {
  std::vector<int> inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) inverse[dims[i]] = static_cast<int>(i);
  return inverse;
}

// Normalised; each at most once.
std::vector<int> DistinctDims(const char* op, const DTensor& x, const std::vector<int>& dims) {
  std::vector<int> result;
  for (const int given : dims) {
    const int dim = internal::DimOf(op, x, given);
    if (std::find(result.begin(), result.end(), dim) != result.end())
      ThrowInvalid(op, ": dim ", given, " of ", x.ToString(), " is given twice");
    result.push_back(dim);
  }
  return result;
}

// `removed`, ascending, are dims of extent 1.
DTensor WithoutDims(const DTensor& x, const std::vector<int>& removed) {
  uint64_t mask = 0;
  for (const int d : removed) mask |= uint64_t{1} << d;
  OpCall call(kSqueeze, {&x});
  call.Attribute(mask).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs.emplace_back();
    rule.PassAll(1u);
    Dims shape;
    for (int d = 0; d < x.num_dims(); ++d) {
      if (((mask >> d) & 1u) != 0) {
        rule.inputs[0][d] = Rule::kNotShardable;
      } else {
        rule.outputs[0].push_back(d);
        shape.push_back(x.shape()[d]);
      }
    }
    return OpRule{std::move(rule), {shape}};
  });
  Tensor local = call.local(0);
  for (auto d = removed.rbegin(); d != removed.rend(); ++d) local = local.Squeeze(*d);
  const bool is_row_major = x.impl()->order.IsRowMajor();
  DTensor y = internal::ViewResult(call, x, std::move(local),
                                   is_row_major ? MemoryOrder::RowMajor() : MemoryOrder::Unknown());
  call.Record({&y}, [removed](std::span<const DTensor> grads, Gradients& out) {
    DTensor grad = grads[0];
    for (const int d : removed) grad = Unsqueeze(grad, d);
    out.Set(0, grad);
  });
  return y;
}

}  // namespace

DTensor Permute(const DTensor& x, const std::vector<int>& given) {
  internal::CheckUsable(kPermute.name, x);
  const std::vector<int> dims = DistinctDims(kPermute.name, x, given);
  if (static_cast<int>(dims.size()) != x.num_dims())
    ThrowInvalid(kPermute.name, ": ", dims.size(), " dims given for ", x.ToString());
  OpCall call(kPermute, {&x});
  for (const int d : dims) call.Attribute(d);
  call.Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs.emplace_back();
    rule.PassAll(1u);
    Dims shape;
    for (const int d : dims) {
      rule.outputs[0].push_back(d);
      shape.push_back(x.shape()[d]);
    }
    return OpRule{std::move(rule), {shape}};
  });
  DTensor y =
      internal::ViewResult(call, x, call.local(0).Permute(dims), x.impl()->order.Permuted(dims));
  call.Record({&y}, [dims](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, Permute(grads[0], Inverse(dims)));
  });
  return y;
}

DTensor MoveDim(const DTensor& x, const std::vector<int>& given_source,
                const std::vector<int>& given_destination) {
  internal::CheckUsable("movedim", x);
  const std::vector<int> source = DistinctDims("movedim", x, given_source);
  const std::vector<int> destination = DistinctDims("movedim", x, given_destination);
  if (source.size() != destination.size()) {
    ThrowInvalid("movedim: ", source.size(), " dims of ", x.ToString(), " cannot move to ",
                 destination.size(), " places");
  }
  std::vector<int> dims(x.num_dims(), -1);
  for (size_t i = 0; i < source.size(); ++i) dims[destination[i]] = source[i];
  int next = 0;
  for (int& dim : dims) {
    if (dim >= 0) continue;
    while (std::find(source.begin(), source.end(), next) != source.end()) ++next;
    dim = next++;
  }
  return Permute(x, dims);
}

DTensor T(const DTensor& x) {
  internal::CheckUsable("t", x);
  if (x.num_dims() > 2) ThrowInvalid("t: expected at most 2 dims, got ", x.ToString());
  return x.num_dims() < 2 ? x : Transpose(x, 0, 1);
}

DTensor Unsqueeze(const DTensor& x, int given) {
  internal::CheckUsable(kUnsqueeze.name, x);
  const int dim = internal::DimOf(kUnsqueeze.name, x, given, /*scalar_has_one=*/false, /*extra=*/1);
  OpCall call(kUnsqueeze, {&x});
  call.Attribute(dim).Decide([&] {
    Rule rule = internal::FactorsOf(x.shape());
    rule.outputs = {rule.inputs[0]};
    rule.outputs[0].insert(rule.outputs[0].begin() + dim, Rule::kNotShardable);
    rule.PassAll(1u);
    Dims shape = x.shape();
    shape.insert(dim, 1);
    return OpRule{std::move(rule), {shape}};
  });
  const bool is_row_major = x.impl()->order.IsRowMajor();
  DTensor y = internal::ViewResult(call, x, call.local(0).Unsqueeze(dim),
                                   is_row_major ? MemoryOrder::RowMajor() : MemoryOrder::Unknown());
  call.Record({&y}, [dim](std::span<const DTensor> grads, Gradients& out) {
    out.Set(0, WithoutDims(grads[0], {dim}));
  });
  return y;
}

DTensor Squeeze(const DTensor& x) {
  internal::CheckUsable(kSqueeze.name, x);
  std::vector<int> removed;
  for (int d = 0; d < x.num_dims(); ++d) {
    if (x.shape()[d] == 1) removed.push_back(d);
  }
  return WithoutDims(x, removed);
}

DTensor Squeeze(const DTensor& x, const std::vector<int>& dims) {
  internal::CheckUsable(kSqueeze.name, x);
  std::vector<int> removed;
  for (const int d : DistinctDims(kSqueeze.name, x, dims)) {
    if (x.shape()[d] == 1) removed.push_back(d);
  }
  std::sort(removed.begin(), removed.end());
  return WithoutDims(x, removed);
}

DTensor Flatten(const DTensor& x, int given_start, int given_end) {
  internal::CheckUsable("flatten", x);
  if (x.num_dims() == 0) return Reshape(x, {1});
  const int start = internal::DimOf("flatten", x, given_start);
  const int end = internal::DimOf("flatten", x, given_end);
  if (start > end) {
    ThrowInvalid("flatten: first dim ", given_start, " of ", x.ToString(), " comes after last dim ",
                 given_end);
  }
  Dims shape;
  for (int d = 0; d < x.num_dims(); ++d) {
    if (d <= start || d > end) {
      shape.push_back(x.shape()[d]);
    } else {
      shape[start] *= x.shape()[d];
    }
  }
  return Reshape(x, shape);
}

DTensor Ravel(const DTensor& x) {
  internal::CheckUsable("ravel", x);
  return Reshape(x, {x.NumElements()});
}

DTensor Unflatten(const DTensor& x, int given, const Dims& sizes) {
  internal::CheckUsable("unflatten", x);
  const int dim = internal::DimOf("unflatten", x, given);
  const Dims inner = internal::ResolvedShape("unflatten", x, sizes, x.shape()[dim]);
  Dims shape;
  for (int d = 0; d < x.num_dims(); ++d) {
    if (d != dim) {
      shape.push_back(x.shape()[d]);
      continue;
    }
    for (const int64_t extent : inner) shape.push_back(extent);
  }
  return Reshape(x, shape);
}

DTensor BroadcastTo(const DTensor& x, const Dims& given) {
  internal::CheckUsable("broadcast_to", x);
  Dims shape = given;
  const int lead = shape.size() - x.num_dims();
  for (int d = std::max(lead, 0); d < shape.size(); ++d) {
    if (shape[d] == -1) shape[d] = x.shape()[d - lead];
  }
  return Expand(x, shape);
}

DTensor AtLeast1d(const DTensor& x) {
  internal::CheckUsable("atleast_1d", x);
  return x.num_dims() == 0 ? Unsqueeze(x, 0) : x;
}

DTensor AtLeast2d(const DTensor& x) {
  const DTensor y = AtLeast1d(x);
  return y.num_dims() == 1 ? Unsqueeze(y, 0) : y;
}

DTensor AtLeast3d(const DTensor& x) {
  const DTensor y = AtLeast2d(x);
  return y.num_dims() == 2 ? Unsqueeze(y, 2) : y;
}

DTensor PixelShuffle(const DTensor& x, int64_t factor) {
  internal::CheckUsable("pixel_shuffle", x);
  internal::CheckRankAtLeast("pixel_shuffle", x, 3);
  const int64_t c = x.dim(-3), h = x.dim(-2), w = x.dim(-1);
  if (factor < 1 || c % (factor * factor) != 0) {
    ThrowInvalid("pixel_shuffle: factor ", factor, " squared does not divide the channels of ",
                 x.ToString());
  }
  const DTensor split = Unflatten(x, -3, {c / (factor * factor), factor, factor});
  const DTensor moved = MoveDim(split, {-4, -3}, {-3, -1});  // [.., c, h, r, w, r]
  Dims shape = x.shape();
  const int lead = x.num_dims() - 3;
  shape[lead] = c / (factor * factor);
  shape[lead + 1] = h * factor;
  shape[lead + 2] = w * factor;
  return Reshape(moved, shape);
}

DTensor PixelUnshuffle(const DTensor& x, int64_t factor) {
  internal::CheckUsable("pixel_unshuffle", x);
  internal::CheckRankAtLeast("pixel_unshuffle", x, 3);
  const int64_t c = x.dim(-3), h = x.dim(-2), w = x.dim(-1);
  if (factor < 1 || h % factor != 0 || w % factor != 0)
    ThrowInvalid("pixel_unshuffle: factor ", factor, " does not divide the image of ",
                 x.ToString());
  const DTensor columns = Unflatten(x, -1, {w / factor, factor});
  const DTensor split = Unflatten(columns, -3, {h / factor, factor});  // [.., c, h, r, w, r]
  const DTensor moved = MoveDim(split, {-3, -1}, {-4, -3});
  Dims shape = x.shape();
  const int lead = x.num_dims() - 3;
  shape[lead] = c * factor * factor;
  shape[lead + 1] = h / factor;
  shape[lead + 2] = w / factor;
  return Reshape(moved, shape);
}

}  // namespace shardmesh
