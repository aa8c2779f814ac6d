// SPDX-License-Identifier: Apache-2.0
//
// Models that die before their graph, forwards that fail, units that are not used, parameters used
// outside the forward of their module.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Step(Lab& lab, Numbers& seen, int step) {
  const DTensor loss = lab.Loss(step);
  Backward(loss);
  seen.Add("loss", Item(loss));
  seen.Gradients(lab);
  SgdStep(*lab.tower, 0.05);
}

void ExpectNothingGathered(const Lab& lab) {
  EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
  EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
}

TEST(FullyShardLifetime, AGraphKeepsWhatItNeedsOfAModelThatIsGone) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    const std::vector<nn::Parameter> parameters = lab.tower->Parameters();
    const DTensor loss = lab.Loss(0);
    lab.tower.reset();
    Backward(loss);
    for (const nn::Parameter& parameter : parameters)
      seen.Add(parameter.name(), parameter.data().grad());
    ExpectNothingGathered(lab);
  });
}

TEST(FullyShardLifetime, AGraphThatIsDroppedAfterItsModel) {
  OnEachMesh({}, [](Lab& lab) {
    DTensor loss = lab.Loss(0);
    lab.tower.reset();
    loss = DTensor();
    ExpectNothingGathered(lab);
  });
}

TEST(FullyShardLifetime, AGatheredHandleThatOutlivesItsModuleIsRefusedByBackward) {
  LabOptions options;
  options.fsdp.reshard_after_forward = false;
  OnEachMesh(options, [](Lab& lab) {
    DTensor kept;
    lab.block(1).in_forward = [&] { kept = lab.block(1).up.weight().active(); };
    lab.Loss(0);
    const DTensor side = Mul(Sum(kept), 0.1);
    lab.tower.reset();
    const absl::Status status = Catch([&] { Backward(side); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("and the module is gone"));
  });
}

TEST(FullyShardLifetime, ANewModelInThePlaceOfAnOld) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (int i = 0; i < 3; ++i) {
      const DTensor old_loss = lab.Loss(0);
      lab.tower = std::make_unique<Tower>(std::vector<int64_t>{5, 3});
      if (lab.is_sharded) {
        for (auto& block : lab.tower->blocks) FullyShard(*block, lab.mesh);
        FullyShard(*lab.tower, lab.mesh);
      }
      lab.tower->PlaceReplicated(lab.mesh);
      lab.tower->Initialize(i);
      Backward(old_loss);
      Step(lab, seen, i);
    }
  });
}

TEST(FullyShardLifetime, AUnitThatTheFirstBackwardsDoNotUse) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    lab.tower->route = {1};
    Step(lab, seen, 0);
    Step(lab, seen, 1);
    lab.tower->route = {2, 1};
    Step(lab, seen, 2);
    lab.tower->route = {0, 1, 2};
    Step(lab, seen, 3);
    ExpectNothingGathered(lab);
  });
}

TEST(FullyShardLifetime, AFirstForwardThatFails) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    lab.block(1).in_forward = [] { throw std::runtime_error("a bad batch"); };
    EXPECT_THROW(lab.Loss(0), std::runtime_error);
    ExpectNothingGathered(lab);
    lab.block(1).in_forward = [] {};
    EXPECT_THROW((*lab.tower)(lab.Batch(0, kFeatures + 1)), Error);
    EXPECT_THROW(lab.tower->Call({}), Error);
    EXPECT_THROW(lab.tower->Call({DTensor()}), Error);
    ExpectNothingGathered(lab);
    Step(lab, seen, 0);
    Step(lab, seen, 1);
  });
}

TEST(FullyShardLifetime, AForwardThatFailsLeavesNothingGatheredThoughItsGraphLives) {
  LabOptions options;
  options.fsdp.strategy = Strategy::kShardGradOp;
  ExpectSameOnEachMesh(
      [](Lab& lab, Numbers& seen) {
        DTensor kept;
        lab.block(1).in_forward = [] { throw std::runtime_error("a bad batch"); };
        lab.block(0).AddForwardHook(
            [&](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) { kept = outputs[0]; });
        EXPECT_THROW(lab.Loss(0), std::runtime_error);
        ExpectNothingGathered(lab);
        Backward(Mean(Square(kept)));
        seen.Gradients(lab);
        ExpectNothingGathered(lab);
      },
      options);
}

TEST(FullyShardLifetime, AnExceptionThatAForwardCatches) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (int step = 0; step < 3; ++step) {
      bool fails = step != 1;
      lab.block(1).in_forward = [&] {
        if (std::exchange(fails, false)) throw std::runtime_error("once");
      };
      lab.block(0).in_forward = [&] {
        try {
          lab.block(1)(lab.Batch(5));
        } catch (const std::runtime_error&) {
        }
      };
      Step(lab, seen, step);
      ExpectNothingGathered(lab);
    }
  });
}

TEST(Module, CalledWithTooFewInputsSaysWhichAndHowMany) {
  OnEachMesh({}, [](Lab& lab) {
    const absl::Status status = Catch([&] { lab.block(1).up.Call({}); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("module block1.up was called with 0 inputs, and reads input 0"));
  });
}

// A method that uses parameters outside the module's forward: the shards, by derived collectives.
DTensor Energy(const Block& block) { return Sum(Square(block.up.weight().active())); }

TEST(FullyShardLifetime, AParameterUsedOutsideItsModulesForwardIsTheShard) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    seen.Add("energy", Item(Energy(lab.block(1))));
    Step(lab, seen, 0);
    seen.Add("energy", Item(Energy(lab.block(1))));
    const DTensor loss = Add(lab.Loss(1), Mul(Energy(lab.block(1)), 0.1));
    Backward(loss);
    seen.Gradients(lab);
    ExpectNothingGathered(lab);
  });
}

TEST(FullyShardLifetime, ForwardScopesGatherForOtherMethods) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (int step = 0; step < 2; ++step) {
      DTensor energy;
      {
        const auto scope = lab.block(1).OpenForwardScopes();
        CommTrace trace(lab.mesh);
        energy = Energy(lab.block(1));
        EXPECT_EQ(trace.Count("dp"), 0) << "gathered already";
      }
      Backward(energy);
      seen.Gradients(lab);
      ExpectNothingGathered(lab);
      SgdStep(*lab.tower, 0.1);
    }
  });
}

TEST(FullyShardLifetime, AGatheredHandleKeptBeyondTheForwardNamesModuleAndRemedy) {
  OnEachMesh({}, [](Lab& lab) {
    DTensor kept;
    lab.block(1).in_forward = [&] { kept = lab.block(1).up.weight().active(); };
    const NoGrad no_grad(lab.mesh);
    lab.Loss(0);
    const absl::Status status = Catch([&] { Mul(kept, 2.0); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("mul"), HasSubstr("module block1"),
                      HasSubstr("call the module, or begin the method that uses them with "
                                "Module::OpenForwardScopes()")));
  });
}

// The table of an embedding is a unit of its own, and the head, in the root unit, uses it as well.
class TiedModel : public nn::Module {
 public:
  TiedModel() : inner(4, 6, {.dtype = DType::kF64, .weight_init = nn::Init::Normal(0, 1)}) {
    RegisterChild("inner", inner);
  }
  nn::Linear inner;

 protected:
  Outputs Forward(const Inputs& x) override {
    return MatMul(Tanh(inner(x[0])), inner.weight().active());
  }
};

TEST(FullyShardLifetime, ATiedParameterOfAnInnerUnit) {
  std::vector<double> expected;
  for (int p : {1, 2, 3}) {
    const absl::Status status = RunRanks(p, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
      TiedModel model;
      if (p > 1) {
        FullyShard(model.inner, mesh);
        FullyShard(model, mesh);
      }
      model.PlaceReplicated(mesh);
      model.Initialize(1);
      for (int step = 0; step < 3; ++step) {
        const DTensor x = FromBoxes(mesh, {5, 4}, DType::kF64, {shardmesh::Shard(0)},
                                    [&](const Box& box, Tensor& local) {
                                      for (int64_t i = 0; i < local.NumElements(); ++i)
                                        local.mutable_data<double>()[i] =
                                            static_cast<double>((box.begin[0] * 4 + i) % 7) - 3;
                                    });
        Backward(Mean(Square(model(x))));
        SgdStep(model, 0.1);
      }
      const auto values = FullTensor(model.inner.weight().data()).ToVector<double>();
      if (p == 1) expected = values;
      for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-12);
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(FullyShardLifetime, TwoForwardsThenTheirBackwardsInEitherOrder) {
  for (const bool first_first : {true, false}) {
    ExpectSameOnEachMesh([&](Lab& lab, Numbers& seen) {
      const DTensor a = lab.Loss(0), b = lab.Loss(1);
      Backward(first_first ? a : b);
      seen.Gradients(lab);
      Backward(first_first ? b : a);
      seen.Gradients(lab);
      Backward(Add(lab.Loss(2), lab.Loss(3)));
      seen.Gradients(lab);
      ExpectNothingGathered(lab);
    });
  }
}

TEST(FullyShardLifetime, ABlockCalledManyTimesLikeARecurrentCell) {
  for (const bool reshard : {true, false}) {
    LabOptions options;
    options.fsdp.reshard_after_forward = reshard;
    ExpectSameOnEachMesh(
        [&](Lab& lab, Numbers& seen) {
          lab.tower->route = {1, 1, 1, 0, 1, 2, 2};
          for (int step = 0; step < 3; ++step) Step(lab, seen, step);
          ExpectNothingGathered(lab);
        },
        options);
  }
}

// What leaves a module on the side: the gradient comes to its ops before it comes to its output.
TEST(FullyShardLifetime, ResultsThatLeaveAModuleBesideItsOutput) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (int step = 0; step < 2; ++step) {
      DTensor side;
      lab.block(1).in_forward = [&] { side = Sum(Square(lab.block(1).up.weight().active())); };
      const DTensor loss = lab.Loss(step);
      Backward(step == 0 ? side : Add(loss, side));
      seen.Gradients(lab);
      ExpectNothingGathered(lab);
    }
  });
}

// The unit's gradients are reduced when backward has left the last of its calls; this one comes
// later, and is reduced by itself.
TEST(FullyShardLifetime, AGradientThatComesAfterThoseOfTheUnitAreReducedIsAddedToThem) {
  LabOptions options;
  options.fsdp.reshard_after_forward = false;
  ExpectSameOnEachMesh(
      [](Lab& lab, Numbers& seen) {
        DTensor kept;
        lab.block(1).in_forward = [&] { kept = lab.block(1).up.weight().active(); };
        for (int step = 0; step < 2; ++step) {
          lab.Loss(0);
          const DTensor side = Mul(Sum(kept), 0.1);  // Older than all ops of the loss.
          Backward(Add(side, lab.Loss(step)));
          seen.Gradients(lab);
          ExpectNothingGathered(lab);
        }
      },
      options);
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
