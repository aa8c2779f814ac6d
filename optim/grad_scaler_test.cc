// SPDX-License-Identifier: Apache-2.0
//
// GradScaler against sequences computed by hand, and against training that needs no scale. How it
// works with modules and FullyShard: tests/training/grad_scaler_test.cc.
#include "shardmesh/optim/grad_scaler.h"
#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/sgd.h"

namespace shardmesh::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Vector = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void OnRanks(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << shape << ": " << status;
}

const std::vector<MeshShape>& Meshes() {
  static const std::vector<MeshShape> meshes = {
      {{"dp", 1}}, {{"dp", 2}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}};
  return meshes;
}

/// Dim 0 split along the first axis, dim 1 (if there is one) along the second.
Layout SplitLayout(const MeshShape& shape, const Dims& extents) {
  std::vector<Placement> placements(shape.num_axes(), Replicate());
  for (int axis = 0; axis < std::min(shape.num_axes(), extents.size()); ++axis)
    placements[axis] = Shard(axis);
  return Layout::Make(shape, placements, extents);
}

Vector RandomVector(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  Vector values(count);
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

/// `values` in `layout`, also if ranks hold some that are not finite.
DTensor Spread(const DeviceMesh& mesh, const Layout& layout, DType dtype, const Vector& values) {
  const Box box = layout.LocalBox(mesh.coord());
  Tensor full = Tensor::FromValues<double>(mesh.context(), layout.global_shape(), values);
  for (int d = 0; d < full.num_dims(); ++d) {
    const int64_t length = box.Extents()[d];
    full = full.Narrow(d, length == 0 ? 0 : box.begin[d], length);
  }
  const Vector own = full.ToVector<double>();
  Tensor local = Tensor::Empty(mesh.context(), box.Extents(), dtype);
  VisitFloating(dtype, "Spread", [&]<typename T>() {
    T* out = local.mutable_data<T>();
    for (size_t i = 0; i < own.size(); ++i) out[i] = ConvertTo<T>(own[i]);
  });
  return DTensor(mesh, layout, local);
}

nn::Parameter MakeParameter(const DeviceMesh& mesh, const Layout& layout, const Vector& values,
                            DType dtype = DType::kF32, const char* name = "layer.weight") {
  nn::Parameter parameter(layout.global_shape(), dtype, nn::Init::Constant(0));
  parameter.set_name(name);
  parameter.Place(mesh, layout);
  parameter.SetData(Spread(mesh, layout, dtype, values));
  return parameter;
}

nn::Parameter MakeParameter(const DeviceMesh& mesh, const Dims& shape,
                            const char* name = "layer.weight") {
  return MakeParameter(mesh, SplitLayout(mesh.shape(), shape), RandomVector(shape.NumElements(), 1),
                       DType::kF32, name);
}

Vector ValuesOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

/// A loss whose gradient is `gradient`: the sum of parameter times gradient.
DTensor LossOf(const nn::Parameter& parameter, const Vector& gradient) {
  const DTensor& data = parameter.data();
  return Sum(Mul(data, Spread(data.mesh(), data.layout(), data.dtype(), gradient)));
}

/// The gradient of a scaled loss, as Backward would leave it.
void SetScaledGrad(const GradScaler& scaler, const nn::Parameter& parameter, Vector gradient) {
  for (double& value : gradient) value *= scaler.scale();
  DTensor leaf = parameter.data();
  leaf.SetGrad(Spread(leaf.mesh(), leaf.layout(), leaf.dtype(), gradient));
}

/// A scaler that has scaled a loss.
GradScaler UsedScaler(const DeviceMesh& mesh, const GradScalerOptions& options = {}) {
  GradScaler scaler(options);
  scaler.Scale(
      Full(mesh, {}, DType::kF32, 1, std::vector<Placement>(mesh.shape().num_axes(), Replicate())));
  return scaler;
}

std::string MessageOf(absl::StatusCode code, const std::function<void()>& call) {
  const absl::Status status = Catch(call);
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

std::string PreconditionOf(const std::function<void()>& call) {
  return MessageOf(absl::StatusCode::kFailedPrecondition, call);
}

/// The bytes of this rank's box.
std::string BytesOf(const Tensor& x) {
  return x ? std::string(static_cast<const char*>(x.raw_data()), x.Bytes()) : "none";
}

std::string BytesOf(const DTensor& x) { return x ? BytesOf(x.local()) : ""; }

// w -= 0.5 g where the step is taken; scale 8, growth 4 after 2 good steps, backoff 0.25.
TEST(GradScaler, FollowsASequenceComputedByHand) {
  const struct {
    Vector gradient;  // Of the loss without a scale.
    Vector w;         // After the step.
    double scale;     // After Update.
    int64_t tracker;
  } steps[] = {
      {{1, -2, 4}, {0.5, 3, -3}, 8, 1},
      {{-1, 2, 0}, {1, 2, -3}, 32, 0},        // Grows.
      {{1, kInfinity, 1}, {1, 2, -3}, 8, 0},  // Skipped.
      {{2, 4, -2}, {0, 0, -2}, 8, 1},
      {{std::nan(""), 0, 1}, {0, 0, -2}, 2, 0},  // Begins to count anew.
      {{0, 0, -kInfinity}, {0, 0, -2}, 0.5, 0},
      {{8, -2, 6}, {-4, 1, -5}, 0.5, 1},
      {{0, 0, 0}, {-4, 1, -5}, 2, 0},
  };
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [&](const DeviceMesh& mesh) {
      const nn::Parameter w = MakeParameter(mesh, SplitLayout(mesh.shape(), {3}), {1, 2, -1});
      Sgd optimizer({w}, {.lr = 0.5});
      GradScaler scaler(
          {.initial_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
      for (const auto& step : steps) {
        Backward(scaler.Scale(LossOf(w, step.gradient)));
        const bool is_finite =
            std::isfinite(step.gradient[0] + step.gradient[1] + step.gradient[2]);
        EXPECT_EQ(scaler.Step(optimizer), is_finite);
        EXPECT_FALSE(static_cast<bool>(w.data().grad())) << "not cleared";
        EXPECT_EQ(ValuesOf(w.data()), step.w);
        scaler.Update();
        EXPECT_EQ(scaler.state(), (GradScalerState{step.scale, step.tracker}));
      }
    });
  }
}

TEST(GradScaler, ScalesALossAndItsGradientWithoutCommunication) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      const nn::Parameter w = MakeParameter(mesh, {5, 3});
      const Vector gradient = RandomVector(15, 2);
      GradScaler scaler({.initial_scale = 12});
      const DTensor loss = LossOf(w, gradient);
      CommTrace trace(mesh);
      const DTensor scaled = scaler.Scale(loss);
      EXPECT_EQ(trace.Count(), 0) << trace.ToString();
      EXPECT_EQ(scaled.layout(), loss.layout());
      EXPECT_FLOAT_EQ(Item(scaled), 12 * Item(loss));
      Backward(scaled);
      const Vector scaled_gradient = ValuesOf(w.data().grad());
      for (int i = 0; i < 15; ++i)
        EXPECT_EQ(scaled_gradient[i], static_cast<float>(12 * gradient[i]));
    });
  }
}

// 65536 is no f16.
TEST(GradScaler, ScalesLossesOfSmallDTypesInF32) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      GradScaler scaler;
      const DTensor scaled = scaler.Scale(Full(mesh, {}, dtype, 0.75, {Replicate()}));
      EXPECT_EQ(scaled.dtype(), DType::kF32);
      EXPECT_EQ(Item(scaled), 49152);
      const DTensor partial =
          Distribute(mesh, Tensor::FromValues<double>(mesh.context(), {}, {3.0}), {Partial()});
      EXPECT_EQ(Item(scaler.Scale(Cast(partial, dtype))), 3 * 65536);
    }
    // The gradient of the loss itself, though, is of its dtype.
    const nn::Parameter w = MakeParameter(mesh, {3});
    for (const double scale : {65504.0, 65536.0}) {
      GradScaler scaler({.initial_scale = scale});
      Backward(scaler.Scale(Sum(Cast(w.data(), DType::kF16))));
      EXPECT_EQ(ValuesOf(w.data().grad()), Vector(3, scale == 65536 ? kInfinity : scale));
      DTensor(w.data()).ZeroGrad();
    }
    const DTensor f64 = Full(mesh, {}, DType::kF64, 0.1, {Replicate()});
    EXPECT_EQ(Item(GradScaler().Scale(f64)), 0.1 * 65536);
  });
}

TEST(GradScaler, UnscalesEachGradientOnceInPlace) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      const struct {
        Layout layout;
        DType dtype;
      } cases[] = {
          {SplitLayout(mesh.shape(), {5, 3}), DType::kF32},
          {SplitLayout(mesh.shape(), {1}), DType::kF64},  // Empty boxes.
          {SplitLayout(mesh.shape(), {0, 3}), DType::kF32},
          {Layout::Replicated(mesh.shape(), {7}), DType::kF32},
          {Layout::Replicated(mesh.shape(), {}), DType::kF64},
          {SplitLayout(mesh.shape(), {2, 1}), DType::kBF16},
      };
      GradScaler scaler = UsedScaler(mesh);
      std::vector<nn::Parameter> parameters;
      std::vector<Vector> gradients;
      for (const auto& c : cases) {
        const int64_t count = c.layout.global_shape().NumElements();
        Vector gradient = RandomVector(count, parameters.size());
        if (c.dtype == DType::kBF16) gradient.assign(count, 0.375);
        parameters.push_back(MakeParameter(mesh, c.layout, Vector(count, 1), c.dtype));
        SetScaledGrad(scaler, parameters.back(), gradient);
        gradients.push_back(gradient);
      }
      nn::Parameter without = MakeParameter(mesh, {5, 2});
      parameters.push_back(without);
      parameters.push_back(parameters.front());  // Tied.
      const DTensor handle = parameters[0].data().grad();
      const int64_t version = handle.local().storage()->version();
      EXPECT_TRUE(scaler.Unscale(parameters));
      EXPECT_EQ(parameters[0].data().grad().impl(), handle.impl());
      EXPECT_EQ(handle.local().storage()->version(), version + 1);
      EXPECT_FALSE(static_cast<bool>(without.data().grad()));
      for (size_t i = 0; i < gradients.size(); ++i)
        EXPECT_EQ(ValuesOf(parameters[i].data().grad()), gradients[i]) << i;
    });
  }
}

TEST(GradScaler, TakesOneSmallCollectivePerMeshAndStep) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [&](const DeviceMesh& mesh) {
      const int64_t expected = mesh.shape().NumRanks() > 1 ? 1 : 0;
      // Sharded along one axis, replicated, and without any gradient.
      std::vector<nn::Parameter> parameters = {
          MakeParameter(mesh, {5}),
          MakeParameter(mesh, Layout::Replicated(mesh.shape(), {3}), {1, 2, 3})};
      Sgd optimizer(parameters);
      GradScaler scaler = UsedScaler(mesh);
      mesh.WorldGroup();
      for (int step = 0; step < 4; ++step) {
        if (step > 0) SetScaledGrad(scaler, parameters[1], {1, -2, step == 2 ? kInfinity : 3});
        if (step > 1) SetScaledGrad(scaler, parameters[0], RandomVector(5, step));
        CommTrace trace(mesh);
        if (step == 3) scaler.Unscale(parameters);
        scaler.Step(optimizer);
        scaler.Update();
        EXPECT_EQ(trace.Count(), expected) << trace.ToString();
        EXPECT_EQ(trace.Count("", "all_reduce", "grad_scaler"), expected) << trace.ToString();
        EXPECT_LE(trace.Bytes(), 3 * 8 * 2) << trace.ToString();
      }
    });
  }
}

// A step that is skipped leaves each byte as it was, whatever rank holds the element, alone or not.
template <typename Optimizer>
void ExpectSkipsBitForBit(const std::function<std::string(const Optimizer&)>& state_of,
                          const std::function<Optimizer(std::vector<nn::Parameter>)>& make) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [&](const DeviceMesh& mesh) {
      const Dims extents = {5, 3};
      const std::vector<nn::Parameter> parameters = {MakeParameter(mesh, {5, 2}, "first"),
                                                     MakeParameter(mesh, extents, "second"),
                                                     MakeParameter(mesh, {1}, "third")};
      Optimizer optimizer = make(parameters);
      GradScaler scaler = UsedScaler(mesh);
      const auto bytes = [&] {
        std::string all = state_of(optimizer);
        for (const nn::Parameter& parameter : parameters) all += BytesOf(parameter.data().local());
        return all;
      };
      const auto set_grads = [&](const Vector& second) {
        SetScaledGrad(scaler, parameters[0], RandomVector(10, 3));
        SetScaledGrad(scaler, parameters[1], second);
        SetScaledGrad(scaler, parameters[2], {0.5});
      };
      set_grads(RandomVector(15, 4));
      const std::string at_first = bytes();
      EXPECT_TRUE(scaler.Step(optimizer));
      scaler.Update();
      const std::string before = bytes();
      if (parameters[1].data().local().NumElements() > 0) {
        EXPECT_NE(before, at_first);
      }
      for (int bad = 0; bad < 15; ++bad) {
        for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
          Vector gradient = RandomVector(15, 5);
          gradient[bad] = value;
          scaler.set_state({.scale = 1024, .growth_tracker = 7});
          set_grads(gradient);
          if (bad % 2 == 1) {
            EXPECT_FALSE(scaler.Unscale(parameters));
            ClipGradNorm(parameters, 1.0, 1e-6,
                         bad % 4 == 1 ? NonFiniteNorm::kContinue : NonFiniteNorm::kSkipStep);
          }
          EXPECT_FALSE(scaler.Step(optimizer)) << bad << " on " << mesh.shape();
          scaler.Update();
          EXPECT_EQ(scaler.state(), (GradScalerState{512, 0}));
          EXPECT_TRUE(bytes() == before) << bad << " on " << mesh.shape();
          for (const nn::Parameter& parameter : parameters)
            EXPECT_FALSE(static_cast<bool>(parameter.data().grad()));
        }
      }
      set_grads(RandomVector(15, 6));
      EXPECT_TRUE(scaler.Step(optimizer));
    });
  }
}

TEST(GradScaler, SkipsAStepOfAdamWOnAllRanksIfOneHasAnInf) {
  ExpectSkipsBitForBit<AdamW>(
      [](const AdamW& optimizer) {
        std::string all;
        for (const ParameterState& state : optimizer.states())
          all += absl::StrCat(state.step, BytesOf(state.Find("exp_avg")),
                              BytesOf(state.Find("exp_avg_sq")));
        return all;
      },
      [](std::vector<nn::Parameter> parameters) { return AdamW(std::move(parameters)); });
}

TEST(GradScaler, SkipsAStepOfSgdOnAllRanksIfOneHasAnInf) {
  ExpectSkipsBitForBit<Sgd>(
      [](const Sgd& optimizer) {
        std::string all;
        for (const ParameterState& state : optimizer.states())
          all += BytesOf(state.Find("momentum_buffer"));
        return all;
      },
      [](std::vector<nn::Parameter> parameters) {
        return Sgd(std::move(parameters), {.lr = 0.1, .momentum = 0.9});
      });
}

// Large gradients that are finite must not be mistaken for inf: f64 squares overflow.
TEST(GradScaler, TellsLargeGradientsFromInfiniteOnes) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const struct {
      DType dtype;
      double scale, value;  // Of the scaled gradient.
      bool is_finite;
    } cases[] = {
        {DType::kF64, 2, 1e300, true},
        {DType::kF64, 2, -1e300, true},
        {DType::kF32, 2, -std::numeric_limits<float>::max(), true},
        {DType::kF32, 0x1p127, 0x1p-20, true},  // A factor that is no normal f32.
        // Divided by a scale below 1 they overflow.
        {DType::kF32, 0.25, 2e38, false},
        {DType::kF32, 0.25, -2e38, false},
        {DType::kF64, 0.25, 2e38, true},
        {DType::kF64, 0.25, 1e308, false},
        {DType::kBF16, 0.5, 0x1p127, false},
        {DType::kBF16, 0.5, 0x1p126, true},
    };
    for (const auto& c : cases) {
      const nn::Parameter w =
          MakeParameter(mesh, SplitLayout(mesh.shape(), {3}), {0, 0, 0}, c.dtype);
      GradScaler scaler = UsedScaler(mesh, {.initial_scale = c.scale});
      DTensor leaf = w.data();
      leaf.SetGrad(Spread(mesh, leaf.layout(), c.dtype, {0, 1e-3, c.value}));
      EXPECT_EQ(scaler.Unscale({w}), c.is_finite) << c.value << " of " << c.dtype;
      if (c.is_finite) {
        EXPECT_EQ(ValuesOf(leaf.grad())[2], c.value / c.scale);
      }
    }
  });
}

TEST(GradScaler, SkipsOnEveryRankOfSeveralMeshes) {
  OnRanks({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    const DeviceMesh dp = mesh["dp"], tp = mesh["tp"];
    const std::vector<std::vector<DeviceMesh>> orders = {
        {mesh, dp}, {dp, mesh}, {dp, tp}, {tp, dp}, {mesh, dp, tp}};
    for (const std::vector<DeviceMesh>& meshes : orders) {
      for (int bad = 0; bad < 4; ++bad) {
        std::vector<nn::Parameter> parameters;
        for (const DeviceMesh& own : meshes) {
          parameters.push_back(MakeParameter(own, {5}));
          parameters.push_back(MakeParameter(own, {2}));
        }
        GradScaler scaler = UsedScaler(mesh);
        for (const nn::Parameter& parameter : parameters) {
          SetScaledGrad(scaler, parameter, RandomVector(parameter.shape().NumElements(), 1));
        }
        // One rank alone, in a gradient on a slice that others do not see.
        const bool is_bad = mesh.WorldGroup().rank() == bad;
        const nn::Parameter& sliced = parameters[meshes[0] == mesh ? 2 : 0];
        const Tensor& local = sliced.data().grad().local();
        float* values = local.mutable_data<float>();
        if (is_bad) values[0] = static_cast<float>(kInfinity);
        Sgd optimizer(parameters);
        CommTrace trace(mesh);
        EXPECT_FALSE(scaler.Step(optimizer)) << bad;
        EXPECT_EQ(trace.Count("", "", "grad_scaler"), static_cast<int64_t>(meshes.size()));
        EXPECT_EQ(trace.Count(), static_cast<int64_t>(meshes.size())) << trace.ToString();
        scaler.Update();
        EXPECT_EQ(scaler.scale(), 32768);
      }
    }
  });
}

// Clipping between Unscale and Step: with powers of two, the same bits as without a scaler.
TEST(GradScaler, LetsGradientsBeClippedBetweenUnscaleAndStep) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      const auto train = [&](GradScaler* scaler) {
        const nn::Parameter a = MakeParameter(mesh, {5, 3}), b = MakeParameter(mesh, {1});
        AdamW optimizer({a, b}, {.lr = 0.1});
        for (int step = 0; step < 5; ++step) {
          const DTensor loss = Sum(Square(Mul(a.data(), Spread(mesh, a.layout(), DType::kF32,
                                                               RandomVector(15, step))))) +
                               Sum(Square(b.data()));
          Backward(scaler != nullptr ? scaler->Scale(loss) : loss);
          if (scaler != nullptr) {
            EXPECT_TRUE(scaler->Unscale({a, b}));
          }
          EXPECT_GT(ClipGradNorm({a, b}, 1.0), 1.0);
          if (scaler != nullptr) {
            EXPECT_TRUE(scaler->Step(optimizer));
            scaler->Update();
          } else {
            optimizer.Step();
          }
        }
        Vector all = ValuesOf(a.data());
        all.push_back(ValuesOf(b.data())[0]);
        return all;
      };
      GradScaler scaler;
      EXPECT_EQ(train(&scaler), train(nullptr));
      EXPECT_EQ(scaler.state(), (GradScalerState{65536, 5}));
    });
  }
}

TEST(GradScaler, GrowsAtItsIntervalAndNeverBeyondF32) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const nn::Parameter w = MakeParameter(mesh, {3});
    Sgd optimizer({w});
    GradScaler scaler = UsedScaler(mesh);
    const auto step = [&](bool good) {
      SetScaledGrad(scaler, w, {0, 0, good ? 0 : kInfinity});
      scaler.Step(optimizer);
      scaler.Update();
    };
    for (int i = 0; i < 1999; ++i) step(true);
    EXPECT_EQ(scaler.state(), (GradScalerState{65536, 1999}));
    step(true);
    EXPECT_EQ(scaler.state(), (GradScalerState{131072, 0}));
    step(true);
    step(false);
    EXPECT_EQ(scaler.state(), (GradScalerState{65536, 0}));

    scaler.set_state({.scale = 0x1p127, .growth_tracker = 1999});
    step(true);
    EXPECT_EQ(scaler.state(), (GradScalerState{0x1p127, 0}));
    // A shorter interval than that of the run which was saved.
    scaler.set_state({.scale = 8, .growth_tracker = 5000});
    step(true);
    EXPECT_EQ(scaler.state(), (GradScalerState{16, 0}));

    scaler.set_state({.scale = 0x1p-126, .growth_tracker = 3});
    SetScaledGrad(scaler, w, {0, 0, kInfinity});
    EXPECT_FALSE(scaler.Step(optimizer));
    EXPECT_THAT(MessageOf(absl::StatusCode::kOutOfRange, [&] { scaler.Update(); }),
                AllOf(HasSubstr("GradScaler::Update"), HasSubstr("1.17549e-38"),
                      HasSubstr("inf or nan without a scale")));
    EXPECT_EQ(scaler.state(), (GradScalerState{0x1p-126, 3}));
  });
}

// Any factor leaves the scale an f32, so that what multiplies the loss divides the gradients.
TEST(GradScaler, KeepsTheScaleAnF32) {
  OnRanks({{"dp", 1}}, [](const DeviceMesh& mesh) {
    const nn::Parameter w = MakeParameter(mesh, {3});
    Sgd optimizer({w});
    GradScaler scaler = UsedScaler(mesh, {.initial_scale = 1000.1,
                                          .growth_factor = 1.7,
                                          .backoff_factor = 0.3,
                                          .growth_interval = 1});
    EXPECT_EQ(scaler.scale(), 1000.1f);
    SetScaledGrad(scaler, w, {1, 2, 3});
    scaler.Step(optimizer);
    scaler.Update();
    EXPECT_EQ(scaler.scale(), static_cast<float>(1.7 * 1000.1f));
  });
}

TEST(GradScaler, ContinuesFromASavedStateAsIfItHadNotStopped) {
  const GradScalerOptions options = {.initial_scale = 16, .growth_interval = 3};
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [&](const DeviceMesh& mesh) {
      constexpr int kSteps = 14;
      struct Run {
        std::vector<GradScalerState> states;
        Vector w;
      };
      // The scaler is destroyed and restored before each step `stop` (never, if it is 0).
      const auto run = [&](int stop) {
        const nn::Parameter w = MakeParameter(mesh, {5, 3});
        AdamW optimizer({w}, {.lr = 0.1});
        auto scaler = std::make_unique<GradScaler>(options);
        Run result;
        for (int step = 0; step < kSteps; ++step) {
          if (step == stop && step > 0) {
            const GradScalerState saved = scaler->state();
            scaler = std::make_unique<GradScaler>(options);
            scaler->set_state(saved);
          }
          Vector gradient = RandomVector(15, step);
          if (step == 4 || step == 5 || step == 10) gradient[(5 * step) % 15] = kInfinity;
          Backward(scaler->Scale(LossOf(w, gradient)));
          scaler->Step(optimizer);
          scaler->Update();
          result.states.push_back(scaler->state());
        }
        result.w = ValuesOf(w.data());
        return result;
      };
      const Run whole = run(0);
      EXPECT_EQ(whole.states.back(), (GradScalerState{16, 0}));
      for (int stop = 1; stop < kSteps; ++stop) {
        const Run resumed = run(stop);
        EXPECT_EQ(resumed.states, whole.states) << stop;
        EXPECT_EQ(resumed.w, whole.w) << stop;
      }
    });
  }
}

// A network whose gradients, in f16, are all zero without a scale.
TEST(GradScaler, TrainsInF16WhereGradientsVanishWithoutIt) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      constexpr int64_t kRows = 6, kIn = 5, kHidden = 7, kOut = 3;
      const std::vector<Placement> rows(mesh.shape().num_axes(), Replicate());
      const Layout batch = SplitLayout(mesh.shape(), {kRows});
      const auto data = [&](int64_t columns, unsigned seed) {
        Layout layout = Layout::Make(mesh.shape(), batch.placements(), {kRows, columns});
        return Spread(mesh, layout, DType::kF32, RandomVector(kRows * columns, seed));
      };
      const DTensor x = data(kIn, 1), target = data(kOut, 2);
      struct Result {
        Vector losses, up;
      };
      const auto train = [&](DType dtype, GradScaler* scaler) {
        Vector up = RandomVector(kHidden * kIn, 3), down = RandomVector(kOut * kHidden, 4);
        for (double& value : up) value *= 0.2;
        for (double& value : down) value *= 0.2;
        const nn::Parameter w1 = MakeParameter(mesh, SplitLayout(mesh.shape(), {kHidden, kIn}), up);
        const nn::Parameter w2 =
            MakeParameter(mesh, SplitLayout(mesh.shape(), {kOut, kHidden}), down);
        // The loss has a small weight, and the step a large one.
        constexpr double kWeight = 1e-8;
        Sgd optimizer({w1, w2}, {.lr = 0.1 / kWeight});
        Result result;
        for (int step = 0; step < 20; ++step) {
          const DTensor hidden = Tanh(Linear(Cast(x, dtype), Cast(w1.data(), dtype)));
          const DTensor y = Cast(Linear(hidden, Cast(w2.data(), dtype)), DType::kF32);
          const DTensor loss = MseLoss(y, target);
          result.losses.push_back(Item(loss));
          const DTensor weighted = loss * kWeight;
          Backward(scaler != nullptr ? scaler->Scale(weighted) : weighted);
          if (scaler != nullptr) {
            scaler->Step(optimizer);
            scaler->Update();
          } else {
            optimizer.Step();
          }
        }
        result.up = ValuesOf(w1.data());
        return result;
      };
      const Result f32 = train(DType::kF32, nullptr);
      EXPECT_LT(f32.losses.back(), 0.6 * f32.losses.front());
      const Result unscaled = train(DType::kF16, nullptr);
      EXPECT_EQ(unscaled.losses.back(), unscaled.losses.front()) << "they do not vanish";
      // Too large at first: 2^48 overflows for a few steps.
      GradScaler scaler({.initial_scale = 0x1p48});
      const Result scaled = train(DType::kF16, &scaler);
      EXPECT_LT(scaler.scale(), 0x1p48);
      const size_t skipped = std::log2(0x1p48 / scaler.scale());
      EXPECT_LT(skipped, 16u);
      for (size_t i = 0; i < skipped; ++i) EXPECT_EQ(scaled.losses[i], scaled.losses[0]) << i;
      for (size_t i = skipped; i < 20; ++i)
        EXPECT_NEAR(scaled.losses[i], f32.losses[i - skipped], 0.01 * f32.losses[0]) << i;
    });
  }
}

TEST(GradScaler, RefusesOptionsAndStatesOutOfRange) {
  const auto message = [](const GradScalerOptions& options) {
    return MessageOf(absl::StatusCode::kInvalidArgument, [&] { GradScaler scaler(options); });
  };
  for (const double bad : {0.0, -1.0, kInfinity, std::nan(""), 1e39, 1e-40}) {
    EXPECT_THAT(message({.initial_scale = bad}),
                AllOf(HasSubstr("initial_scale is "), HasSubstr("expected a normal f32")));
    GradScaler scaler;
    EXPECT_THAT(
        MessageOf(absl::StatusCode::kInvalidArgument, [&] { scaler.set_state({.scale = bad}); }),
        HasSubstr("scale is "));
    EXPECT_EQ(scaler.scale(), 65536);
  }
  for (const double bad : {1.0, 0.5, -2.0, kInfinity, std::nan("")})
    EXPECT_THAT(message({.growth_factor = bad}), HasSubstr("growth_factor is "));
  for (const double bad : {0.0, 1.0, 2.0, -0.5, std::nan("")})
    EXPECT_THAT(message({.backoff_factor = bad}), HasSubstr("backoff_factor is "));
  for (const int64_t bad : {0, -1})
    EXPECT_THAT(message({.growth_interval = bad}), HasSubstr("growth_interval is "));
  GradScaler scaler;
  EXPECT_THAT(MessageOf(absl::StatusCode::kInvalidArgument,
                        [&] { scaler.set_state({.scale = 1, .growth_tracker = -1}); }),
              HasSubstr("growth_tracker is -1"));
}

TEST(GradScaler, NamesWhatToDoWhenCalledOutOfOrder) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const nn::Parameter a = MakeParameter(mesh, {5}, "a.weight");
    const nn::Parameter b = MakeParameter(mesh, {2}, "b.weight");
    const DTensor loss = Full(mesh, {}, DType::kF32, 1, {Replicate()});
    Sgd both({a, b}), only_a({a}), only_b({b});
    GradScaler scaler;
    const auto set_grads = [&] {
      SetScaledGrad(scaler, a, {1, 2, 3, 4, 5});
      SetScaledGrad(scaler, b, {1, 2});
    };
    set_grads();
    EXPECT_THAT(PreconditionOf([&] {
                  scaler.Unscale({a, b});
                }),
                AllOf(HasSubstr("GradScaler::Unscale"), HasSubstr("Backward(scaler.Scale(loss))")));
    EXPECT_THAT(PreconditionOf([&] { scaler.Step(both); }), HasSubstr("GradScaler::Step"));
    EXPECT_THAT(PreconditionOf([&] { scaler.Update(); }),
                HasSubstr("no Step since the last Update; call Step(optimizer) first"));
    EXPECT_EQ(ValuesOf(b.data().grad()), (Vector{65536, 131072}));

    scaler.Scale(loss);
    scaler.Unscale({a});
    EXPECT_THAT(PreconditionOf([&] {
                  scaler.Unscale({b, a});
                }),
                AllOf(HasSubstr("a.weight"), HasSubstr("was unscaled already")));
    EXPECT_EQ(ValuesOf(b.data().grad()), (Vector{65536, 131072})) << "nothing is changed";
    EXPECT_THAT(PreconditionOf([&] { scaler.Step(both); }),
                AllOf(HasSubstr("for parameter a.weight"), HasSubstr("not for b.weight")));
    EXPECT_THAT(
        PreconditionOf([&] { scaler.Scale(loss); }),
        AllOf(HasSubstr("GradScaler::Scale"), HasSubstr("a.weight"), HasSubstr("before Unscale")));
    EXPECT_THAT(PreconditionOf([&] { scaler.set_state({.scale = 1}); }),
                HasSubstr("call Update first"));
    scaler.Unscale({b});
    EXPECT_TRUE(scaler.Step(only_a));
    EXPECT_THAT(PreconditionOf([&] { scaler.Step(both); }),
                AllOf(HasSubstr("a.weight"), HasSubstr("had its Step")));
    EXPECT_THAT(PreconditionOf([&] { scaler.Unscale({a}); }),
                AllOf(HasSubstr("a.weight"), HasSubstr("had its Step already")));
    EXPECT_THAT(PreconditionOf([&] { scaler.Update(); }),
                AllOf(HasSubstr("b.weight"), HasSubstr("still has its gradient")));
    EXPECT_TRUE(scaler.Step(only_b));
    scaler.Update();
    EXPECT_EQ(scaler.state(), (GradScalerState{65536, 1}));
    EXPECT_THAT(PreconditionOf([&] { scaler.Update(); }), HasSubstr("no Step"));

    // The next step is as ever.
    set_grads();
    EXPECT_TRUE(scaler.Step(both));
    EXPECT_FALSE(static_cast<bool>(a.data().grad()));
    scaler.Update();
    EXPECT_THAT(MessageOf(absl::StatusCode::kInvalidArgument,
                          [&] { scaler.Scale(Full(mesh, {}, DType::kI64, 1, {Replicate()})); }),
                HasSubstr("expected a floating-point dtype"));
    EXPECT_THAT(MessageOf(absl::StatusCode::kInvalidArgument,
                          [&] {
                            scaler.Unscale({a, nn::Parameter()});
                          }),
                HasSubstr("one of the parameters is none"));
  });
}

// What throws between the calls leaves a step that can be ended, and the next one is as ever.
TEST(GradScaler, GoesOnAfterAStepThatThrew) {
  for (const MeshShape& shape : Meshes()) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      const nn::Parameter w = MakeParameter(mesh, SplitLayout(mesh.shape(), {3}), {1, 2, 3});
      Sgd optimizer({w}, {.lr = 1});
      GradScaler scaler;
      const auto backward = [&](const Vector& gradient) {
        Backward(scaler.Scale(LossOf(w, gradient)));
      };
      const DTensor bad = WithBackwardCallback(LossOf(w, {1, 1, 1}),
                                               [] { throw std::runtime_error("in backward"); });
      EXPECT_THROW(Backward(scaler.Scale(bad)), std::runtime_error);
      backward({1, kInfinity, 1});
      EXPECT_FALSE(scaler.Unscale({w}));
      EXPECT_THROW(ClipGradNorm({w}, 1.0, 1e-6, NonFiniteNorm::kThrow), Error);
      EXPECT_FALSE(scaler.Step(optimizer));
      scaler.Update();
      EXPECT_EQ(scaler.state(), (GradScalerState{32768, 0}));

      struct ThrowsOnce {
        Sgd& optimizer;
        bool has_thrown = false;
        const std::vector<nn::Parameter>& parameters() const { return optimizer.parameters(); }
        void Step() {
          if (!std::exchange(has_thrown, true)) throw std::runtime_error("in step");
          optimizer.Step();
        }
      } throws_once{optimizer};
      backward({1, 0, -1});
      EXPECT_THROW(scaler.Step(throws_once), std::runtime_error);
      EXPECT_EQ(ValuesOf(w.data().grad()), (Vector{1, 0, -1}));
      EXPECT_TRUE(scaler.Step(throws_once)) << "again, and unscaled once";
      scaler.Update();
      EXPECT_EQ(ValuesOf(w.data()), (Vector{0, 2, 4}));
      EXPECT_EQ(scaler.state(), (GradScalerState{32768, 1}));
    });
  }
}

TEST(GradScaler, RefusesGradientsThatCannotBeUnscaled) {
  OnRanks({{"dp", 2}}, [](const DeviceMesh& mesh) {
    GradScaler scaler = UsedScaler(mesh, {.initial_scale = 4});
    const nn::Parameter good = MakeParameter(mesh, {3}, "good");
    SetScaledGrad(scaler, good, {1, 2, 3});
    const nn::Parameter half =
        MakeParameter(mesh, SplitLayout(mesh.shape(), {3}), {1, 2, 3}, DType::kF16, "half");
    EXPECT_TRUE(GradScaler(scaler).Unscale({half})) << "frozen";
    SetScaledGrad(scaler, half, {1, 2, 3});
    EXPECT_THAT(PreconditionOf([&] {
                  scaler.Unscale({good, half});
                }),
                AllOf(HasSubstr("half"), HasSubstr("is f16"), HasSubstr("param_dtype")));
    nn::Parameter waiting = MakeParameter(mesh, {3}, "waiting");
    waiting.set_has_unreduced_gradient(true);
    EXPECT_THAT(PreconditionOf([&] {
                  scaler.Unscale({good, waiting});
                }),
                AllOf(HasSubstr("GradScaler::Unscale"), HasSubstr("waiting"),
                      HasSubstr("SetRequiresGradientSync")));
    EXPECT_EQ(ValuesOf(good.data().grad()), (Vector{4, 8, 12}));
  });
}

// A state restored on one rank only.
TEST(GradScaler, RefusesScalesThatDifferBetweenRanks) {
  for (const MeshShape& shape : {MeshShape{{"dp", 3}}, MeshShape{{"dp", 2}, {"tp", 2}}}) {
    OnRanks(shape, [](const DeviceMesh& mesh) {
      GradScaler scaler = UsedScaler(mesh);
      const nn::Parameter w = MakeParameter(mesh, {5});
      const int rank = mesh.WorldGroup().rank();
      if (rank == 1) scaler.set_state({.scale = 1024});
      DTensor leaf = w.data();
      leaf.SetGrad(Spread(mesh, leaf.layout(), DType::kF32, {1, 2, 3, 4, 5}));
      Sgd optimizer({w});
      EXPECT_THAT(PreconditionOf([&] { scaler.Step(optimizer); }),
                  AllOf(HasSubstr("ranks have scales from 1024 to 65536"),
                        HasSubstr("alike on all ranks")));
      EXPECT_EQ(ValuesOf(leaf.grad()), (Vector{1, 2, 3, 4, 5}));
      scaler.set_state({.scale = 1024});
      EXPECT_TRUE(scaler.Step(optimizer));
    });
  }
}

TEST(GradScaler, HasItsStateAsLiveEntries) {
  GradScaler scaler({.initial_scale = 1024});
  const StateDict state = scaler.State();
  EXPECT_EQ(state.size(), 2u);
  EXPECT_EQ(state.Number("scale"), 1024);
  EXPECT_EQ(state.Integer("growth_tracker"), 0);
  state.Find("scale")->set(4096.0);
  state.Find("growth_tracker")->set(int64_t{7});
  EXPECT_EQ(scaler.state(), (GradScalerState{4096, 7}));
  EXPECT_EQ(state.Integer("growth_tracker"), 7);
  const auto message = [&](const char* name, const StateValue& value) {
    return std::string(Catch([&] { state.Find(name)->set(value); }).message());
  };
  EXPECT_EQ(message("scale", int64_t{1}), "GradScaler: scale is given i64, expected f64");
  EXPECT_EQ(message("growth_tracker", 1.0),
            "GradScaler: growth_tracker is given f64, expected i64");
  EXPECT_THAT(message("scale", -1.0), HasSubstr("scale is -1"));
  EXPECT_THAT(message("growth_tracker", int64_t{-1}), HasSubstr("growth_tracker is -1"));
  EXPECT_EQ(scaler.state(), (GradScalerState{4096, 7}));
}

}  // namespace
}  // namespace shardmesh::optim
