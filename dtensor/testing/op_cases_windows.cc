// SPDX-License-Identifier: Apache-2.0
//
// Cases of ops/windows.h and ops/norms.h.
#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/norms.h"
#include "shardmesh/dtensor/ops/windows.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Operands = std::span<const DTensor>;

// Collects cases whose values follow from the order in which they are added.
class Cases {
 public:
  explicit Cases(uint64_t seed) : random_(seed) {}

  void Add(std::string name, const std::vector<Dims>& shapes,
           std::function<DTensor(Operands)> apply) {
    OpCase added{std::move(name), {}, std::move(apply)};
    for (const Dims& shape : shapes) added.operands.push_back(RandomGlobal(shape, random_));
    cases_.push_back(std::move(added));
  }
  // Of few different values, which small dtypes hold, so that there are ties.
  void AddTied(std::string name, const Dims& shape, std::function<DTensor(const DTensor&)> op) {
    GlobalValue value = RandomIntegers(shape, random_, -2, 3);
    value.dtype = DType::kF64;
    cases_.push_back({std::move(name), {value}, [op](Operands o) { return op(o[0]); }});
  }
  std::vector<OpCase> Take() { return std::move(cases_); }

 private:
  Random random_;
  std::vector<OpCase> cases_;
};

}  // namespace

std::vector<OpCase> WindowCases() {
  Cases cases(25);
  for (const Dims& shape : {Dims{7, 3}, Dims{5, 0}}) {
    cases.Add("unfold(0, 3, 1, 2)", {shape}, [](Operands o) { return Unfold(o[0], 0, 3, 1, 2); });
  }
  cases.Add("unfold(1, 2, 3, 1)", {{2, 7, 3}}, [](Operands o) { return Unfold(o[0], 1, 2, 3, 1); });
  cases.Add("fold(0, 7)", {{5, 3, 3}}, [](Operands o) { return Fold(o[0], 0, 7, 1); });
  cases.Add("fold(1, 8, 2, 3)", {{2, 3, 2}}, [](Operands o) { return Fold(o[0], 1, 8, 2, 3); });
  cases.Add("im2col", {{2, 3, 5, 3}}, [](Operands o) {
    return Im2Col(o[0], {.kernel = {2, 3}, .padding = {1, 0}, .stride = {2}});
  });
  cases.Add("conv1d", {{2, 3, 5}, {2, 3, 2}, {2}},
            [](Operands o) { return Conv1d(o[0], o[1], o[2], {.padding = {1}, .dilation = {2}}); });
  cases.Add("conv1d in groups", {{3, 4, 5}, {6, 2, 3}},
            [](Operands o) { return Conv1d(o[0], o[1], {}, {.stride = {2}, .groups = 2}); });
  cases.Add("conv2d", {{3, 2, 3, 5}, {5, 2, 2, 3}, {5}},
            [](Operands o) { return Conv2d(o[0], o[1], o[2], {.mode = ConvPadding::kSame}); });
  cases.Add("conv_transpose1d", {{2, 3, 4}, {3, 2, 3}, {2}}, [](Operands o) {
    return ConvTranspose1d(o[0], o[1], o[2],
                           {.stride = {2}, .padding = {1}, .output_padding = {1}});
  });
  cases.Add("conv_transpose2d in groups", {{2, 4, 2, 3}, {4, 1, 2, 2}}, [](Operands o) {
    return ConvTranspose2d(o[0], o[1], {}, {.dilation = {1, 2}, .groups = 2});
  });
  cases.Add("avg_pool2d", {{2, 3, 5, 4}}, [](Operands o) {
    return AvgPool2d(o[0], {.kernel = {3, 2},
                            .stride = {2},
                            .padding = {1},
                            .ceil_mode = true,
                            .count_include_pad = false});
  });
  cases.AddTied("max_pool1d", {3, 5, 7}, [](const DTensor& x) {
    return MaxPool1d(x, {.kernel = {3}, .stride = {2}, .padding = {1}, .dilation = {2}}).values;
  });
  cases.AddTied("max_pool2d", {2, 3, 5, 4}, [](const DTensor& x) {
    return MaxPool2d(x, {.kernel = {2, 3}, .stride = {2}, .padding = {1}, .ceil_mode = true})
        .values;
  });
  cases.AddTied("max_pool1d indices", {3, 2, 7},
                [](const DTensor& x) { return MaxPool1d(x, {.kernel = {3}}).indices; });
  cases.Add("adaptive_avg_pool2d", {{2, 3, 5, 4}}, [](Operands o) {
    return AdaptiveAvgPool2d(o[0], {3, 5});
  });
  cases.AddTied("adaptive_max_pool2d", {2, 3, 5, 4}, [](const DTensor& x) {
    return AdaptiveMaxPool2d(x, {3, -1}).values;
  });
  for (const InterpolateMode mode : {InterpolateMode::kNearest, InterpolateMode::kLinear,
                                     InterpolateMode::kCubic, InterpolateMode::kArea}) {
    cases.Add(absl::StrCat("interpolate in mode ", static_cast<int>(mode)), {{2, 3, 5, 2}},
              [mode](Operands o) {
                return Interpolate(o[0], {7, 3}, mode);
              });
  }
  return cases.Take();
}

std::vector<OpCase> ChannelNormCases() {
  Cases cases(26);
  cases.Add("batch_norm", {{5, 3, 2}, {3}, {3}},
            [](Operands o) { return BatchNorm(o[0], o[1], o[2], 0.5); });
  cases.Add("batch_norm of rows", {{7, 2}},
            [](Operands o) { return BatchNorm(o[0], {}, {}, 0.5); });
  cases.Add("batch_norm with statistics", {{5, 3}, {3}, {3}},
            [](Operands o) { return BatchNormWith(o[0], o[1], Square(o[2]), {}, {}, 0.5); });
  cases.Add("instance_norm", {{3, 2, 5}, {2}},
            [](Operands o) { return InstanceNorm(o[0], o[1], {}, 0.5); });
  cases.Add("group_norm", {{3, 6, 2}, {6}, {6}},
            [](Operands o) { return GroupNorm(o[0], 3, o[1], o[2], 0.5); });
  cases.Add("local_response_norm", {{2, 5, 3}},
            [](Operands o) { return LocalResponseNorm(o[0], 3, 0.5, 0.75, 2); });
  cases.Add("layer_norm over 2 dims", {{5, 2, 3}, {2, 3}},
            [](Operands o) { return LayerNormOver(o[0], 2, o[1], {}, 0.5); });
  cases.Add("rms_norm over 2 dims", {{5, 2, 3}},
            [](Operands o) { return RmsNormOver(o[0], 2, {}, 0.5); });
  cases.Add("cdist", {{5, 3}, {2, 3, 3}}, [](Operands o) { return CDist(o[0], o[1]); });
  cases.Add("cdist(1)", {{2, 3, 2}, {2, 5, 2}}, [](Operands o) { return CDist(o[0], o[1], 1); });
  return cases.Take();
}

}  // namespace shardmesh::testing
