// SPDX-License-Identifier: Apache-2.0
//
// Dtypes by parameter: islands in f32 within a unit in bf16, against the same casts written out on
// one rank without FullyShard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/nn/rms_norm.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHidden = 13;

// down(norm(up(x))), of f32 parameters.
class Normed : public nn::Module {
 public:
  Normed() {
    RegisterChild("up", up);
    RegisterChild("norm", norm);
    RegisterChild("down", down);
  }
  nn::Linear up{kFeatures, kHidden, {.weight_init = nn::Init::Normal(0, 0.4)}};
  nn::RmsNorm norm{kHidden};
  nn::Linear down{kHidden, kOutputs, {.weight_init = nn::Init::Normal(0, 0.4)}};
  bool casts_around_norm = false;

 protected:
  nn::Outputs Forward(const nn::Inputs& x) override {
    const DTensor hidden = up(x[0]);
    EXPECT_EQ(hidden.dtype(), DType::kBF16);
    if (!casts_around_norm) return down(norm(hidden));
    return down(Cast(norm(Cast(hidden, DType::kF32)), hidden.dtype()));
  }
};

nn::Parameter NormWeight(const Normed& model) { return model.norm.own_parameters()[0].parameter; }

// What an island is meant to compute, of parameters in f32.
DTensor WithoutFullyShard(const Normed& model, const DTensor& x) {
  const auto small = [](const DTensor& value) { return Cast(value, DType::kBF16); };
  const DTensor hidden = Linear(small(x), small(model.up.weight().data()));
  const DTensor normed = RmsNorm(Cast(hidden, DType::kF32), NormWeight(model).data(), 1e-6);
  return Cast(Linear(small(normed), small(model.down.weight().data())), DType::kF32);
}

// The output, and the gradients of the parameters.
using Values = std::vector<std::vector<float>>;

Values Run(const LabMesh& on, const std::function<void(Normed&, const DeviceMesh&)>& wrap,
           const std::function<DTensor(Normed&, const DTensor&)>& forward) {
  Values values;
  const absl::Status status =
      RunRanks(static_cast<int>(on.shape.NumRanks()), [&](Communicator& world) {
        Lab lab;
        lab.mesh = DeviceMesh::Create(world, on.shape);
        SetReleasesOnOneRank(lab.mesh, on.releases_on_one_rank);
        Normed model;
        wrap(model, lab.mesh);
        model.PlaceReplicated(lab.mesh);
        model.Initialize(1);
        const DTensor y = forward(model, Cast(lab.Batch(0), DType::kF32));
        EXPECT_EQ(y.dtype(), DType::kF32);
        Backward(Mean(Square(y)));
        Values mine = {FullTensor(y).ToVector<float>()};
        for (const nn::Parameter& parameter : model.Parameters()) {
          EXPECT_EQ(parameter.data().grad().dtype(), DType::kF32);
          mine.push_back(FullTensor(parameter.data().grad()).ToVector<float>());
        }
        if (world.rank() == 0) values = std::move(mine);
      });
  EXPECT_TRUE(status.ok()) << on.shape.ToString() << ": " << status;
  return values;
}

void ExpectIsland(const std::function<void(Normed&, const DeviceMesh&)>& wrap) {
  const Values expected = Run(
      {{{"dp", 1}}}, [](Normed&, const DeviceMesh&) {}, WithoutFullyShard);
  for (const LabMesh& on : LabMeshes()) {
    const Values actual = Run(on, wrap, [](Normed& model, const DTensor& x) { return model(x); });
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i].size(), expected[i].size());
      float scale = 0;
      for (float value : expected[i]) scale = std::max(scale, std::abs(value));
      // A tenth of what the norm in bf16 would change.
      for (size_t j = 0; j < actual[i].size(); ++j) {
        EXPECT_NEAR(actual[i][j], expected[i][j], scale * (i == 0 ? 1e-6 : 0x1p-7))
            << on.shape.ToString() << " " << i << "[" << j << "]";
      }
    }
  }
}

std::optional<DType> NormsInF32(const nn::Parameter& parameter) {
  if (parameter.name().find("norm") == std::string::npos) return std::nullopt;
  return DType::kF32;
}

TEST(Precision, AnIslandInOneUnitCastsItsInput) {
  ExpectIsland([](Normed& model, const DeviceMesh& mesh) {
    FullyShardOptions options;
    options.mixed_precision = {
        .param_dtype = DType::kBF16, .param_dtype_of = NormsInF32, .output_dtype = DType::kF32};
    FullyShard(model, mesh, options);
    model.casts_around_norm = true;
  });
}

TEST(Precision, AnIslandThatIsAUnitIsCastByIt) {
  ExpectIsland([](Normed& model, const DeviceMesh& mesh) {
    FullyShardOptions options;
    options.mixed_precision = {.param_dtype = DType::kF32, .output_dtype = DType::kBF16};
    FullyShard(model.norm, mesh, options);
    options.mixed_precision = {.param_dtype = DType::kBF16, .output_dtype = DType::kF32};
    FullyShard(model, mesh, options);
  });
}

TEST(Precision, OfTwoKindsIsOneGather) {
  for (const int p : {2, 3, 4}) {
    OnLabMesh({{{"dp", p}}}, {}, [p](Lab& lab) {
      Normed model;
      FullyShardOptions options;
      options.mixed_precision = {.param_dtype = DType::kBF16, .param_dtype_of = NormsInF32};
      FullyShard(model, lab.mesh, options);
      model.Initialize(1);
      model.casts_around_norm = true;
      CommTrace trace(lab.mesh);
      const DTensor y = model(Cast(lab.Batch(0), DType::kF32));
      const int64_t norm = NormWeight(model).data().local().Bytes();
      const int64_t products =
          model.up.weight().data().local().Bytes() + model.down.weight().data().local().Bytes();
      EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 1);
      EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"), (p - 1) * (norm + products / 2));
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters),
                kHidden * 4 + kHidden * (kFeatures + kOutputs) * 2);
      Backward(Mean(Square(Cast(y, DType::kF32))));
      EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 1);
    });
  }
}

TEST(Precision, OfAnIslandThatDoesNotCastIsRefusedByTheOp) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Normed model;
    FullyShardOptions options;
    options.mixed_precision = {.param_dtype = DType::kBF16, .param_dtype_of = NormsInF32};
    FullyShard(model, lab.mesh, options);
    model.Initialize(1);
    EXPECT_THROW(model(lab.Batch(0)), Error);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
  });
}

TEST(Precision, ThatFitsNoParameterIsRefusedByName) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Normed model;
    const auto message = [&](const MixedPrecision& precision) {
      FullyShardOptions options;
      options.mixed_precision = precision;
      const absl::Status status = Catch([&] { FullyShard(model, lab.mesh, options); });
      EXPECT_FALSE(model.up.weight().IsPlaced());
      return std::string(status.message());
    };
    EXPECT_THAT(message({.param_dtype_of = [](const nn::Parameter&) { return DType::kI32; }}),
                HasSubstr("param_dtype_of gives i32 for parameter up.weight f32[13,7] on meta, "
                          "expected a floating-point dtype"));
    EXPECT_THAT(message({.param_dtype = DType::kBF16,
                         .param_dtype_of = NormsInF32,
                         .reduce_dtype = DType::kBF16}),
                HasSubstr("reduce_dtype bf16 is narrower than param_dtype f32 of parameter "
                          "norm.weight"));
  });
}

// Without a reduce_dtype gradients are summed and reduced in the parameters' own f64.
TEST(Precision, ReducesInTheDTypeOfTheParametersByDefault) {
  LabOptions options;
  options.fsdp.mixed_precision.param_dtype = DType::kF32;
  OnEachMesh(options, [&](Lab& lab) {
    Backward(Sum(Square((*lab.tower)(lab.Batch(0)))));
    for (const nn::Parameter& parameter : lab.tower->Parameters()) {
      ASSERT_TRUE(parameter.data().grad()) << parameter.name();
      EXPECT_EQ(parameter.data().grad().dtype(), DType::kF64);
    }
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
