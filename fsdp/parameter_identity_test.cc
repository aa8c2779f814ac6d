// SPDX-License-Identifier: Apache-2.0
//
// What is set on a parameter holds for its shard and its gathered form alike: freezing, hooks,
// gradients, values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/optim/clip.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

void Freeze(nn::Module& module, bool frozen = true) {
  for (nn::Parameter parameter : module.Parameters()) parameter.set_requires_grad(!frozen);
}

void Step(Lab& lab, Numbers& seen, int step) {
  const DTensor loss = lab.Loss(step);
  Backward(loss);
  seen.Add("loss", Item(loss));
  seen.Gradients(lab);
  SgdStep(*lab.tower, 1.0);
  seen.Parameters(lab);
}

TEST(ParameterIdentity, FreezingAndThawingHoldsFromTheNextForwardOn) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    Step(lab, seen, 0);
    Freeze(lab.block(0));
    Freeze(lab.tower->head);
    Step(lab, seen, 1);
    Freeze(lab.block(1));
    Freeze(lab.block(0), false);
    Step(lab, seen, 2);
    lab.block(2).up.Parameters()[0].set_requires_grad(false);
    Step(lab, seen, 3);
    Freeze(*lab.tower, false);
    Step(lab, seen, 4);
  });
}

TEST(ParameterIdentity, ThawingHoldsAfterAForwardThatRecordedNothing) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    Freeze(*lab.tower);
    {
      const NoGrad no_grad(lab.mesh);
      seen.Add("loss", Item(lab.Loss(9)));
    }
    EXPECT_FALSE(lab.Loss(9).RequiresGrad());
    Freeze(lab.block(1), false);
    Step(lab, seen, 0);
  });
}

TEST(ParameterIdentity, RequiresGradOfTheDataIsThatOfTheParameter) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    nn::Parameter weight = lab.block(0).up.weight();
    DTensor(weight.data()).SetRequiresGrad(false);
    EXPECT_FALSE(weight.requires_grad());
    Step(lab, seen, 0);
    DTensor(weight.data()).SetRequiresGrad();
    EXPECT_TRUE(weight.requires_grad());
    Step(lab, seen, 1);
  });
}

TEST(ParameterIdentity, FlagsChangedBetweenForwardAndBackwardHoldFromTheNextForwardOn) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    Freeze(lab.block(2));
    const DTensor loss = lab.Loss(0);
    Freeze(lab.block(0));
    Freeze(lab.block(2), false);
    Backward(loss);
    seen.Gradients(lab);
  });
}

TEST(GradientHooks, OfTheDataSeeTheReducedShardOnceABackward) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    int calls = 0;
    std::map<std::string, DTensor> in_hooks;
    for (const nn::Parameter& parameter : lab.block(1).Parameters()) {
      // A hook that held the parameter would keep it alive for ever.
      const auto hook = [&, name = parameter.name(),
                         layout = parameter.layout()](const DTensor& grad) {
        ++calls;
        EXPECT_EQ(grad.layout(), layout);
        in_hooks[name] = Mul(grad, 1.0);
        return Mul(grad, -2.0);
      };
      DTensor(parameter.data()).RegisterGradHook(hook);
    }
    for (int step = 0; step < 2; ++step) {
      Step(lab, seen, step);
      for (const auto& [name, grad] : in_hooks) seen.Add(name + " in the hook", grad);
    }
    EXPECT_EQ(calls, 2 * 4);
  });
}

TEST(GradientHooks, AfterAccumulationStepTheShard) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    std::vector<HookHandle> handles;
    for (const nn::Parameter& parameter : lab.block(1).Parameters()) {
      const auto step = [](const DTensor& leaf) {
        AddInPlace(leaf.Detach(), Mul(leaf.grad(), -0.25));
        DTensor(leaf).ZeroGrad();
      };
      handles.push_back(DTensor(parameter.data()).RegisterPostAccumulateGradHook(step));
    }
    for (int i = 0; i < 2; ++i) {
      Backward(lab.Loss(i));
      seen.Gradients(lab);
      seen.Parameters(lab);
    }
    for (HookHandle& handle : handles) handle.Remove();
    Backward(lab.Loss(3));
    seen.Gradients(lab);
  });
}

TEST(GradientHooks, ThatZeroEveryGradientLeaveANormOfZero) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (const nn::Parameter& parameter : lab.tower->Parameters()) {
      DTensor(parameter.data()).RegisterGradHook([](const DTensor& grad) {
        return Mul(grad, 0.0);
      });
    }
    Backward(lab.Loss(0));
    EXPECT_EQ(optim::ClipGradNorm(lab.tower->Parameters(), 1.0), 0);
    seen.Gradients(lab);
  });
}

TEST(GradientHooks, ThatThrowLeaveNoGradientAnywhereAndTheNextStepIsWhole) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    bool throws = true;
    DTensor(lab.block(1).up.weight().data()).RegisterGradHook([&](const DTensor& grad) {
      if (throws) ThrowInvalid("in a hook");
      return grad;
    });
    EXPECT_THROW(Backward(lab.Loss(0)), Error);
    for (const nn::Parameter& parameter : lab.tower->Parameters())
      EXPECT_FALSE(parameter.data().grad()) << parameter.name();
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
    throws = false;
    Step(lab, seen, 1);
  });
}

// One gradient: what forward's gathered form brings and what the shard itself does.
TEST(GradientHooks, SeeTheSumOfTheModulesUseAndADirectOne) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    const DTensor weight = lab.block(1).up.weight().data();
    int calls = 0;
    DTensor(weight).RegisterGradHook([&](const DTensor& grad) {
      ++calls;
      return Mul(grad, 3.0);
    });
    Backward(Add(lab.Loss(0), Mul(Sum(Square(weight)), 0.1)));
    EXPECT_EQ(calls, 1);
    seen.Gradients(lab);
  });
}

TEST(ParameterIdentity, SetGradAddsToWhatBackwardBrings) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    Backward(lab.Loss(0));
    DTensor data = lab.block(0).down.weight().data();
    data.SetGrad(Mul(data.grad(), -0.5));
    DTensor(lab.block(0).up.weight().data()).ZeroGrad();
    Backward(lab.Loss(1));
    seen.Gradients(lab);
  });
}

std::vector<double> FullGradient(const nn::Parameter& parameter) {
  return FullTensor(parameter.data().grad()).ToVector<double>();
}

DTensor Halved(const nn::Parameter& parameter) {
  const NoGrad no_grad(parameter.mesh());
  return Redistribute(Mul(parameter.data(), 0.5), parameter.layout());
}

TEST(ParameterIdentity, SetDataKeepsHooksAndGradients) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    nn::Parameter weight = lab.block(1).up.weight();
    const DTensor data = weight.data();
    DTensor(data).RegisterGradHook([](const DTensor& grad) { return Mul(grad, 2.0); });
    Step(lab, seen, 0);
    Backward(lab.Loss(1));
    weight.SetData(Halved(weight));
    EXPECT_EQ(weight.data().impl(), data.impl());
    seen.Gradients(lab);
    Step(lab, seen, 2);
  });
}

// On one rank that releases nothing, forward uses the shards themselves.
TEST(ParameterIdentity, SetDataOfAShardThatForwardUsedItselfIsAWrite) {
  OnLabMesh({{{"dp", 1}}}, {}, [](Lab& lab) {
    const DTensor loss = lab.Loss(1);
    nn::Parameter weight = lab.block(1).up.weight();
    weight.SetData(Halved(weight));
    const absl::Status status = Catch([&] { Backward(loss); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("was written in place after forward"));
  });
}

// The weights that backward would gather are not those that forward used: an error, or, where an op
// has moved the weight and keeps what it moved, the gradients of the values that forward used.
TEST(ParameterIdentity, SetDataBetweenForwardAndBackwardIsAWrite) {
  for (const bool whole_root : {false, true}) {
    OnEachMesh({}, [&](Lab& lab) {
      Backward(lab.Loss(1));
      const std::vector<double> expected = FullGradient(lab.block(0).up.weight());
      for (const nn::Parameter& parameter : lab.tower->Parameters())
        DTensor(parameter.data()).ZeroGrad();
      const DTensor loss = lab.Loss(1);
      // The root stays gathered until backward.
      nn::Parameter weight = whole_root ? lab.tower->head.weight() : lab.block(1).up.weight();
      const DTensor before = weight.data();
      weight.SetData(Halved(weight));
      const absl::Status status = Catch([&] { Backward(loss); });
      if (status.ok() && lab.mesh.shape().Has("tp")) {
        EXPECT_EQ(FullGradient(lab.block(0).up.weight()), expected);
        return;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("was written in place after forward"));
    });
  }
}

TEST(ParameterIdentity, NewValuesAreGatheredHoweverTheyCame) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    const DTensor recorded = lab.Loss(0);  // While it lives, the root stays gathered.
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters) > 0, lab.is_sharded);
    seen.Add("loss", Item(recorded));
    for (nn::Parameter parameter : lab.tower->Parameters()) {
      const DTensor halved = Halved(parameter);
      // The new values may have been written as often as the old ones.
      Storage& storage = *halved.local().storage();
      while (storage.version() < parameter.data().local().storage()->version())
        storage.BumpVersion();
      parameter.SetData(halved);
    }
    seen.Add("loss", Item(lab.Loss(0)));
    for (const nn::Parameter& parameter : lab.tower->Parameters()) {
      const NoGrad no_grad(lab.mesh);
      MulInPlace(parameter.data(), 1.5);
    }
    seen.Add("loss", Item(lab.Loss(0)));
    Step(lab, seen, 1);
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
