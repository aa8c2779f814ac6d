// SPDX-License-Identifier: Apache-2.0
//
// What layers above install in a backward: gradient sinks and callbacks.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/buffer_sink.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MeshShape kOne = {{"one", 1}};
const MeshShape kTwo = {{"x", 2}};

std::vector<double> FullGrad(const DTensor& leaf) {
  return FullTensor(leaf.grad()).ToVector<double>();
}

TEST(GradSink, IsWrittenByTheKernelsAndTakesAllUses) {
  const GlobalValue x = Values({5, 3}, 37), w = Values({7, 3}, 38);
  Pieces expected;
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor weight = Place(mesh, {Replicate()}, w).SetRequiresGrad();
    const DTensor input = Place(mesh, {Replicate()}, x);
    Backward(Sum(Square(Linear(Linear(input, weight), Transpose(weight, 0, 1)))));
    expected.Put(weight.grad());
  });
  for (const bool accepts_what_comes : {true, false}) {
    Pieces pieces;
    OnMesh(kTwo, [&](const DeviceMesh& mesh) {
      const DTensor weight = Place(mesh, {Replicate()}, w).SetRequiresGrad();
      const DTensor input = Place(mesh, {Shard(0)}, x);
      // With the rows split, each rank makes a summand of the weight's gradient.
      const Placement placement = accepts_what_comes ? Partial() : Shard(1);
      const auto shared = std::make_shared<BufferSink>(
          mesh, Layout::Make(mesh.shape(), {placement}, w.shape), DType::kF64);
      const BufferSink& sink = *shared;
      SetGradSink(weight, shared);
      Backward(Sum(Square(Linear(Linear(input, weight), Transpose(weight, 0, 1)))));
      EXPECT_EQ(sink.opened, 2);
      // One use is a transpose, which no kernel writes; the other's kernel writes if the layout
      // fits.
      EXPECT_EQ(sink.staged_bytes, (accepts_what_comes ? 1 : 2) * sink.Gradient().local().Bytes());
      EXPECT_FALSE(weight.grad());
      pieces.Put(sink.Gradient());
      SetGradSink(weight, nullptr);
      Backward(Sum(weight));
      EXPECT_EQ(FullGrad(weight), std::vector<double>(21, 1));
    });
    EXPECT_TRUE(pieces.AreOf(expected.Value(), 1e-12));
  }
}

// A product of f32 operands has no kernel that writes f64.
TEST(GradSink, OfAWiderDTypeThanKernelsWriteIsAddedTo) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor weight =
        Cast(Place(mesh, {Replicate()}, Values({7, 3}, 38)), DType::kF32).Detach();
    DTensor(weight).SetRequiresGrad();
    const DTensor input = Cast(Place(mesh, {Replicate()}, Values({5, 3}, 37)), DType::kF32);
    Backward(Sum(Linear(input, weight)));
    const std::vector<double> expected = FullGrad(weight);
    const auto sink = std::make_shared<BufferSink>(mesh, weight.layout(), DType::kF64);
    SetGradSink(weight, sink);
    for (int uses = 1; uses <= 2; ++uses) {
      Backward(Sum(Linear(input, weight)));
      const std::vector<double> sum = FullTensor(sink->Gradient()).ToVector<double>();
      for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], uses * expected[i]);
    }
  });
}

TEST(GradSink, GetsWhatTheHooksMake) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Replicate()}, Values({3, 3}, 39)).SetRequiresGrad();
    const auto sink = std::make_shared<BufferSink>(mesh, leaf.layout(), DType::kF64);
    SetGradSink(leaf, sink);
    DTensor(leaf).RegisterGradHook([](const DTensor& grad) { return Mul(grad, -2.0); });
    Backward(Sum(Add(leaf, Mul(leaf, 4.0))));
    EXPECT_EQ(FullTensor(sink->Gradient()).ToVector<double>(), std::vector<double>(9, -10));
    EXPECT_EQ(sink->opened, 1);
    EXPECT_THAT(ErrorOf([&] { SetGradSink(Exp(leaf), sink); }), HasSubstr("not a leaf"));
  });
}

TEST(GradSink, IsOwnedByTheGraphThatDeliversToIt) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    std::weak_ptr<BufferSink> watch;
    DTensor loss;
    Tensor buffer;
    {
      const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 40)).SetRequiresGrad();
      const auto sink = std::make_shared<BufferSink>(mesh, leaf.layout(), DType::kF64);
      watch = sink;
      buffer = sink->Gradient().local();
      SetGradSink(leaf, sink);
      loss = Sum(Mul(leaf, 3.0));
    }
    EXPECT_FALSE(watch.expired());
    Backward(loss);
    EXPECT_EQ(buffer.ToVector<double>(), std::vector<double>(3, 3));
    loss = DTensor();
    EXPECT_TRUE(watch.expired());
  });
}

TEST(WithBackwardCallback, RunsBeforeAnyNodeMadeEarlier) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    std::vector<std::string> order;
    const auto note = [&](std::string what) {
      return [&order, what](const DTensor& grad) {
        order.push_back(what);
        return grad;
      };
    };
    const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 41)).SetRequiresGrad();
    DTensor early = Exp(leaf);
    early.RegisterGradHook(note("early"));
    const DTensor marked = WithBackwardCallback(early, [&] { order.push_back("callback"); });
    EXPECT_EQ(marked.local().storage(), early.local().storage());
    DTensor late = Tanh(marked);
    late.RegisterGradHook(note("late"));
    Backward(Sum(late));
    EXPECT_THAT(order, ElementsAre("late", "callback", "early"));
  });
}

TEST(AtEndOfBackward, TellsHowItEnded) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    EXPECT_THAT(ErrorOf([&] { AtEndOfBackward(mesh, [](bool) {}); }), HasSubstr("no Backward"));
    for (const bool fails : {false, true}) {
      const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 42)).SetRequiresGrad();
      std::vector<std::string> events;
      const DTensor y = WithBackwardCallback(Exp(leaf), [&] {
        for (int i = 0; i < 2; ++i)
          AtEndOfBackward(mesh, [&, i](bool succeeded) {
            events.push_back(absl::StrCat(i, succeeded ? " ok" : " failed"));
            EXPECT_EQ(static_cast<bool>(leaf.grad()), succeeded);
          });
        if (fails) throw std::runtime_error("in backward");
      });
      if (fails) {
        EXPECT_THROW(Backward(Sum(y)), std::runtime_error);
        EXPECT_THAT(events, ElementsAre("0 failed", "1 failed"));
      } else {
        Backward(Sum(y));
        EXPECT_THAT(events, ElementsAre("0 ok", "1 ok"));
      }
    }
  });
}

}  // namespace
}  // namespace shardmesh::testing
