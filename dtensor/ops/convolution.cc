// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of any number of spatial dims: windows of the input (Unfold) times the weight, and
// the adjoint, products with the weight added into windows of the result (Fold).
#include <algorithm>
#include <string>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/contract.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/internal/spatial.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"

namespace shardmesh {

using internal::InF32IfSmall;
using internal::Operands;
using internal::PerSpatialDim;
using internal::Windows;

namespace {

// Channels of x; dtypes and shapes of weight and bias.
void CheckOperands(const char* op, int rank, const DTensor& x, const DTensor& weight,
                   const DTensor& bias, int64_t groups, bool transposed) {
  internal::CheckSpatial(op, x, rank);
  internal::CheckUsable(op, weight);
  if (weight.num_dims() != rank + 2 || weight.shape().NumElements() == 0) {
    ThrowInvalid(op, ": weight ", weight.ToString(), ", expected elements in ", rank + 2,
                 " dims: channels, channels of a group, and ", rank, " spatial dims");
  }
  const int64_t channels = x.shape()[x.num_dims() - rank - 1];
  const int64_t first = weight.dim(0), second = weight.dim(1);
  if (groups < 1 || first % groups != 0) {
    ThrowInvalid(op, ": ", groups, " groups do not divide the ", first, " channels of dim 0 of ",
                 weight.ToString());
  }
  if (channels != (transposed ? first : second * groups)) {
    ThrowInvalid(op, ": ", x.ToString(), " has ", channels, " channels, expected ",
                 transposed ? first : second * groups, " for weight ", weight.ToString(), " and ",
                 groups, " groups");
  }
  const int64_t outputs = transposed ? second * groups : first;
  if (bias && !(bias.shape() == Dims{outputs})) {
    ThrowInvalid(op, ": bias ", bias.ToString(), ", expected one element for each of ", outputs,
                 " output channels of ", weight.ToString());
  }
  if (weight.dtype() != x.dtype() || (bias && bias.dtype() != x.dtype())) {
    ThrowInvalid(op, ": ", x.ToString(), ", weight ", weight.ToString(),
                 bias ? ", bias " + bias.ToString() : "", " differ in dtype; cast one");
  }
}

// `dim` as [groups, rest]; x itself if there is one group.
DTensor InGroups(const DTensor& x, int dim, int64_t groups) {
  return groups == 1 ? x : Unflatten(x, dim, {groups, -1});
}

DTensor WithBias(const DTensor& y, const DTensor& bias, int rank) {
  if (!bias) return y;
  Dims shape = Dims::Filled(rank + 1, 1);
  shape[0] = bias.dim(0);
  return Add(y, Reshape(bias, shape));
}

// Labels of Contract: g groups, n batch, c input and o output channels, k the kernel's elements,
// and capitals the spatial dims.
std::string Spatial(int rank) { return std::string("ABC").substr(0, rank); }

std::vector<Windows> ConvWindows(const char* op, const DTensor& x, const DTensor& weight,
                                 const ConvOptions& options, int rank) {
  const auto stride = PerSpatialDim(op, x, "stride", options.stride, rank, 1);
  const auto padding = PerSpatialDim(op, x, "padding", options.padding, rank, 0);
  const auto dilation = PerSpatialDim(op, x, "dilation", options.dilation, rank, 1);
  std::vector<Windows> windows;
  for (int d = 0; d < rank; ++d) {
    Windows w{weight.dim(2 + d), stride[d], dilation[d], padding[d], padding[d]};
    if (options.mode == ConvPadding::kSame) {
      if (stride[d] != 1) {
        ThrowInvalid(op, ": `stride` is ", stride[d], " for ", x.ToString(),
                     ", expected 1 for as many windows as elements");
      }
      w.before = (w.Span() - 1) / 2;
      w.after = w.Span() - 1 - w.before;
    }
    windows.push_back(w);
  }
  internal::CheckWindowsFit(op, x, windows);
  return windows;
}

DTensor Convolve(const char* op, int rank, const DTensor& x, const DTensor& weight,
                 const DTensor& bias, const ConvOptions& options) {
  CheckOperands(op, rank, x, weight, bias, options.groups, /*transposed=*/false);
  const std::vector<Windows> windows = ConvWindows(op, x, weight, options, rank);
  const int64_t groups = options.groups;
  const std::string g = groups == 1 ? "" : "g", spatial = Spatial(rank);
  return InF32IfSmall(op, {x, weight, bias}, [&](const Operands& o) {
    // [c, kernel.., n, spatial..], as the right factor of a product lies in memory.
    const DTensor columns =
        internal::UnfoldSpatial(Transpose(internal::WithBatch(o[0], rank), 0, 1), windows, 1);
    const DTensor in = InGroups(Flatten(columns, 1, rank), 0, groups);
    const DTensor kernels = InGroups(Flatten(o[1], 2), 0, groups);
    DTensor y =
        internal::Contract(kernels, g + "ock", in, g + "ckn" + spatial, "n" + g + "o" + spatial);
    if (groups > 1) y = Flatten(y, 1, 2);
    return WithBias(internal::WithoutBatch(y, x, rank), o[2], rank);
  });
}

// Windows of the result; `before` and `after` are what Pad makes of it: crops, and output_padding.
std::vector<Windows> TransposeWindows(const char* op, const DTensor& x, const DTensor& weight,
                                      const ConvTransposeOptions& options, int rank) {
  const auto stride = PerSpatialDim(op, x, "stride", options.stride, rank, 1);
  const auto padding = PerSpatialDim(op, x, "padding", options.padding, rank, 0);
  const auto extra = PerSpatialDim(op, x, "output_padding", options.output_padding, rank, 0);
  const auto dilation = PerSpatialDim(op, x, "dilation", options.dilation, rank, 1);
  std::vector<Windows> windows;
  for (int d = 0; d < rank; ++d) {
    const Windows w{weight.dim(2 + d), stride[d], dilation[d], -padding[d], extra[d] - padding[d]};
    const int dim = internal::FirstSpatial(x, rank) + d;
    const int64_t extent = x.shape()[dim];
    if (extra[d] >= std::max(stride[d], dilation[d])) {
      ThrowInvalid(op, ": `output_padding` is ", extra[d], " for ", x.ToString(),
                   ", expected less than the stride ", stride[d], " or the dilation ", dilation[d]);
    }
    if (extent == 0 || (extent - 1) * w.step + w.Span() + w.before + w.after < 1) {
      ThrowInvalid(op, ": nothing is left of dim ", dim, " of ", x.ToString(), " with windows of ",
                   w.size, " elements ", w.dilation, " apart, every ", w.step,
                   ", without a padding of ", padding[d]);
    }
    windows.push_back(w);
  }
  return windows;
}

DTensor ConvolveTransposed(const char* op, int rank, const DTensor& x, const DTensor& weight,
                           const DTensor& bias, const ConvTransposeOptions& options) {
  CheckOperands(op, rank, x, weight, bias, options.groups, /*transposed=*/true);
  const std::vector<Windows> windows = TransposeWindows(op, x, weight, options, rank);
  const int64_t groups = options.groups;
  const std::string g = groups == 1 ? "" : "g", spatial = Spatial(rank);
  return InF32IfSmall(op, {x, weight, bias}, [&](const Operands& o) {
    const DTensor in = InGroups(internal::WithBatch(o[0], rank), 1, groups);
    const DTensor kernels = InGroups(Flatten(o[1], 2), 0, groups);
    DTensor y =
        internal::Contract(kernels, g + "cok", in, "n" + g + "c" + spatial, g + "okn" + spatial);
    if (groups > 1) y = Flatten(y, 0, 1);
    Dims sizes;
    for (const Windows& w : windows) sizes.push_back(w.size);
    y = Unflatten(y, 1, sizes);  // [o, kernel.., n, spatial..]
    for (int d = 0; d < rank; ++d) {
      const Windows w{windows[d].size, windows[d].step, windows[d].dilation};
      const int64_t extent = (x.dim(d - rank) - 1) * w.step + w.Span();
      y = internal::FoldAt(y, rank + 1, 1, extent, w);
    }
    y = Transpose(internal::PadLast(y, windows), 0, 1);
    return WithBias(internal::WithoutBatch(y, x, rank), o[2], rank);
  });
}

}  // namespace

DTensor Conv1d(const DTensor& x, const DTensor& weight, const DTensor& bias,
               const ConvOptions& options) {
  return Convolve("conv1d", 1, x, weight, bias, options);
}
DTensor Conv2d(const DTensor& x, const DTensor& weight, const DTensor& bias,
               const ConvOptions& options) {
  return Convolve("conv2d", 2, x, weight, bias, options);
}
DTensor Conv3d(const DTensor& x, const DTensor& weight, const DTensor& bias,
               const ConvOptions& options) {
  return Convolve("conv3d", 3, x, weight, bias, options);
}

DTensor ConvTranspose1d(const DTensor& x, const DTensor& weight, const DTensor& bias,
                        const ConvTransposeOptions& options) {
  return ConvolveTransposed("conv_transpose1d", 1, x, weight, bias, options);
}
DTensor ConvTranspose2d(const DTensor& x, const DTensor& weight, const DTensor& bias,
                        const ConvTransposeOptions& options) {
  return ConvolveTransposed("conv_transpose2d", 2, x, weight, bias, options);
}
DTensor ConvTranspose3d(const DTensor& x, const DTensor& weight, const DTensor& bias,
                        const ConvTransposeOptions& options) {
  return ConvolveTransposed("conv_transpose3d", 3, x, weight, bias, options);
}

}  // namespace shardmesh
