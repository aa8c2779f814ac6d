// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/state.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/dropout.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"

namespace shardmesh::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A tied head, a buffer, and a layer that draws random numbers.
class Model : public Module {
 public:
  Model() : embed(7, 5, DType::kF64), head(embed.weight(), {.bias = true, .dtype = DType::kF64}) {
    RegisterChild("embed", embed);
    RegisterChild("dropout", dropout);
    RegisterChild("head", head);
    mean = RegisterBuffer("mean", {5}, DType::kF64, Init::Constant(0.5));
    RegisterBuffer("table", {3}, DType::kF32, Init::Constant(1), /*is_persistent=*/false);
  }
  Embedding embed;
  Dropout dropout{0.4};
  Linear head;
  Buffer mean;

 protected:
  Outputs Forward(const Inputs& x) override { return head(dropout(Add(embed(x[0]), mean.data()))); }
};

void OnMesh(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus());
}

void PlaceRows(Model& model, const DeviceMesh& mesh) {
  for (Parameter parameter : model.Parameters()) {
    parameter.Place(mesh, Layout::Make(mesh.shape(), {Shard(0)}, parameter.shape()));
  }
}

DTensor Ids(const DeviceMesh& mesh) {
  return Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {4}, {3, 0, 6, 3}),
                    {Replicate()});
}

TEST(State, NamesParametersBuffersAndCountersOnce) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    Model model;
    EXPECT_THAT([&] { State(model); },
                ::testing::ThrowsMessage<std::exception>(HasSubstr("embed.weight")));
    PlaceRows(model, mesh);
    const StateDict state = State(model);
    std::vector<std::string> names;
    for (const StateEntry& entry : state.entries()) names.push_back(entry.name);
    EXPECT_THAT(names,
                ElementsAre("embed.weight", "head.bias", "mean", "dropout.seed", "dropout.calls"));
    EXPECT_THAT(state.Find("embed.weight")->aliases, ElementsAre("head.weight"));
    EXPECT_TRUE(std::holds_alternative<UnsetTensor>(state.Find("embed.weight")->Get()));
    model.Initialize(3);
    EXPECT_TRUE(std::holds_alternative<DTensor>(state.Find("embed.weight")->Get()));
    EXPECT_EQ(state.Integer("dropout.seed"), 3);
    model(Ids(mesh));
    EXPECT_EQ(state.Integer("dropout.calls"), 1);
  });
}

TEST(State, GoesOnElsewhereWithoutInitialize) {
  const std::string path = ::testing::TempDir() + "/nn_state";
  std::vector<double> expected;
  OnMesh({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    Model model;
    PlaceRows(model, mesh);
    model.Initialize(3);
    model(Ids(mesh));
    DTensor(model.mean.data()).local();
    CopyInPlace(model.mean.data(), Full(mesh, {5}, DType::kF64, -0.25, {Replicate()}));
    EXPECT_EQ(checkpoint::Save(path, State(model)), absl::OkStatus());
    const std::vector<double> y = FullTensor(model(Ids(mesh))).ToVector<double>();
    if (mesh.LocalRank("dp") == 0) expected = y;
  });
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    Model model;
    PlaceRows(model, mesh);
    StateDict state = State(model);
    EXPECT_EQ(checkpoint::Load(path, state), absl::OkStatus());
    const std::vector<double> y = FullTensor(model(Ids(mesh))).ToVector<double>();
    ASSERT_EQ(y.size(), expected.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-14);
    EXPECT_EQ(model.dropout.calls(), 2);
    EXPECT_TRUE(model.head.weight().data().RequiresGrad());
  });
}

}  // namespace
}  // namespace shardmesh::nn
