// SPDX-License-Identifier: Apache-2.0
//
// Ops over windows against plain loops, values and gradients, with batch and channels in several
// layouts; what they communicate, and what they refuse.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/windows.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

constexpr double kTolerance = 1e-12;

GlobalValue ZerosOf(const Dims& shape) {
  return {shape, DType::kF64, std::vector<double>(static_cast<size_t>(shape.NumElements()), 0)};
}

// Calls visit(index) for each index of `shape` in row-major order.
void ForEachIndex(const Dims& shape, const std::function<void(const Dims&)>& visit) {
  if (shape.NumElements() == 0) return;
  Dims index = Dims::Filled(shape.size(), 0);
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    visit(index);
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

int64_t FlatOf(const Dims& shape, const Dims& index) {
  int64_t flat = 0;
  for (int d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

// ---- an op on a mesh against known values -------------------------------------------------------

using Layouts = std::vector<std::vector<Placement>>;

struct Known {
  std::vector<GlobalValue> operands;
  GlobalValue result, upstream;
  std::vector<GlobalValue> gradients;
};

void Check(const std::string& what, const MeshShape& mesh_shape, const Layouts& layouts,
           const Known& known, const std::function<DTensor(const std::vector<DTensor>&)>& op) {
  SCOPED_TRACE(absl::StrCat(what, " on ", mesh_shape.ToString()));
  Pieces result;
  std::vector<Pieces> gradients(known.operands.size());
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    std::vector<DTensor> operands;
    for (size_t i = 0; i < known.operands.size(); ++i) {
      const Layout layout =
          Layout::Make(mesh_shape, std::span<const Placement>(layouts[i]), known.operands[i].shape);
      operands.push_back(Place(mesh, layout, known.operands[i]).SetRequiresGrad());
    }
    const DTensor y = op(operands);
    result.Put(y);
    Backward(y, Place(mesh,
                      Layout::Make(mesh_shape, std::span<const Placement>(layouts.back()),
                                   known.upstream.shape),
                      known.upstream));
    for (size_t i = 0; i < operands.size(); ++i) gradients[i].Put(operands[i].grad());
  });
  EXPECT_TRUE(result.AreOf(known.result, kTolerance));
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(gradients[i].AreOf(known.gradients[i], kTolerance)) << "gradient " << i;
}

// ---- windows ------------------------------------------------------------------------------------

struct WindowCase {
  Dims shape;
  int dim;
  int64_t size, step, dilation;
};

// Its windows, and the sum of `upstream` where its elements came from.
Known KnownWindows(const WindowCase& c, uint64_t seed) {
  const GlobalValue x = Values(c.shape, seed);
  const int64_t extent = c.shape[c.dim];
  Dims shape = c.shape;
  shape[c.dim] = (extent - (c.size == 0 ? 0 : c.dilation * (c.size - 1) + 1)) / c.step + 1;
  shape.push_back(c.size);
  Known known{{x}, ZerosOf(shape), Values(shape, seed + 1), {ZerosOf(c.shape)}};
  ForEachIndex(shape, [&](const Dims& index) {
    Dims from = index;
    from.erase(index.size() - 1);
    from[c.dim] = index[c.dim] * c.step + index.back() * c.dilation;
    const int64_t out = FlatOf(shape, index), in = FlatOf(c.shape, from);
    known.result.values[out] = x.values[in];
    known.gradients[0].values[in] += known.upstream.values[out];
  });
  return known;
}

const std::vector<WindowCase>& WindowTable() {
  static const auto* cases = new std::vector<WindowCase>{
      {{7, 3}, 0, 3, 1, 1},    {{2, 11}, 1, 3, 2, 2}, {{2, 7, 3}, 1, 2, 5, 3},
      {{5, 2, 3}, 0, 5, 1, 1}, {{1, 7}, 1, 1, 2, 4},  {{2, 0, 5}, 2, 2, 1, 2},
      {{3, 5}, 1, 0, 2, 1},
  };
  return *cases;
}

TEST(Windows, UnfoldAndFoldAreThoseOfPlainLoops) {
  for (const WindowCase& c : WindowTable()) {
    const Known known = KnownWindows(c, 1);
    const auto unfold = [&](const std::vector<DTensor>& o) {
      return Unfold(o[0], c.dim, c.size, c.step, c.dilation);
    };
    // The adjoint: what is given and what comes back change places.
    const Known folded{{known.upstream}, known.gradients[0], known.operands[0], {known.result}};
    const auto fold = [&](const std::vector<DTensor>& o) {
      return Fold(o[0], c.dim, c.shape[c.dim], c.step, c.dilation);
    };
    for (const Placement& p : std::vector<Placement>{Replicate(), Shard(0), Shard(1), Partial()}) {
      Check("unfold", {{"x", 3}}, {{p}, {Shard(0)}}, known, unfold);
      Check("fold", {{"x", 3}}, {{p}, {Replicate()}}, folded, fold);
    }
  }
}

TEST(Windows, ColumnsAreThoseOfPlainLoops) {
  const Dims shape = {2, 3, 5, 4}, columns = {2, 3 * 2 * 3, 3 * 2};
  Known known{{Values(shape, 1)}, ZerosOf(columns), Values(columns, 2), {ZerosOf(shape)}};
  ForEachIndex({2, 3, 2, 3, 3, 2}, [&](const Dims& i) {  // n, c, kernel, windows.
    const int64_t row = i[4] * 2 - 1 + i[2] * 2, column = i[5] * 2 + i[3] - 1;
    if (row < 0 || row >= 5 || column < 0 || column >= 4) return;
    const int64_t in = FlatOf(shape, {i[0], i[1], row, column});
    const int64_t out = FlatOf(columns, {i[0], (i[1] * 2 + i[2]) * 3 + i[3], i[4] * 2 + i[5]});
    known.result.values[out] = known.operands[0].values[in];
    known.gradients[0].values[in] += known.upstream.values[out];
  });
  for (const int dim : {0, 1, 2}) {
    Check("im2col", {{"x", 2}}, {{Shard(dim)}, {Shard(dim)}}, known, [](const auto& o) {
      return Im2Col(o[0], {.kernel = {2, 3}, .dilation = {2, 1}, .padding = {1}, .stride = {2}});
    });
  }
}

// ---- convolution --------------------------------------------------------------------------------

struct ConvCase {
  Dims x, weight;  // As of a convolution: [n, c, ..], [o, c / groups, ..].
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  std::vector<int64_t> extra = {0};  // What a window leaves of x.
};

std::vector<int64_t> Each(const std::vector<int64_t>& values, int rank) {
  return values.size() == 1 ? std::vector<int64_t>(static_cast<size_t>(rank), values[0]) : values;
}

Dims ConvolvedShape(const ConvCase& c) {
  const int rank = c.x.size() - 2;
  Dims y = {c.x[0], c.weight[0]};
  for (int d = 0; d < rank; ++d) {
    const int64_t span = Each(c.dilation, rank)[d] * (c.weight[2 + d] - 1) + 1;
    y.push_back((c.x[2 + d] + 2 * Each(c.padding, rank)[d] - span) / Each(c.stride, rank)[d] + 1);
  }
  return y;
}

// Calls visit(in x, in the weight, in the result) for each product of a convolution.
void ForEachProduct(const ConvCase& c,
                    const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const Dims y = ConvolvedShape(c);
  const int rank = c.x.size() - 2;
  const auto stride = Each(c.stride, rank), padding = Each(c.padding, rank),
             dilation = Each(c.dilation, rank);
  ForEachIndex(y, [&](const Dims& out) {
    Dims kernel = c.weight;
    kernel[0] = 1;
    ForEachIndex(kernel, [&](const Dims& k) {
      Dims in = out, w = k;
      w[0] = out[1];
      in[1] = out[1] / (c.weight[0] / c.groups) * c.weight[1] + k[1];
      for (int d = 0; d < rank; ++d) {
        in[2 + d] = out[2 + d] * stride[d] + k[2 + d] * dilation[d] - padding[d];
        if (in[2 + d] < 0 || in[2 + d] >= c.x[2 + d]) return;
      }
      visit(FlatOf(c.x, in), FlatOf(c.weight, w), FlatOf(y, out));
    });
  });
}

void AddBias(GlobalValue& y, const GlobalValue& bias, const GlobalValue& upstream,
             GlobalValue& gradient) {
  ForEachIndex(y.shape, [&](const Dims& index) {
    y.values[FlatOf(y.shape, index)] += bias.values[index[1]];
    gradient.values[index[1]] += upstream.values[FlatOf(y.shape, index)];
  });
}

Known KnownConvolution(const ConvCase& c) {
  const Dims y = ConvolvedShape(c), outputs = {c.weight[0]};
  Known k{{Values(c.x, 1), Values(c.weight, 2), Values(outputs, 3)},
          ZerosOf(y),
          Values(y, 4),
          {ZerosOf(c.x), ZerosOf(c.weight), ZerosOf(outputs)}};
  ForEachProduct(c, [&](int64_t in, int64_t w, int64_t out) {
    k.result.values[out] += k.operands[0].values[in] * k.operands[1].values[w];
    k.gradients[0].values[in] += k.upstream.values[out] * k.operands[1].values[w];
    k.gradients[1].values[w] += k.upstream.values[out] * k.operands[0].values[in];
  });
  AddBias(k.result, k.operands[2], k.upstream, k.gradients[2]);
  return k;
}

// What a convolution gives becomes the operand, and its operand the result.
Known KnownTranspose(const ConvCase& c) {
  const Dims x = ConvolvedShape(c), outputs = {c.x[1]};
  Known k{{Values(x, 1), Values(c.weight, 2), Values(outputs, 3)},
          ZerosOf(c.x),
          Values(c.x, 4),
          {ZerosOf(x), ZerosOf(c.weight), ZerosOf(outputs)}};
  ForEachProduct(c, [&](int64_t out, int64_t w, int64_t in) {
    k.result.values[out] += k.operands[0].values[in] * k.operands[1].values[w];
    k.gradients[0].values[in] += k.upstream.values[out] * k.operands[1].values[w];
    k.gradients[1].values[w] += k.upstream.values[out] * k.operands[0].values[in];
  });
  AddBias(k.result, k.operands[2], k.upstream, k.gradients[2]);
  return k;
}

DTensor ConvolutionOf(const ConvCase& c, const std::vector<DTensor>& o) {
  const auto op = c.x.size() == 3 ? Conv1d : c.x.size() == 4 ? Conv2d : Conv3d;
  return op(o[0], o[1], o[2],
            {.stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups});
}

DTensor TransposeOf(const ConvCase& c, const std::vector<DTensor>& o) {
  const auto op = c.x.size() == 3   ? ConvTranspose1d
                  : c.x.size() == 4 ? ConvTranspose2d
                                    : ConvTranspose3d;
  return op(o[0], o[1], o[2],
            {.stride = c.stride,
             .padding = c.padding,
             .output_padding = c.extra,
             .dilation = c.dilation,
             .groups = c.groups});
}

const std::vector<ConvCase>& ConvTable() {
  static const auto* cases = new std::vector<ConvCase>{
      {{2, 3, 7}, {5, 3, 3}, {1}, {1}, {1}},
      {{1, 4, 11}, {6, 2, 3}, {2}, {2}, {2}, 2},
      {{5, 6, 5}, {6, 1, 2}, {3}, {0}, {1}, 6},
      {{2, 3, 5, 7}, {2, 3, 2, 3}, {2, 1}, {0, 1}, {1, 2}, 1, {1, 0}},
      {{3, 4, 4, 5}, {8, 2, 3, 1}, {1}, {1, 0}, {1}, 2},
      {{2, 2, 3, 4, 2}, {3, 2, 2, 2, 1}, {1, 2, 1}, {1, 0, 0}, {1}},
      {{2, 4, 2, 3, 2}, {4, 2, 1, 2, 2}, {1}, {0}, {1}, 2},
      {{0, 3, 5}, {2, 3, 2}, {1}, {0}, {1}},
  };
  return *cases;
}

TEST(Convolution, IsThatOfPlainLoops) {
  const Placement r = Replicate(), batch = Shard(0), channels = Shard(1);
  for (const ConvCase& c : ConvTable()) {
    const Known forward = KnownConvolution(c), transposed = KnownTranspose(c);
    const auto check = [&](const MeshShape& mesh, const Layouts& layouts) {
      Check("conv", mesh, layouts, forward, [&](const auto& o) { return ConvolutionOf(c, o); });
      Check("conv_transpose", mesh, layouts, transposed,
            [&](const auto& o) { return TransposeOf(c, o); });
    };
    check({{"x", 3}}, {{batch}, {r}, {r}, {batch}});         // Data parallel.
    check({{"x", 3}}, {{channels}, {channels}, {r}, {r}});   // Along one side of the weight,
    check({{"x", 3}}, {{r}, {batch}, {batch}, {channels}});  // and along the other.
    check({{"x", 3}}, {{Shard(2)}, {Partial()}, {Partial()}, {Shard(2)}});
    check({{"x", 2}, {"y", 2}},
          {{batch, channels}, {r, channels}, {r, Partial()}, {batch, channels}});
    check({{"x", 2}, {"y", 2}}, {{channels, Partial()}, {channels, r}, {r, batch}, {r, r}});
  }
}

TEST(Convolution, OfTheSameExtentPutsTheLargerPaddingLast) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, {{3, 1, 5}, DType::kF64, std::vector<double>(15, 1)});
    const DTensor ones = Place(mesh, {Replicate()}, {{1, 1, 4}, DType::kF64, {1, 1, 1, 1}});
    const DTensor y = Conv1d(x, ones, {}, {.mode = ConvPadding::kSame});
    EXPECT_EQ(FullTensor(Slice(y, 0, 2, 1)).ToVector<double>(),
              (std::vector<double>{3, 4, 4, 3, 2}));
    const DTensor row = Select(x, 0, 1);  // Without the batch.
    EXPECT_EQ(Conv1d(row, ones, {}, {.padding = {2}}).shape(), (Dims{1, 6}));
    EXPECT_EQ(ConvTranspose1d(row, ones).shape(), (Dims{1, 8}));
  });
}

// Batches and channels need no collective of their own: only the sum over sharded input channels
// is reduced, once, when it is asked for.
TEST(Convolution, ReducesTheSumOverChannelsAlone) {
  OnMesh({{"x", 2}, {"y", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0), Shard(1)}, Values({4, 4, 5, 5}, 1));
    const DTensor along = Place(mesh, {Replicate(), Shard(1)}, Values({6, 4, 3, 3}, 2));
    CommTrace trace(mesh);
    const DTensor y = Conv2d(x, along, {}, {.padding = {1}});
    EXPECT_EQ(trace.Count(), 0) << trace.ToString();
    EXPECT_EQ(y.layout().PlacementsToString(), "[S(0), P(sum)]");
    Redistribute(y, {Shard(0), Replicate()});
    EXPECT_EQ(trace.Count("y", "all_reduce"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();

    const DTensor whole = Place(mesh, {Shard(0), Replicate()}, Values({4, 4, 5, 5}, 1));
    const DTensor across = Place(mesh, {Replicate(), Shard(0)}, Values({6, 4, 3, 3}, 2));
    const DTensor z = ConvTranspose2d(Conv2d(whole, across), across);
    EXPECT_EQ(z.layout().PlacementsToString(), "[S(0), P(sum)]");
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();

    const DTensor grouped =
        Conv2d(x, Place(mesh, {Replicate(), Shard(0)}, Values({6, 2, 3, 3}, 2)), {}, {.groups = 2});
    EXPECT_EQ(grouped.layout().PlacementsToString(), "[S(0), S(1)]");
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();
  });
}

// The sum of the products, 4 + 100 / 256, lies between two bf16 values; with the bias it is one.
TEST(Convolution, RoundsSmallDTypesOnce) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    std::vector<double> values(101, 0x1p-8);
    values[0] = 4;
    const DTensor x = Place(mesh, {Shard(1)}, {{1, 101, 1}, DType::kBF16, values});
    const DTensor ones =
        Place(mesh, {Shard(1)}, {{1, 101, 1}, DType::kBF16, std::vector<double>(101, 1)});
    const DTensor bias = Place(mesh, {Replicate()}, {{1}, DType::kBF16, {-4}});
    const DTensor y = Conv1d(x, ones, bias);
    EXPECT_EQ(y.dtype(), DType::kBF16);
    EXPECT_EQ(FullTensor(y).ToVector<double>(), (std::vector<double>{0.390625}));
  });
}

TEST(Convolution, NamesWhatDoesNotFit) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({3, 4, 5}, 1));
    const DTensor weight = Place(mesh, {Shard(0)}, Values({6, 4, 3}, 2));
    const DTensor longer = Place(mesh, {Shard(0)}, Values({6, 4, 7}, 2));
    const auto says = [](const std::string& text, absl::FunctionRef<void()> fn) {
      const std::string message = ErrorOf(fn);
      EXPECT_NE(message.find(text), std::string::npos) << message;
    };
    says("conv1d: a window of 7 elements 1 apart is larger than dim 2 of f64[3,4,5]",
         [&] { Conv1d(x, longer); });
    says("conv1d: 4 groups do not divide the 6 channels",
         [&] { Conv1d(x, weight, {}, {.groups = 4}); });
    says("has 4 channels, expected 8", [&] { Conv1d(x, weight, {}, {.groups = 2}); });
    says("conv2d: weight f64[6,4,3]", [&] { Conv2d(x, weight); });
    says("`stride` is 0", [&] { Conv1d(x, weight, {}, {.stride = {0}}); });
    says("2 values of `padding`", [&] { Conv1d(x, weight, {}, {.padding = {1, 1}}); });
    says("`stride` is 2",
         [&] { Conv1d(x, weight, {}, {.stride = {2}, .mode = ConvPadding::kSame}); });
    says("bias", [&] { Conv1d(x, weight, x); });
    says("differ in dtype", [&] { Conv1d(x, Cast(weight, DType::kF32)); });
    says("`output_padding` is 2", [&] {
      ConvTranspose1d(x, Transpose(weight, 0, 1), {}, {.stride = {2}, .output_padding = {2}});
    });
    says("nothing is left of dim 2",
         [&] { ConvTranspose1d(x, Transpose(weight, 0, 1), {}, {.padding = {4}}); });
    says("unfold: windows of 4 every 1, of elements 2 apart", [&] { Unfold(x, 2, 4, 1, 2); });
    says("fold: expected 5 windows", [&] { Fold(x, 1, 9, 1); });
    EXPECT_EQ(Conv1d(x, weight).shape(), (Dims{3, 6, 3}));
  });
}

}  // namespace
}  // namespace shardmesh::testing
