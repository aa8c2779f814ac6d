// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/parameter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh::nn {
namespace {

using ::testing::HasSubstr;

struct Case {
  MeshShape mesh;
  std::vector<Placement> placements;
  std::vector<int> split_order = {};
};

Layout LayoutOf(const Case& on, const Dims& shape) {
  if (on.split_order.empty()) return Layout::Make(on.mesh, on.placements, shape);
  return Layout::Make(on.mesh, on.placements, shape, on.split_order);
}

Parameter Materialized(const DeviceMesh& mesh, const Case& on, const Dims& shape, DType dtype,
                       Init init, const std::string& name, uint64_t seed) {
  Parameter parameter(shape, dtype, init);
  parameter.set_name(name);
  parameter.Place(mesh, LayoutOf(on, shape));
  parameter.Materialize(seed);
  return parameter;
}

/// The whole tensor, as rank 0 sees it.
std::vector<double> WholeValues(const Case& on, const Dims& shape, DType dtype, Init init,
                                const std::string& name = "layer.weight", uint64_t seed = 7) {
  std::vector<double> values;
  const absl::Status status =
      RunRanks(static_cast<int>(on.mesh.NumRanks()), [&](Communicator& world) {
        const DeviceMesh mesh = DeviceMesh::Create(world, on.mesh);
        const Parameter parameter = Materialized(mesh, on, shape, dtype, init, name, seed);
        const Tensor whole = FullTensor(parameter.data());
        if (world.rank() == 0) values = whole.ToVector<double>();
      });
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

const Case kOne = {{{"dp", 1}}, {Replicate()}};

TEST(Parameter, HasTheSameInitialBitsOnAnyMesh) {
  const MeshShape square = {{"dp", 2}, {"tp", 2}};
  for (const Dims& shape : {Dims{7, 5}, Dims{3, 11}, Dims{1, 2}}) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (Init init : {Init::Normal(0.1, 0.5), Init::Uniform(-2, 1)}) {
        const std::vector<double> expected = WholeValues(kOne, shape, dtype, init);
        ASSERT_EQ(static_cast<int64_t>(expected.size()), shape.NumElements());
        for (const Case& on :
             {Case{{{"dp", 3}}, {Shard(0)}}, Case{{{"dp", 4}}, {Shard(1)}},
              Case{{{"dp", 4}}, {Replicate()}}, Case{square, {Shard(0), Shard(0)}, {1, 0}},
              Case{square, {Shard(0), Shard(1)}}}) {
          EXPECT_EQ(WholeValues(on, shape, dtype, init), expected)
              << Name(dtype) << LayoutOf(on, shape).ToString();
        }
      }
    }
  }
}

TEST(Parameter, DrawsOtherValuesForAnotherSeedOrName) {
  const Init init = Init::Normal(0, 1);
  const std::vector<double> a = WholeValues(kOne, {50}, DType::kF32, init, "a.weight", 1);
  EXPECT_NE(WholeValues(kOne, {50}, DType::kF32, init, "a.weight", 2), a);
  EXPECT_NE(WholeValues(kOne, {50}, DType::kF32, init, "b.weight", 1), a);
  // No two alike, and of both signs.
  std::vector<double> sorted = a;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  EXPECT_LT(sorted.front(), 0);
  EXPECT_GT(sorted.back(), 0);
}

// The stream of a name is part of the format. Values from the reference implementation of xxHash.
TEST(Parameter, StreamOfANameIsItsXxh64) {
  EXPECT_EQ(RandomStreamOf(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(RandomStreamOf("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_NE(RandomStreamOf("a", 1), RandomStreamOf("a"));
}

TEST(Parameter, CountsItsShardAsParameterMemory) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    const Case on = {{{"dp", 3}}, {Shard(0)}};
    const DeviceMesh mesh = DeviceMesh::Create(world, on.mesh);
    const Parameter parameter =
        Materialized(mesh, on, {7, 5}, DType::kF32, Init::Constant(1), "w", 1);
    const int64_t rows = world.rank() == 2 ? 1 : 3;
    EXPECT_EQ(parameter.data().local().shape(), (Dims{rows, 5}));
    const MemoryStats stats = mesh.context().allocator()->stats(MemoryCategory::kParameters);
    EXPECT_EQ(stats.bytes, rows * 5 * 4);
    EXPECT_EQ(stats.peak_bytes, rows * 5 * 4);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Parameter, MovesItsValuesToANewPlace) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    const Case on = {{{"dp", 3}}, {Replicate()}};
    const DeviceMesh mesh = DeviceMesh::Create(world, on.mesh);
    Parameter parameter = Materialized(mesh, on, {4, 5}, DType::kF32, Init::Normal(0, 1), "w", 1);
    const std::vector<double> before = FullTensor(parameter.data()).ToVector<double>();
    const std::shared_ptr<Allocator> memory = mesh.context().allocator();
    for (const Placement& placement : {Shard(0), Shard(1), Replicate(), Shard(0)}) {
      parameter.Place(mesh, Layout::Make(on.mesh, {placement}, {4, 5}));
      EXPECT_EQ(parameter.data().layout(), parameter.layout());
      EXPECT_TRUE(parameter.data().IsLeaf());
      EXPECT_TRUE(parameter.data().RequiresGrad());
      EXPECT_EQ(FullTensor(parameter.data()).ToVector<double>(), before);
      EXPECT_EQ(memory->stats(MemoryCategory::kParameters).bytes, parameter.data().local().Bytes());
    }
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Parameter, IsOnePerHandle) {
  Parameter a({2}, DType::kF32, Init::Constant(0));
  const Parameter b = a;
  a.set_name("x");
  EXPECT_EQ(a, b);
  EXPECT_EQ(b.name(), "x");
  EXPECT_FALSE(a == Parameter({2}, DType::kF32, Init::Constant(0)));
  EXPECT_FALSE(static_cast<bool>(Parameter()));
}

TEST(Parameter, FrozenTakesNoGradient) {
  const absl::Status status = RunRanks(1, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, kOne.mesh);
    Parameter parameter({2}, DType::kF32, Init::Constant(0));
    parameter.set_requires_grad(false);
    parameter.Place(mesh, LayoutOf(kOne, {2}));
    parameter.Materialize(1);
    EXPECT_FALSE(parameter.data().RequiresGrad());
    parameter.set_requires_grad(true);
    EXPECT_TRUE(parameter.data().RequiresGrad());
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Parameter, NamesItselfInErrors) {
  const absl::Status status = RunRanks(1, [](Communicator& world) {
    const auto expect = [](absl::StatusCode code, const std::string& part,
                           const std::function<void()>& call) {
      const absl::Status status = Catch(call);
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    };
    const auto kInvalid = absl::StatusCode::kInvalidArgument;
    const auto kState = absl::StatusCode::kFailedPrecondition;
    const DeviceMesh mesh = DeviceMesh::Create(world, kOne.mesh);
    expect(kInvalid, "i64", [] { Parameter({2}, DType::kI64, Init::Constant(0)); });
    Parameter parameter({2}, DType::kF32, Init::Normal(0, 1));
    expect(kState, "(unnamed) f32[2] on meta", [&] { parameter.Materialize(1); });
    expect(kInvalid, "[3]", [&] { parameter.Place(mesh, LayoutOf(kOne, {3})); });
    expect(kInvalid, "Partial",
           [&] { parameter.Place(mesh, Layout::Make(kOne.mesh, {Partial()}, {2})); });
    parameter.Place(mesh, LayoutOf(kOne, {2}));
    expect(kState, "no name", [&] { parameter.Materialize(1); });
    parameter.set_name("a.b");
    expect(kState, "a.b f32[2] [R] @ [dp=1]", [&] { parameter.data(); });
    expect(kInvalid, "a.b",
           [&] { parameter.SetData(Zeros(mesh, {2}, DType::kF64, {Replicate()})); });
    expect(kInvalid, "a.b", [&] { parameter.SetData(Zeros(mesh, {2}, DType::kF32, {Shard(0)})); });
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Parameter, KeepsAPlacementThatSomeoneReliesOn) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    const auto layout = [&](Placement placement) {
      return Layout::Make(mesh.shape(), {placement}, {3, 2});
    };
    Parameter parameter({3, 2}, DType::kF32, Init::Normal(0, 1));
    parameter.set_name("a.b");
    parameter.Place(mesh, layout(Replicate()));
    parameter.Place(mesh, layout(Shard(0)));
    parameter.FixPlacement("TheOwner");
    parameter.Place(mesh, layout(Shard(0)));  // Changes nothing.
    const absl::Status refused = Catch([&] { parameter.Place(mesh, layout(Shard(1))); });
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    for (const char* part : {"a.b f32[3,2] [S(0)]", "as [3,2] [S(1)]", "TheOwner relies"}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
    }
    EXPECT_EQ(parameter.layout(), layout(Shard(0)));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Full, RoundTripsOnAnyMesh) {
  const MeshShape square = {{"dp", 2}, {"tp", 2}};
  for (const Case& on : {kOne, Case{{{"dp", 3}}, {Shard(0)}}, Case{{{"dp", 4}}, {Shard(1)}},
                         Case{square, {Shard(0), Shard(0)}, {1, 0}}}) {
    const absl::Status status =
        RunRanks(static_cast<int>(on.mesh.NumRanks()), [&](Communicator& world) {
          const DeviceMesh mesh = DeviceMesh::Create(world, on.mesh);
          std::vector<float> values;
          for (int i = 0; i < 15; ++i) values.push_back(static_cast<float>(i * i) - 40.5f);
          const Tensor full =
              Tensor::FromValues<float>(mesh.context(), {5, 3}, std::span<const float>(values));
          Parameter parameter({5, 3}, DType::kF32, Init::Constant(1));
          parameter.Place(mesh, LayoutOf(on, {5, 3}));
          parameter.SetFull(full);  // Creates the values.
          EXPECT_EQ(parameter.Full().ToVector<float>(), values);
          EXPECT_TRUE(parameter.requires_grad());
          const DTensor leaf = parameter.data();
          const int64_t version = leaf.local().storage()->version();
          std::reverse(values.begin(), values.end());
          parameter.SetFull(
              Tensor::FromValues<float>(mesh.context(), {5, 3}, std::span<const float>(values)));
          EXPECT_EQ(FullTensor(leaf).ToVector<float>(), values);  // In place.
          EXPECT_GT(leaf.local().storage()->version(), version);
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Full, RefusesAnotherShapeOrDtypeNamingBoth) {
  const absl::Status status = RunRanks(1, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, kOne.mesh);
    Parameter parameter({5, 3}, DType::kF32, Init::Constant(1));
    parameter.set_name("w");
    EXPECT_THROW(parameter.SetFull(Tensor::Meta({5, 3}, DType::kF32)), Error);
    parameter.Place(mesh, LayoutOf(kOne, {5, 3}));
    for (const Tensor& full : {Tensor::Empty(mesh.context(), {3, 5}, DType::kF32),
                               Tensor::Empty(mesh.context(), {5, 3}, DType::kF64)}) {
      const absl::Status refused = Catch([&] { parameter.SetFull(full); });
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(refused.message()), HasSubstr("w f32[5,3]"));
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr(std::string(Name(full.dtype())) + full.shape().ToString()));
    }
    EXPECT_FALSE(parameter.IsMaterialized());
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Buffer, OfIntegersTakesItsConstantAndNeverRequiresAGradient) {
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Buffer buffer({3}, DType::kI64, Init::Constant(-4));
    buffer.Place(mesh, Layout::Make(mesh.shape(), {Shard(0)}, {3}));
    buffer.Materialize(1);
    EXPECT_EQ(buffer.Full().ToVector<int64_t>(), (std::vector<int64_t>{-4, -4, -4}));
    EXPECT_FALSE(buffer.data().RequiresGrad());
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace shardmesh::nn
