// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/ema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/optim/testing/parameters.h"

namespace shardmesh::optim {
namespace {

using testing::ErrorOf;
using ::testing::HasSubstr;
using testing::MakeParameter;
using testing::OnMesh;
using testing::SetGrad;
using testing::ValuesOf;

using Parameters = std::vector<nn::Parameter>;

Parameters TwoMatrices(const DeviceMesh& mesh) {
  const std::vector<Placement> placements(mesh.shape().num_axes(), Shard(0));
  return {MakeParameter(mesh, "up.weight", placements, {7, 3}, /*seed=*/1),
          MakeParameter(mesh, "down.weight", placements, {2, 5}, /*seed=*/2)};
}

TEST(Ema, FollowsItsFormulaOnAnyShard) {
  for (const MeshShape& shape : {MeshShape{{"dp", 1}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}}) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      const Parameters parameters = TwoMatrices(mesh);
      Ema ema(parameters);
      Sgd sgd(parameters, {.lr = 0.5});
      std::vector<std::vector<double>> expected;
      for (const nn::Parameter& parameter : parameters) expected.push_back(ValuesOf(parameter));
      for (int step = 0; step < 4; ++step) {
        const double decay = step == 0 ? 0 : 0.75;
        for (const nn::Parameter& parameter : parameters) SetGrad(parameter, 20 + step);
        sgd.Step();
        ema.Update(decay);
        for (size_t i = 0; i < parameters.size(); ++i) {
          const std::vector<double> values = ValuesOf(parameters[i]);
          for (size_t k = 0; k < values.size(); ++k)
            expected[i][k] = decay * expected[i][k] + (1 - decay) * values[k];
          EXPECT_TRUE(
              shardmesh::testing::AreClose(ValuesOf(ema.averages()[i]), expected[i], 1e-15));
          EXPECT_TRUE(ema.averages()[i].layout() == parameters[i].layout());
        }
      }
      EXPECT_EQ(ema.num_updates(), 4);
    });
  }
}

TEST(Ema, SwapsInAScopeAlsoIfItThrows) {
  OnMesh({{"dp", 3}}, [](const DeviceMesh& mesh) {
    const Parameters parameters = TwoMatrices(mesh);
    Ema ema(parameters);
    Sgd sgd(parameters, {.lr = 0.5});
    for (const nn::Parameter& parameter : parameters) SetGrad(parameter, 3);
    sgd.Step();
    ema.Update(0.5);
    const std::vector<double> own = ValuesOf(parameters[0]), averaged = ValuesOf(ema.averages()[0]);
    const DTensor leaf = parameters[0].data();
    const std::shared_ptr<Allocator> memory = mesh.context().allocator();
    const int64_t bytes = memory->total().bytes;
    EXPECT_NE(own, averaged);
    SetGrad(parameters[0], 4);
    const std::vector<double> gradient = ValuesOf(parameters[0].data().grad());
    const int64_t with_gradient = memory->total().bytes;
    EXPECT_GT(with_gradient, bytes - 1);
    for (int i = 0; i < 2; ++i) {
      try {
        const Ema::Scope scope = ema.Swap();
        EXPECT_EQ(memory->total().bytes, with_gradient);
        EXPECT_EQ(ValuesOf(parameters[0]), averaged);
        EXPECT_EQ(ValuesOf(ema.averages()[0]), own);
        EXPECT_EQ(parameters[0].data().impl(), leaf.impl());
        EXPECT_THAT(ErrorOf([&] { ema.Update(0.5); }), HasSubstr("end the Swap first"));
        EXPECT_THAT(ErrorOf([&] { (void)ema.Swap(); }), HasSubstr("end the Swap first"));
        EXPECT_THAT(ErrorOf([&] { ema.State(); }), HasSubstr("end the Swap first"));
        EXPECT_THAT(ErrorOf([&] { ema.Relayout(); }), HasSubstr("end the Swap first"));
        throw std::runtime_error("evaluation failed");
      } catch (const std::runtime_error&) {
      }
      EXPECT_EQ(ValuesOf(parameters[0]), own);
      EXPECT_EQ(ValuesOf(ema.averages()[0]), averaged);
      EXPECT_EQ(ValuesOf(parameters[0].data().grad()), gradient);
    }
  });
}

TEST(Ema, IsSavedByNameAndShares) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Parameters parameters = TwoMatrices(mesh);
    Ema ema(parameters);
    ema.Update(0.5);
    const StateDict state = ema.State();
    ASSERT_EQ(state.size(), 3u);
    EXPECT_EQ(state.Integer("num_updates"), 1);
    const StateValue value = state.Find("average.down.weight")->Get();
    EXPECT_EQ(std::get<DTensor>(value).local().storage(), ema.averages()[1].local().storage());
    // Swapped back and forth it is still that of the averages.
    { const Ema::Scope scope = ema.Swap(); }
    const StateValue again = state.Find("average.down.weight")->Get();
    EXPECT_EQ(std::get<DTensor>(again).local().storage(), ema.averages()[1].local().storage());
    EXPECT_THAT(ErrorOf([&] { state.Find("average.up.weight")->set(value); }),
                HasSubstr("Ema: the average of parameter up.weight"));
    nn::Parameter first = parameters[0];
    first.set_name("down.weight");
    EXPECT_THAT(ErrorOf([&] { ema.State(); }), HasSubstr("Ema: two parameters are called"));
  });
}

TEST(Ema, MovesAlongAndRefusesWhatDoesNotFit) {
  OnMesh({{"dp", 3}}, [](const DeviceMesh& mesh) {
    const Parameters parameters = TwoMatrices(mesh);
    Ema ema({parameters[0], parameters[1], parameters[0]});
    EXPECT_EQ(ema.parameters().size(), 2u);
    ema.Update(0.5);
    const std::vector<double> before = ValuesOf(ema.averages()[0]);
    nn::Parameter moved = parameters[0];
    moved.Place(mesh, Layout::Make(mesh.shape(), {Shard(1)}, moved.shape()));
    EXPECT_THAT(ErrorOf([&] { ema.Update(0.5); }),
                HasSubstr("Ema::Update: parameter up.weight f64[7,3] [S(1)] @ [dp=3] has moved"));
    EXPECT_THAT(ErrorOf([&] { (void)ema.Swap(); }), HasSubstr("Ema::Swap: parameter up.weight"));
    EXPECT_EQ(ema.num_updates(), 1);
    ema.Relayout();
    EXPECT_EQ(ValuesOf(ema.averages()[0]), before);
    ema.Update(0.5);
    for (const double decay : {-0.1, 1.5, std::nan("")})
      EXPECT_THAT(ErrorOf([&] { ema.Update(decay); }), HasSubstr("Ema: decay is "));
    EXPECT_THAT(ErrorOf([&] { Ema({nn::Parameter()}); }), HasSubstr("is none"));
    EXPECT_THAT(ErrorOf([&] { Ema({nn::Parameter({3}, DType::kF32, nn::Init::Constant(0))}); }),
                HasSubstr("has no values yet"));
  });
}

}  // namespace
}  // namespace shardmesh::optim
