// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/optim/clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

using ::testing::HasSubstr;
using Vector = std::vector<double>;

Vector RandomVector(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  Vector values(count);
  for (double& value : values) value = normal(random);
  return values;
}

/// A parameter with this gradient.
nn::Parameter WithGrad(const DeviceMesh& mesh, const Layout& layout, const Vector& gradient,
                       DType dtype = DType::kF64) {
  nn::Parameter parameter(layout.global_shape(), dtype, nn::Init::Constant(0));
  parameter.Place(mesh, layout);
  parameter.Materialize(1);
  const Tensor full = Tensor::FromValues<double>(mesh.context(), layout.global_shape(), gradient);
  const DTensor whole = Redistribute(
      Distribute(mesh, full, std::vector<Placement>(mesh.shape().num_axes(), Replicate())), layout);
  Tensor local = Tensor::Empty(mesh.context(), whole.local().shape(), dtype);
  const Vector own = whole.local().ToVector<double>();
  for (size_t i = 0; i < own.size(); ++i) {
    if (dtype == DType::kF64) local.mutable_data<double>()[i] = own[i];
    if (dtype == DType::kBF16)
      local.mutable_data<BFloat16>()[i] = BFloat16(static_cast<float>(own[i]));
  }
  DTensor leaf = parameter.data();
  leaf.SetGrad(DTensor(mesh, layout, local));
  return parameter;
}

void ExpectGrad(const nn::Parameter& parameter, const Vector& gradient, double factor) {
  const Vector values = FullTensor(parameter.data().grad()).ToVector<double>();
  ASSERT_EQ(values.size(), gradient.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], gradient[i] * factor, 1e-14) << parameter.ToString() << " " << i;
  }
}

double NormOf(const std::vector<Vector>& vectors) {
  double squares = 0;
  for (const Vector& vector : vectors) {
    for (double value : vector) squares += value * value;
  }
  return std::sqrt(squares);
}

void OnRanks(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << status;
}

// An epsilon added to each rank's part before the reduction would count twice: sqrt(4^2 + 5^2).
TEST(ClipGradNorm, AddsEpsilonToTheGlobalNormOnce) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {2});
    const nn::Parameter parameter = WithGrad(mesh, layout, {3, 4});
    EXPECT_EQ(ClipGradNorm({parameter}, /*max_norm=*/3, /*eps=*/1.0), 5);
    ExpectGrad(parameter, {3, 4}, 3 / 6.0);
  });
}

TEST(ClipGradNorm, LeavesGradientsBelowTheLimitAlone) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {2});
    const nn::Parameter parameter = WithGrad(mesh, layout, {3, 4});
    const Storage& storage = *parameter.data().grad().local().storage();
    const int64_t version = storage.version();
    EXPECT_EQ(ClipGradNorm({parameter}, /*max_norm=*/6), 5);
    EXPECT_EQ(storage.version(), version);
    ExpectGrad(parameter, {3, 4}, 1);
    EXPECT_EQ(ClipGradNorm({parameter}, std::numeric_limits<double>::infinity()), 5);
    ExpectGrad(parameter, {3, 4}, 1);
    EXPECT_EQ(ClipGradNorm({parameter}, /*max_norm=*/2.5, /*eps=*/0), 5);
    EXPECT_GT(storage.version(), version);
    ExpectGrad(parameter, {3, 4}, 0.5);
  });
}

TEST(ClipGradNorm, CountsEachElementOnceForAnyMixOfLayouts) {
  const MeshShape square = {{"dp", 2}, {"tp", 2}}, line = {{"dp", 3}};
  const struct {
    MeshShape mesh;
    std::vector<Layout> layouts;
    std::string group;  // Of the one all-reduce; none if empty.
  } cases[] = {
      // Matrices on both axes beside norm weights on one of them, whole ones, and an empty shard.
      {square,
       {Layout::Make(square, {Shard(0), Shard(0)}, {7, 3}, {1, 0}),
        Layout::Make(square, {Shard(0), Shard(1)}, {5, 3}),
        Layout::Make(square, {Shard(0), Replicate()}, {5}),
        Layout::Make(square, {Replicate(), Replicate()}, {3, 2}),
        Layout::Make(square, {Shard(0), Replicate()}, {1}),
        Layout::Make(square, {Replicate(), Shard(1)}, {2, 3}),
        Layout::Make(square, {Replicate(), Replicate()}, {})},
       "dp+tp"},
      {square,
       {Layout::Make(square, {Replicate(), Shard(0)}, {7}),
        Layout::Make(square, {Replicate(), Replicate()}, {5})},
       "tp"},
      {square, {Layout::Make(square, {Replicate(), Replicate()}, {5})}, ""},
      {line, {Layout::Make(line, {Shard(0)}, {7}), Layout::Make(line, {Shard(0)}, {0, 3})}, "dp"},
      {MeshShape{{"dp", 3}, {"tp", 1}},
       {Layout::Make({{"dp", 3}, {"tp", 1}}, {Shard(0), Shard(0)}, {7})},
       "dp"},
  };
  for (const auto& [shape, layouts, group] : cases) {
    OnRanks(shape, [&, layouts = &layouts, group = &group](const DeviceMesh& mesh) {
      std::vector<nn::Parameter> parameters;
      std::vector<Vector> gradients;
      for (const Layout& layout : *layouts) {
        gradients.push_back(RandomVector(layout.global_shape().NumElements(), gradients.size()));
        parameters.push_back(WithGrad(mesh, layout, gradients.back()));
      }
      const double expected = NormOf(gradients);
      mesh.WorldGroup();
      CommTrace trace(mesh);
      const double norm = ClipGradNorm(parameters, expected / 3, /*eps=*/0);
      EXPECT_NEAR(norm, expected, 1e-14 * expected);
      EXPECT_EQ(trace.Count(), group->empty() ? 0 : 1) << trace.ToString();
      if (!group->empty()) {
        EXPECT_EQ(trace.Count(*group, "all_reduce", "clip_grad_norm"), 1) << trace.ToString();
      }
      for (size_t i = 0; i < parameters.size(); ++i) {
        ExpectGrad(parameters[i], gradients[i], 1 / 3.0);
      }
      // The same bits on every rank.
      Tensor range = Tensor::FromValues<double>(mesh.context(), {2}, {norm, -norm});
      mesh.WorldGroup().AllReduce({{range, range}}, ReduceOp::kMax).Wait();
      EXPECT_EQ(range.ToVector<double>(), (Vector{norm, -norm}));
    });
  }
}

TEST(ClipGradNorm, SumsOverSeveralMeshes) {
  OnRanks({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    const DeviceMesh line = mesh["dp"];
    const Vector a = RandomVector(15, 1), b = RandomVector(5, 2);
    const std::vector<nn::Parameter> parameters = {
        WithGrad(mesh, Layout::Make(mesh.shape(), {Shard(0), Shard(1)}, {5, 3}), a),
        WithGrad(line, Layout::Make(line.shape(), {Shard(0)}, {5}), b)};
    const double expected = NormOf({a, b});
    CommTrace trace(mesh);
    EXPECT_NEAR(ClipGradNorm(parameters, expected / 2, 0), expected, 1e-14 * expected);
    EXPECT_EQ(trace.Count("dp+tp"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count("dp"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 2);
    ExpectGrad(parameters[0], a, 0.5);
    ExpectGrad(parameters[1], b, 0.5);
  });
}

TEST(ClipGradNorm, SumsSmallDtypesInF64) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    // 1 + 4096 * 2^-12: bf16, and f32 from 2^24 terms on, would lose the small ones.
    Vector gradient(4097, 0.015625);
    gradient[0] = 1;
    const nn::Parameter parameter =
        WithGrad(mesh, Layout::Replicated(mesh.shape(), {4097}), gradient, DType::kBF16);
    EXPECT_DOUBLE_EQ(ClipGradNorm({parameter}, 100), std::sqrt(2.0));
  });
}

TEST(ClipGradNorm, PassesOverWhatHasNoGradientAndCountsATiedOneOnce) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Replicated(mesh.shape(), {2});
    nn::Parameter without({2}, DType::kF64, nn::Init::Constant(1));
    without.Place(mesh, layout);
    without.Materialize(1);
    EXPECT_EQ(ClipGradNorm({without}, 1), 0);
    EXPECT_EQ(ClipGradNorm({}, 1), 0);
    const nn::Parameter with = WithGrad(mesh, layout, {3, -4});
    EXPECT_EQ(ClipGradNorm({with, without, with}, 2.5, 0), 5);
    ExpectGrad(with, {3, -4}, 0.5);
  });
}

TEST(ClipGradNorm, ReturnsANormThatIsNotFiniteAsItIs) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {2});
    const double infinity = std::numeric_limits<double>::infinity();
    const nn::Parameter infinite = WithGrad(mesh, layout, {3, -infinity});
    EXPECT_EQ(ClipGradNorm({infinite}, 1), infinity);
    const Vector after = FullTensor(infinite.data().grad()).ToVector<double>();
    EXPECT_EQ(after[0], 0);
    EXPECT_TRUE(std::isnan(after[1]));
    const nn::Parameter nan = WithGrad(mesh, layout, {std::nan(""), 4});
    EXPECT_TRUE(std::isnan(ClipGradNorm({nan}, 1)));
    EXPECT_TRUE(std::isnan(FullTensor(nan.data().grad()).ToVector<double>()[1]));
  });
}

// The squares overflowed or vanished, which made gradients 0 and the norm 0.
TEST(ClipGradNorm, TakesGradientsOfAnySize) {
  const struct {
    Vector gradient;
    double norm;
  } cases[] = {
      {{1e200, -1e200, 0}, std::sqrt(2.0) * 1e200},
      {{3e-200, -4e-200, 0}, 5e-200},
      {{3e200, 4e-200, 4e200}, 5e200},
      {{-3e-310, 0, 4e-310}, 5e-310},
      {{0, 0, 0}, 0},
  };
  for (const auto& [gradient, norm] : cases) {
    for (const int ranks : {1, 2, 3}) {
      OnRanks({{"dp", ranks}}, [&, gradient = &gradient, norm = norm](const DeviceMesh& mesh) {
        const Layout sharded = Layout::Make(mesh.shape(), {Shard(0)}, {3});
        const nn::Parameter a = WithGrad(mesh, sharded, *gradient);
        EXPECT_NEAR(ClipGradNorm({a}, 1e300), norm, 1e-13 * norm);
        ExpectGrad(a, *gradient, 1);
        if (norm == 0) return;
        ClipGradNorm({a}, norm / 4, /*eps=*/0);
        const Vector after = FullTensor(a.data().grad()).ToVector<double>();
        for (int i = 0; i < 3; ++i) {
          EXPECT_NEAR(after[i], (*gradient)[i] / 4, 1e-13 * norm) << i << " of " << ranks;
        }
        const nn::Parameter whole =
            WithGrad(mesh, Layout::Replicated(mesh.shape(), {3}), *gradient);
        EXPECT_NEAR(ClipGradNorm({whole, a}, 1e300), norm * std::sqrt(1 + 1 / 16.0), 1e-13 * norm);
      });
    }
  }
}

// A factor that f32 does not have.
TEST(ClipGradNorm, ScalesLargeGradientsOfSmallDTypes) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Replicated(mesh.shape(), {2});
    const nn::Parameter a = WithGrad(mesh, layout, {3 * 0x1p126, -0x1p127}, DType::kBF16);
    ClipGradNorm({a}, 1e-4);
    const Vector after = FullTensor(a.data().grad()).ToVector<double>();
    EXPECT_NEAR(after[0], 1e-4 * 3 / std::sqrt(13), 1e-6);
    EXPECT_NEAR(after[1], -1e-4 * 2 / std::sqrt(13), 1e-6);
  });
}

TEST(ClipGradNorm, ThrowsOrSkipsTheStepOnEveryRankIfTheNormIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
      const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, {3});
      // Of which one rank alone has the bad element.
      nn::Parameter first = WithGrad(mesh, layout, {1, -2, 3});
      nn::Parameter second = WithGrad(mesh, layout, {4, bad, 5});
      second.set_name("layer.weight");
      const absl::Status status = Catch([&] {
        ClipGradNorm({first, second}, 1, 1e-6, NonFiniteNorm::kThrow);
      });
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(std::string("the norm of the gradients is ") +
                            (std::isnan(bad) ? "nan" : "inf")));
      EXPECT_EQ(std::string(status.message()).find("layer.weight") != std::string::npos,
                mesh.coord()[0] == 1);
      EXPECT_EQ(FullTensor(first.data().grad()).ToVector<double>(), Vector({1, -2, 3}));
      EXPECT_FALSE(std::isfinite(ClipGradNorm({first, second}, 1, 1e-6, NonFiniteNorm::kSkipStep)));
      EXPECT_FALSE(static_cast<bool>(first.data().grad()));
      EXPECT_FALSE(static_cast<bool>(second.data().grad()));
      // A finite norm is clipped as ever.
      const nn::Parameter good = WithGrad(mesh, layout, {2, -3, 6});
      EXPECT_NEAR(ClipGradNorm({good}, 3.5, 0, NonFiniteNorm::kThrow), 7, 1e-14);
      ExpectGrad(good, {2, -3, 6}, 0.5);
    });
  }
}

// y = a + b gives both the same gradient tensor; scaled in place for each, both would be scaled
// twice.
TEST(ClipGradNorm, ScalesGradientsThatShareMemoryOnce) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const Layout layout = Layout::Replicated(mesh.shape(), {2, 2});
    std::vector<nn::Parameter> parameters;
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(WithGrad(mesh, layout, {1, 2, 3, 4}));
    }
    const Tensor shared = Tensor::FromValues<double>(mesh.context(), {2, 2}, {1, -2, 3, -4});
    const Tensor row = Tensor::FromValues<double>(mesh.context(), {1, 2}, {5, -6});
    const std::vector<Tensor> gradients = {shared, shared, shared.Transpose(0, 1),
                                           row.Expand({2, 2})};
    std::vector<Vector> values;
    for (int i = 0; i < 4; ++i) {
      DTensor leaf = parameters[i].data();
      leaf.SetGrad(DTensor(mesh, layout, gradients[i]));
      values.push_back(gradients[i].ToVector<double>());
    }
    const double expected = NormOf(values);
    EXPECT_NEAR(ClipGradNorm(parameters, expected / 2, 0), expected, 1e-14);
    for (int i = 0; i < 4; ++i) ExpectGrad(parameters[i], values[i], 0.5);
  });
}

// A gradient that is not contiguous was replaced where the box had several rows, and written in
// place where it had one or none: a handle of it then held different things on different ranks.
TEST(ClipGradNorm, WritesInPlaceOnEveryRankWhateverItsBox) {
  for (const Dims& shape : {Dims{7, 3}, Dims{2, 5}}) {  // Boxes of 3, 3, 1 and of 1, 1, 0 rows.
    OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
      const Layout layout = Layout::Make(mesh.shape(), {Shard(0)}, shape);
      const Vector values = RandomVector(shape.NumElements(), 3);
      const nn::Parameter parameter = WithGrad(mesh, layout, Vector(values.size(), 1.0));
      DTensor leaf = parameter.data();
      const auto transposed = [&] {
        const Tensor full = Tensor::FromValues<double>(mesh.context(), shape, values);
        const Tensor columns = ops::Clone(mesh.context(), full.Transpose(0, 1));
        return Transpose(Distribute(mesh, columns, {Shard(1)}), 0, 1);
      };
      leaf.SetGrad(transposed());
      const DTensor handle = leaf.grad();
      EXPECT_FALSE(handle.IsRowMajor());
      const int64_t version = handle.local().storage()->version();
      const double norm = NormOf({values});
      EXPECT_NEAR(ClipGradNorm({parameter}, norm / 2, 0), norm, 1e-13);
      EXPECT_EQ(leaf.grad().impl(), handle.impl());
      EXPECT_EQ(handle.local().storage()->version(), version + 1);
      ExpectGrad(parameter, values, 0.5);
    });
  }
}

TEST(ClipGradNorm, RefusesAParameterThatIsNone) {
  const absl::Status status = Catch([&] { ClipGradNorm({nn::Parameter()}, 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ClipGradNorm: one of the parameters is none"));
}

TEST(ClipGradNorm, RefusesLimitsThatAreNone) {
  for (double bad : {-1.0, std::nan("")}) {
    EXPECT_THAT(std::string(Catch([&] { ClipGradNorm({}, bad); }).message()),
                HasSubstr("max_norm is "));
    EXPECT_THROW(ClipGradNorm({}, 1, bad), Error);
  }
}

}  // namespace
}  // namespace shardmesh::optim
