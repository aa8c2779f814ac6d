// SPDX-License-Identifier: Apache-2.0
//
// Shards of parameters of every small extent, on meshes that mostly do not divide it: their
// lengths, their initial numbers, what is gathered of them and where their gradients go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
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
constexpr int kMaxRanks = 11;

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
  DTensor Forward(const Inputs& x) override {
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

Values RunOnRank(Communicator& world) {
  const int p = world.size();
  const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
  AllExtents module;
  FullyShard(module, mesh);
  module.Initialize(/*seed=*/7);
  Values values;
  for (const nn::Parameter& parameter : module.Parameters()) {
    const int64_t n = parameter.shape()[0];
    const int64_t chunk = (n + p - 1) / p;
    const int64_t begin = std::min(n, chunk * world.rank());
    EXPECT_EQ(parameter.data().local().shape(), Dims{std::min(n, begin + chunk) - begin})
        << n << " over " << p;
    values.initial.push_back(FullTensor(parameter.data()).ToVector<double>());
  }
  const DTensor x = FromBoxes(mesh, {kRows, kLargest}, DType::kF64, {shardmesh::Shard(0)},
                              [](const Box& box, Tensor& local) {
                                double* out = local.data<double>();
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
  for (int p = 1; p <= kMaxRanks; ++p) {
    const absl::Status status = RunRanks(p, [&](Communicator& world) {
      const Values values = RunOnRank(world);
      if (p == 1) expected = values;
      EXPECT_EQ(values.initial, expected.initial) << p;
      EXPECT_NEAR(values.output, expected.output, 1e-9) << p;
      for (int64_t n = 0; n <= kLargest; ++n) {
        const std::vector<double> gradient(column_sums.begin(), column_sums.begin() + n);
        EXPECT_EQ(values.gradients[n], gradient) << n << " over " << p;
      }
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_NE(expected.output, 0);
}

}  // namespace
}  // namespace shardmesh::fsdp
