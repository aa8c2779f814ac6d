// SPDX-License-Identifier: Apache-2.0
//
// The small layers: what they compute follows from dtensor's ops, which have their own tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/dropout.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/layer_norm.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/rms_norm.h"

namespace shardmesh::nn {
namespace {

using ::testing::HasSubstr;

void OnOneRank(const std::function<void(const DeviceMesh& mesh)>& body) {
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    body(DeviceMesh::Create(world, {{"dp", 1}}));
  });
  EXPECT_TRUE(status.ok()) << status;
}

DTensor Values(const DeviceMesh& mesh, const Dims& shape, const std::vector<double>& values) {
  return Distribute(mesh, Tensor::FromValues<double>(mesh.context(), shape, values), {Replicate()});
}

void Set(const Module& module, const std::string& name, const std::vector<double>& values) {
  for (auto& [own, parameter] : module.NamedParameters()) {
    if (own != name) continue;
    parameter.SetData(Values(parameter.mesh(), parameter.shape(), values));
    return;
  }
  FAIL() << "no parameter " << name;
}

void ExpectNear(const DTensor& x, const std::vector<double>& expected, double tolerance = 1e-14) {
  const std::vector<double> values = FullTensor(x).ToVector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

TEST(Linear, MultipliesByTheTransposedWeightAndAddsTheBias) {
  OnOneRank([](const DeviceMesh& mesh) {
    Linear linear(2, 3, {.bias = true, .dtype = DType::kF64});
    linear.PlaceReplicated(mesh);
    Set(linear, "weight", {1, 2, -3, 4, 5, -6});
    Set(linear, "bias", {10, 20, 30});
    ExpectNear(linear(Values(mesh, {1, 2}, {7, -8})), {1, -33, 113});
    EXPECT_EQ(linear.inputs(), 2);
    EXPECT_EQ(linear.outputs(), 3);
  });
}

TEST(Linear, SharesATiedWeight) {
  Linear first(2, 3);
  const Linear second(first.weight());
  EXPECT_EQ(first.weight(), second.weight());
  EXPECT_FALSE(static_cast<bool>(second.bias()));
  EXPECT_THROW(Linear(first.weight(), {.dtype = DType::kF64}), Error);
  EXPECT_THROW(Linear(RmsNorm(3).own_parameters()[0].parameter), Error);
}

TEST(Linear, RefusesHeadsThatDoNotDivide) {
  const absl::Status status = Catch([] { Linear(6, 8, {.output_heads = 3}); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 heads do not divide 8 outputs"));
  EXPECT_THROW(Linear(6, 8, {.input_heads = 4}), Error);
}

TEST(Embedding, LooksUpRows) {
  OnOneRank([](const DeviceMesh& mesh) {
    Embedding embedding(3, 2, DType::kF64);
    embedding.PlaceReplicated(mesh);
    Set(embedding, "weight", {1, -2, 3, 4, -5, 6});
    const Tensor ids = Tensor::FromValues<int64_t>(mesh.context(), {2, 2}, {2, 0, 1, 2});
    const DTensor y = embedding(Distribute(mesh, ids, {Replicate()}));
    EXPECT_EQ(y.shape(), (Dims{2, 2, 2}));
    ExpectNear(y, {-5, 6, 1, -2, 3, 4, -5, 6});
  });
}

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  OnOneRank([](const DeviceMesh& mesh) {
    RmsNorm norm(2, /*eps=*/0.5, DType::kF64);
    norm.PlaceReplicated(mesh);
    norm.Initialize(1);
    const double rms = std::sqrt((9 + 16) / 2.0 + 0.5);
    ExpectNear(norm(Values(mesh, {1, 2}, {3, -4})), {3 / rms, -4 / rms});
    Set(norm, "weight", {2, -1});
    ExpectNear(norm(Values(mesh, {1, 2}, {3, -4})), {6 / rms, 4 / rms});
  });
}

TEST(LayerNorm, NormalisesMeanAndVariance) {
  OnOneRank([](const DeviceMesh& mesh) {
    LayerNorm norm(2, /*eps=*/0.75, DType::kF64);
    norm.PlaceReplicated(mesh);
    norm.Initialize(1);
    const double deviation = std::sqrt(12.25 + 0.75);
    ExpectNear(norm(Values(mesh, {1, 2}, {3, -4})), {3.5 / deviation, -3.5 / deviation});
    Set(norm, "bias", {10, 20});
    ExpectNear(norm(Values(mesh, {1, 2}, {3, -4})), {10 + 3.5 / deviation, 20 - 3.5 / deviation});
  });
}

/// Two dropout layers under names of their own.
class TwoDropouts : public Module {
 public:
  TwoDropouts() {
    RegisterChild("a", a);
    RegisterChild("b", b);
  }
  Dropout a{0.4}, b{0.4};

 protected:
  Outputs Forward(const Inputs& inputs) override { return inputs[0]; }
};

/// The masks of a, a again, b, and a once more after Initialize(seed) for a second time.
std::vector<std::vector<double>> Masks(const MeshShape& shape,
                                       const std::vector<Placement>& placements, uint64_t seed) {
  std::vector<std::vector<double>> masks;
  const absl::Status status = RunRanks(static_cast<int>(shape.NumRanks()), [&](Communicator& w) {
    const DeviceMesh mesh = DeviceMesh::Create(w, shape);
    TwoDropouts layers;
    layers.Initialize(seed);
    const DTensor ones = Full(mesh, {13, 7}, DType::kF32, 1, placements);
    std::vector<Tensor> results;
    for (Dropout* layer : {&layers.a, &layers.a, &layers.b}) {
      results.push_back(FullTensor((*layer)(ones)));
    }
    layers.Initialize(seed);
    results.push_back(FullTensor(layers.a(ones)));
    if (w.rank() != 0) return;
    for (const Tensor& result : results) masks.push_back(result.ToVector<double>());
  });
  EXPECT_TRUE(status.ok()) << status;
  return masks;
}

TEST(Dropout, HasTheSameMasksOnAnyMeshAndOthersForEachCallLayerAndSeed) {
  const auto one = Masks({{"dp", 1}}, {Replicate()}, 3);
  ASSERT_EQ(one.size(), 4u);
  EXPECT_EQ(one[3], one[0]);
  EXPECT_EQ(std::set(one.begin(), one.end()).size(), 3u);
  EXPECT_NE(Masks({{"dp", 1}}, {Replicate()}, 4)[0], one[0]);
  EXPECT_EQ(Masks({{"dp", 3}}, {Shard(0)}, 3), one);
  EXPECT_EQ(Masks({{"dp", 2}, {"tp", 2}}, {Shard(1), Shard(0)}, 3), one);
  int zeros = 0;
  for (double value : one[0]) {
    EXPECT_TRUE(value == 0 || value == static_cast<float>(1 / 0.6)) << value;
    zeros += value == 0;
  }
  EXPECT_NEAR(zeros, 91 * 0.4, 20);
}

TEST(Dropout, DoesNothingInEvaluation) {
  OnOneRank([](const DeviceMesh& mesh) {
    Dropout dropout(0.9);
    dropout.Eval();
    ExpectNear(dropout(Values(mesh, {3}, {1, -2, 3})), {1, -2, 3});
    EXPECT_EQ(dropout.calls(), 0);
    dropout.Train();
    const absl::Status status = Catch([&] { dropout(Values(mesh, {3}, {1, -2, 3})); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no seed"));
  });
  for (double p : {-0.1, 1.5, std::nan("")}) EXPECT_THROW(Dropout{p}, Error);
}

}  // namespace
}  // namespace shardmesh::nn
