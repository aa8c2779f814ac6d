// SPDX-License-Identifier: Apache-2.0
//
// Shards of parameters of every small extent, on meshes that mostly do not divide it, some of which
// tensor parallelism has split before: their lengths, their initial numbers, what is gathered of
// them and where their gradients go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/fully_shard.h"
#include "shardmesh/nn/module.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp {
namespace {

constexpr int64_t kLargest = 40;
constexpr int64_t kRows = 6;

// A parameter of each extent 0 .. 40, all in one unit; the sum of their products with the first
// columns of the input.
class AllExtents : public nn::Module {
 public:
  AllExtents() {
    for (int64_t n = 0; n <= kLargest; ++n) {
      parameters_.push_back(
          RegisterParameter("of" + std::to_string(n), {n}, DType::kF64, nn::Init::Normal(0, 1)));
    }
  }

 protected:
  Outputs Forward(const Inputs& x) override {
    DTensor sum;
    for (int64_t n = 0; n <= kLargest; ++n) {
      const DTensor term = Sum(Mul(Slice(x[0], 1, 0, n), parameters_[n].active()));
      sum = sum ? Add(sum, term) : term;
    }
    return sum;
  }

 private:
  std::vector<nn::Parameter> parameters_;
};

struct Values {
  double output = 0;
  std::vector<std::vector<double>> initial, gradients;
};

// Element (i, j) of the input: an integer, so that sums over ranks are exact.
double InputAt(int64_t i, int64_t j) { return static_cast<double>((i * 37 + j * 11) % 23) - 9; }

struct Range {
  int64_t begin, end;
};

// Chunk `index` of `count` by ceil(length / count) elements each.
Range ChunkOf(Range whole, int64_t index, int64_t count) {
  const int64_t chunk = (whole.end - whole.begin + count - 1) / count;
  const int64_t begin = std::min(whole.end, whole.begin + chunk * index);
  return {begin, std::min(whole.end, begin + chunk)};
}

// `shape` is {dp} or {dp, tp}; tp splits the parameters first.
Values RunOnRank(Communicator& world, const MeshShape& shape) {
  const DeviceMesh mesh = DeviceMesh::Create(world, shape);
  const bool has_tp = shape.num_axes() == 2;
  AllExtents module;
  std::vector<Placement> of_input = {shardmesh::Shard(0)};
  if (has_tp) {
    of_input.push_back(Replicate());
    for (nn::Parameter parameter : module.Parameters()) {
      parameter.Place(mesh,
                      Layout::Make(shape, {Replicate(), shardmesh::Shard(0)}, parameter.shape()));
    }
  }
  FullyShard(module, mesh);
  module.Initialize(/*seed=*/7);
  Values values;
  for (const nn::Parameter& parameter : module.Parameters()) {
    Range own = {0, parameter.shape()[0]};
    if (has_tp) own = ChunkOf(own, mesh.coord()[1], shape.size(1));
    own = ChunkOf(own, mesh.coord()[0], shape.size(0));
    const std::vector<double> whole = FullTensor(parameter.data()).ToVector<double>();
    EXPECT_EQ(parameter.data().local().ToVector<double>(),
              std::vector<double>(whole.begin() + own.begin, whole.begin() + own.end))
        << parameter.ToString();
    values.initial.push_back(whole);
  }
  const DTensor x =
      FromBoxes(mesh, {kRows, kLargest}, DType::kF64, of_input, [](const Box& box, Tensor& local) {
        double* out = local.mutable_data<double>();
        for (int64_t i = box.begin[0]; i < box.end[0]; ++i) {
          for (int64_t j = 0; j < kLargest; ++j) *out++ = InputAt(i, j);
        }
      });
  const DTensor y = module(x);
  Backward(y);
  values.output = Item(y);
  for (const nn::Parameter& parameter : module.Parameters()) {
    EXPECT_EQ(parameter.data().grad().layout(), parameter.layout());
    values.gradients.push_back(FullTensor(parameter.data().grad()).ToVector<double>());
  }
  return values;
}

TEST(FullyShard, ParametersOfEveryExtentAreThoseOfOneRank) {
  Values expected;
  std::vector<double> column_sums(kLargest, 0.0);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kLargest; ++j) column_sums[j] += InputAt(i, j);
  }
  std::vector<MeshShape> meshes;
  for (int p = 1; p <= 11; ++p) meshes.push_back({{"dp", p}});
  for (const auto& [dp, tp] : {std::pair(2, 2), {3, 2}, {4, 2}, {2, 3}, {5, 3}}) {
    meshes.push_back({{"dp", dp}, {"tp", tp}});
  }
  for (const MeshShape& mesh : meshes) {
    SCOPED_TRACE(mesh.ToString());
    const auto run = [&](Communicator& world) {
      const Values values = RunOnRank(world, mesh);
      if (mesh.NumRanks() == 1) expected = values;
      EXPECT_EQ(values.initial, expected.initial) << mesh;
      EXPECT_NEAR(values.output, expected.output, 1e-9) << mesh;
      for (int64_t n = 0; n <= kLargest; ++n) {
        const std::vector<double> gradient(column_sums.begin(), column_sums.begin() + n);
        EXPECT_EQ(values.gradients[n], gradient) << n << " on " << mesh;
      }
    };
    const absl::Status status = RunRanks(static_cast<int>(mesh.NumRanks()), run);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_NE(expected.output, 0);
}

}  // namespace
}  // namespace shardmesh::fsdp
