// SPDX-License-Identifier: Apache-2.0
//
// Ops over windows: convolution, pooling and interpolation. Names and conventions are PyTorch's.
//
//   DTensor y = Conv2d(x, weight, bias, {.stride = {2}, .padding = {1}});
//   DTensor z = MaxPool2d(Relu(y), {.kernel = {3, 2}, .stride = {2}}).values;
//
// Operands are [batch, channels, spatial..], of as many spatial dims as the name says, or without
// the batch. Options have one number per spatial dim, or a single one for all. Batch and channels
// may be sharded and stay so; a sharded spatial dim is gathered. bf16 and f16 are computed with in
// f32, and the result is rounded once.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, the operands, the value and what is
// expected, before any work, alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_WINDOWS_H_
#define SHARDMESH_DTENSOR_OPS_WINDOWS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

// ---- windows (ops/windows.cc) -------------------------------------------------------------------
/// Windows of `size` elements, `dilation` apart, every `step` along `dim`: `dim` counts them, a new
/// last dim is within them. A copy. With a dilation of 1 it is Unfold of ops/shape.h.
/// Shape: [.., n, ..] -> [.., (n - dilation (size - 1) - 1) / step + 1, .., size].
DTensor Unfold(const DTensor& x, int dim, int64_t size, int64_t step, int64_t dilation);
/// The adjoint of Unfold: windows, which may overlap, added into a `dim` of `extent`. Of bf16 and
/// f16 the sums are f32, rounded once. `dim` does not count the last dim, which is within windows.
DTensor Fold(const DTensor& windows, int dim, int64_t extent, int64_t step, int64_t dilation = 1);

struct Im2ColOptions {
  std::vector<int64_t> kernel;
  std::vector<int64_t> dilation = {1}, padding = {0}, stride = {1};
};
/// Each window as a column (nn.functional.unfold in PyTorch), of two spatial dims.
/// Shape: [n, c, h, w] -> [n, c * kernel's elements, number of windows].
DTensor Im2Col(const DTensor& x, const Im2ColOptions& options);

// ---- convolution (ops/convolution.cc) -----------------------------------------------------------
enum class ConvPadding {
  kExplicit,  ///< As `padding` says.
  kSame,      ///< As many windows as elements; of an odd padding the larger half comes last.
};

struct ConvOptions {
  std::vector<int64_t> stride = {1}, padding = {0}, dilation = {1};
  int64_t groups = 1;
  ConvPadding mode = ConvPadding::kExplicit;
};
/// Products of each window and the weight, summed over the input channels of a group. Where these
/// are sharded the result is Partial; where the output channels are, it is sharded along its own.
/// With groups, a shard of the channels stays where the number of shards divides the groups.
/// Shape: x [n, c, spatial..], weight [o, c / groups, kernel..], bias [o] or none -> [n, o, ..].
DTensor Conv1d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
               const ConvOptions& options = {});
DTensor Conv2d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
               const ConvOptions& options = {});
DTensor Conv3d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
               const ConvOptions& options = {});

struct ConvTransposeOptions {
  std::vector<int64_t> stride = {1}, padding = {0}, output_padding = {0}, dilation = {1};
  int64_t groups = 1;
};
/// The adjoint of a convolution with these options. `output_padding`, less than the stride or the
/// dilation, chooses among the extents that a convolution makes into x's.
/// Shape: x [n, c, spatial..], weight [c, o / groups, kernel..], bias [o] or none ->
///        [n, o, (s - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1, ..].
DTensor ConvTranspose1d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
                        const ConvTransposeOptions& options = {});
DTensor ConvTranspose2d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
                        const ConvTransposeOptions& options = {});
DTensor ConvTranspose3d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
                        const ConvTransposeOptions& options = {});

// ---- pooling (ops/pooling.cc) -------------------------------------------------------------------
struct AvgPoolOptions {
  std::vector<int64_t> kernel;
  std::vector<int64_t> stride = {};  ///< Empty: the kernel.
  std::vector<int64_t> padding = {0};
  bool ceil_mode = false;  ///< A last window may reach beyond the padding, if it begins before it.
  bool count_include_pad = true;
  std::optional<int64_t> divisor = std::nullopt;  ///< Instead of the number of elements.
};
DTensor AvgPool1d(const DTensor& x, const AvgPoolOptions& options);
DTensor AvgPool2d(const DTensor& x, const AvgPoolOptions& options);
DTensor AvgPool3d(const DTensor& x, const AvgPoolOptions& options);

struct MaxPoolOptions {
  std::vector<int64_t> kernel;
  std::vector<int64_t> stride = {};  ///< Empty: the kernel.
  std::vector<int64_t> padding = {0}, dilation = {1};
  bool ceil_mode = false;
};
/// The extremum of each window, and its place in the spatial dims in row-major order (i64). Of
/// equal elements the first counts, and gets the gradient; nan counts as extremum.
struct MaxPoolResult {
  DTensor values, indices;
};
MaxPoolResult MaxPool1d(const DTensor& x, const MaxPoolOptions& options);
MaxPoolResult MaxPool2d(const DTensor& x, const MaxPoolOptions& options);
MaxPoolResult MaxPool3d(const DTensor& x, const MaxPoolOptions& options);

// To a given number of windows per spatial dim, -1 for as many as elements: window i of m over n
// elements is [i n / m, (i + 1) n / m), rounded outwards.
DTensor AdaptiveAvgPool1d(const DTensor& x, const std::vector<int64_t>& sizes);
DTensor AdaptiveAvgPool2d(const DTensor& x, const std::vector<int64_t>& sizes);
DTensor AdaptiveAvgPool3d(const DTensor& x, const std::vector<int64_t>& sizes);
MaxPoolResult AdaptiveMaxPool1d(const DTensor& x, const std::vector<int64_t>& sizes);
MaxPoolResult AdaptiveMaxPool2d(const DTensor& x, const std::vector<int64_t>& sizes);
MaxPoolResult AdaptiveMaxPool3d(const DTensor& x, const std::vector<int64_t>& sizes);

// ---- interpolation (ops/interpolate.cc) ---------------------------------------------------------
enum class InterpolateMode {
  kNearest,       ///< Element floor(i n / m) of n for place i of m.
  kNearestExact,  ///< Element floor((i + 1/2) n / m).
  kLinear,        ///< Bilinear in two dims, trilinear in three.
  kCubic,         ///< Bicubic: Keys' kernel with a = -0.75.
  kArea,          ///< As AdaptiveAvgPool.
};
/// To `sizes`, one per spatial dim, or one for all. `align_corners` (kLinear and kCubic): first and
/// last elements keep their values.
/// Shape: [n, c, spatial..] -> [n, c, sizes..].
DTensor Interpolate(const DTensor& x, const std::vector<int64_t>& sizes,
                    InterpolateMode mode = InterpolateMode::kNearest, bool align_corners = false);
/// To floor(extent * factor). Places are those of the factors given, not of the ratio of extents.
DTensor InterpolateBy(const DTensor& x, const std::vector<double>& factors,
                      InterpolateMode mode = InterpolateMode::kNearest, bool align_corners = false);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_WINDOWS_H_
