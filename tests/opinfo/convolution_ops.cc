// SPDX-License-Identifier: Apache-2.0
#include "nlohmann/json.hpp"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

using Sizes = std::vector<int64_t>;

Sizes IntsOr(const Args& args, int position, const char* name, int64_t otherwise) {
  return args.Has(position, name) ? args.Ints(position, name) : Sizes{otherwise};
}

// ---- convolution --------------------------------------------------------------------------------

using Convolution = DTensor (*)(const DTensor&, const DTensor&, const DTensor&, const ConvOptions&);

OpFunction Convolutions(Convolution op) {
  return [op](const Args& args) {
    ConvOptions options;
    options.stride = IntsOr(args, 3, "stride", 1);
    options.dilation = IntsOr(args, 5, "dilation", 1);
    options.groups = args.Int(6, "groups", 1);
    const nlohmann::json* padding = args.Find(4, "padding");
    if (padding != nullptr && *padding == "same") {
      options.mode = ConvPadding::kSame;
    } else if (padding == nullptr || *padding != "valid") {
      options.padding = IntsOr(args, 4, "padding", 0);
    }
    return Results{op(args.Tensor(0), args.Tensor(1), args.Tensor(2), options)};
  };
}

using TransposedConvolution = DTensor (*)(const DTensor&, const DTensor&, const DTensor&,
                                          const ConvTransposeOptions&);

OpFunction TransposedConvolutions(TransposedConvolution op) {
  return [op](const Args& args) {
    const ConvTransposeOptions options{
        .stride = IntsOr(args, 3, "stride", 1),
        .padding = IntsOr(args, 4, "padding", 0),
        .output_padding = IntsOr(args, 5, "output_padding", 0),
        .dilation = IntsOr(args, 7, "dilation", 1),
        .groups = args.Int(6, "groups", 1),
    };
    return Results{op(args.Tensor(0), args.Tensor(1), args.Tensor(2), options)};
  };
}

Results Columns(const Args& args) {
  return {Im2Col(args.Tensor(0), {.kernel = args.Ints(1, "kernel_size"),
                                  .dilation = IntsOr(args, 2, "dilation", 1),
                                  .padding = IntsOr(args, 3, "padding", 0),
                                  .stride = IntsOr(args, 4, "stride", 1)})};
}

// ---- pooling ------------------------------------------------------------------------------------

OpFunction Means(DTensor (*op)(const DTensor&, const AvgPoolOptions&)) {
  return [op](const Args& args) {
    AvgPoolOptions options{.kernel = args.Ints(1, "kernel_size"),
                           .stride = args.Ints(2, "stride"),
                           .padding = IntsOr(args, 3, "padding", 0),
                           .ceil_mode = args.Flag(4, "ceil_mode", false),
                           .count_include_pad = args.Flag(5, "count_include_pad", true)};
    if (args.Has(6, "divisor_override")) options.divisor = args.Int(6, "divisor_override");
    return Results{op(args.Tensor(0), options)};
  };
}

Results ValuesAnd(bool indices, const MaxPoolResult& result) {
  return indices ? Results{result.values, result.indices} : Results{result.values};
}

OpFunction Maxima(MaxPoolResult (*op)(const DTensor&, const MaxPoolOptions&)) {
  return [op](const Args& args) {
    const MaxPoolOptions options{.kernel = args.Ints(1, "kernel_size"),
                                 .stride = args.Ints(2, "stride"),
                                 .padding = IntsOr(args, 3, "padding", 0),
                                 .dilation = IntsOr(args, 4, "dilation", 1),
                                 .ceil_mode = args.Flag(5, "ceil_mode", false)};
    return ValuesAnd(args.Flag(6, "return_indices", false), op(args.Tensor(0), options));
  };
}

// None keeps an extent.
Sizes AdaptiveSizes(const Args& args) {
  if (!args.IsList(1, "output_size")) return args.Ints(1, "output_size");
  Sizes sizes;
  for (const nlohmann::json& size : *args.Find(1, "output_size"))
    sizes.push_back(size.is_null() ? -1 : size.get<int64_t>());
  return sizes;
}

OpFunction AdaptiveMeans(DTensor (*op)(const DTensor&, const Sizes&)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0), AdaptiveSizes(args))}; };
}

OpFunction AdaptiveMaxima(MaxPoolResult (*op)(const DTensor&, const Sizes&)) {
  return [op](const Args& args) {
    return ValuesAnd(args.Flag(2, "return_indices", false),
                     op(args.Tensor(0), AdaptiveSizes(args)));
  };
}

// ---- interpolation ------------------------------------------------------------------------------

InterpolateMode ModeOf(const Args& args) {
  const std::string mode = args.Text(3, "mode", "nearest");
  if (mode == "nearest") return InterpolateMode::kNearest;
  if (mode == "nearest-exact") return InterpolateMode::kNearestExact;
  if (mode == "bicubic") return InterpolateMode::kCubic;
  if (mode == "area") return InterpolateMode::kArea;
  if (mode == "linear" || mode == "bilinear" || mode == "trilinear")
    return InterpolateMode::kLinear;
  ThrowInvalid(args.id(), ": unknown mode ", mode);
}

Results Interpolations(const Args& args) {
  const DTensor x = args.Tensor(0);
  const bool align_corners = args.Flag(4, "align_corners", false);
  if (args.Has(1, "size"))
    return {Interpolate(x, args.Ints(1, "size"), ModeOf(args), align_corners)};
  const double factor = args.Number(2, "scale_factor");
  if (!args.Flag(5, "recompute_scale_factor", false))
    return {InterpolateBy(x, {factor}, ModeOf(args), align_corners)};
  Sizes sizes;
  for (int d = 2; d < x.num_dims(); ++d)
    sizes.push_back(static_cast<int64_t>(static_cast<double>(x.dim(d)) * factor));
  return {Interpolate(x, sizes, ModeOf(args), align_corners)};
}

}  // namespace

void AddConvolutionOps(OpTable& table) {
  table.Add("nn.functional.adaptive_avg_pool1d", AdaptiveMeans(AdaptiveAvgPool1d));
  table.Add("nn.functional.adaptive_avg_pool2d", AdaptiveMeans(AdaptiveAvgPool2d));
  table.Add("nn.functional.adaptive_max_pool2d", AdaptiveMaxima(AdaptiveMaxPool2d));
  table.Add("nn.functional.avg_pool1d", Means(AvgPool1d));
  table.Add("nn.functional.avg_pool2d", Means(AvgPool2d));
  table.Add("nn.functional.conv1d", Convolutions(Conv1d));
  table.Add("nn.functional.conv2d", Convolutions(Conv2d));
  table.Add("nn.functional.conv3d", Convolutions(Conv3d));
  table.Add("nn.functional.conv_transpose1d", TransposedConvolutions(ConvTranspose1d));
  table.Add("nn.functional.conv_transpose2d", TransposedConvolutions(ConvTranspose2d));
  table.Add("nn.functional.interpolate", Interpolations);
  table.Add("nn.functional.max_pool1d", Maxima(MaxPool1d));
  table.Add("nn.functional.max_pool2d", Maxima(MaxPool2d));
  table.Add("nn.functional.unfold", Columns);
}

}  // namespace shardmesh::testing
