// SPDX-License-Identifier: Apache-2.0
//
// What optimizers keep: its names, how it is saved, loaded, forgotten, made early and moved; and
// what an optimizer of one's own gets of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "shardmesh/base/error.h"
#include "shardmesh/optim/adam.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/optim/clip.h"
#include "shardmesh/optim/lion.h"
#include "shardmesh/optim/muon.h"
#include "shardmesh/optim/sgd.h"
#include "shardmesh/optim/testing/parameters.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::optim {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using ::testing::HasSubstr;
using testing::MakeParameter;
using testing::OnMesh;
using testing::SetGrad;
using testing::ValuesOf;

using Parameters = std::vector<nn::Parameter>;
using Values = std::vector<std::vector<double>>;

// On three ranks the last one has nothing of the second.
Parameters TwoMatrices(const DeviceMesh& mesh, Placement placement = Shard(0)) {
  const std::vector<Placement> placements(mesh.shape().num_axes(), placement);
  return {MakeParameter(mesh, "up.weight", placements, {7, 3}, /*seed=*/1),
          MakeParameter(mesh, "down.weight", placements, {2, 5}, /*seed=*/2)};
}

void Step(Optimizer& optimizer, uint64_t seed) {
  for (const nn::Parameter& parameter : optimizer.parameters()) SetGrad(parameter, ++seed * 17);
  optimizer.Step();
}

Values AllValues(const Parameters& parameters) {
  Values values;
  for (const nn::Parameter& parameter : parameters) values.push_back(ValuesOf(parameter));
  return values;
}

std::vector<std::string> NamesOf(const StateDict& state) {
  std::vector<std::string> names;
  for (const StateEntry& entry : state.entries()) names.push_back(entry.name);
  return names;
}

struct Maker {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(Parameters)> make;
};

// Those with state, each with options under which a first step differs from a later one.
std::vector<Maker> Makers() {
  return {
      {"AdamW", [](Parameters p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1}); }},
      {"amsgrad",
       [](Parameters p) {
         return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .amsgrad = true});
       }},
      {"Adam",
       [](Parameters p) {
         return std::make_unique<Adam>(
             p, AdamOptions{.lr = 0.1, .weight_decay = 0.1, .amsgrad = true});
       }},
      {"Sgd",
       [](Parameters p) {
         return std::make_unique<Sgd>(
             p, SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .dampening = 0.5});
       }},
      {"Lion", [](Parameters p) { return std::make_unique<Lion>(p, LionOptions{.lr = 0.1}); }},
      {"Muon", [](Parameters p) { return std::make_unique<Muon>(p, MuonOptions{.lr = 0.1}); }},
  };
}

// As a loader does: what the other has goes into what is here, or what is here is cleared.
void Load(const StateDict& source, StateDict target) {
  for (size_t i = 0; i < target.size(); ++i) {
    const StateEntry& entry = target.entries()[i];
    const StateEntry* found = source.Find(entry.name);
    const StateValue given = found == nullptr ? StateValue() : found->Get();
    if (found == nullptr || std::holds_alternative<UnsetTensor>(given)) {
      ASSERT_TRUE(entry.clear != nullptr) << entry.name;
      entry.clear();
      continue;
    }
    const auto* from = std::get_if<DTensor>(&given);
    if (from == nullptr) {
      target.Assign(i, given);
      continue;
    }
    const StateValue current = entry.Get();
    if (const auto* to = std::get_if<DTensor>(&current)) {
      Tensor local = to->local();
      ops::Copy(to->mesh().context(), Redistribute(*from, to->layout()).local(), local);
      continue;
    }
    const auto& place = std::get<UnsetTensor>(current);
    Tensor local = ops::Clone(place.mesh.context(), Redistribute(*from, place.layout).local());
    target.Assign(i, DTensor(place.mesh, place.layout, local));
  }
}

TEST(OptimizerState, IsNamedByParametersInPyTorchsSpelling) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    Parameters parameters = TwoMatrices(mesh);
    parameters[1].set_requires_grad(false);  // Its state may be that of an earlier run.
    AdamW optimizer(parameters, {.lr = 0.5, .amsgrad = true},
                    {{.parameters = "down.*", .change = nullptr}});
    StateDict state = optimizer.State();
    EXPECT_THAT(
        NamesOf(state),
        ElementsAre("state.up.weight.step", "state.up.weight.exp_avg", "state.up.weight.exp_avg_sq",
                    "state.up.weight.max_exp_avg_sq", "state.down.weight.step",
                    "state.down.weight.exp_avg", "state.down.weight.exp_avg_sq",
                    "state.down.weight.max_exp_avg_sq", "groups.0.lr", "groups.0.beta1",
                    "groups.0.beta2", "groups.0.eps", "groups.0.weight_decay", "groups.0.amsgrad",
                    "groups.1.lr", "groups.1.beta1", "groups.1.beta2", "groups.1.eps",
                    "groups.1.weight_decay", "groups.1.amsgrad"));
    EXPECT_EQ(state.Integer("state.up.weight.step"), 0);
    EXPECT_EQ(state.Number("groups.0.lr"), 0.5);
    const StateValue unset = state.Find("state.up.weight.exp_avg")->Get();
    const auto* place = std::get_if<UnsetTensor>(&unset);
    ASSERT_NE(place, nullptr);
    EXPECT_TRUE(place->layout == parameters[0].layout());
    EXPECT_EQ(place->dtype, DType::kF64);
    EXPECT_EQ(place->category, MemoryCategory::kOptimizer);
    // It is live: a step makes tensors of the entries, and shares their memory.
    SetGrad(parameters[0], 3);
    optimizer.Step();
    EXPECT_EQ(state.Integer("state.up.weight.step"), 1);
    const StateValue value = state.Find("state.up.weight.exp_avg")->Get();
    const auto* tensor = std::get_if<DTensor>(&value);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->local().storage(), optimizer.states()[0].Find("exp_avg").local().storage());
  });
}

TEST(OptimizerState, IsWhatALaterRunGoesOnFrom) {
  for (const MeshShape& shape : {MeshShape{{"dp", 1}}, {{"dp", 2}}, {{"dp", 3}}}) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      for (const Maker& maker : Makers()) {
        SCOPED_TRACE(maker.name);
        const Parameters first = TwoMatrices(mesh), second = TwoMatrices(mesh, Replicate());
        const auto before = maker.make(first), after = maker.make(second);
        for (int step = 0; step < 3; ++step) Step(*before, step);
        before->set_lr(0.05);
        for (size_t i = 0; i < first.size(); ++i) {
          nn::Parameter target = second[i];
          target.SetFull(first[i].Full());
        }
        Load(before->State(), after->State());
        EXPECT_EQ(after->lr(), 0.05);
        for (int step = 3; step < 5; ++step) {
          Step(*before, step);
          Step(*after, step);
        }
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_TRUE(shardmesh::testing::AreClose(ValuesOf(second[i]), ValuesOf(first[i]), 1e-13));
        }
        EXPECT_EQ(after->states()[0].step, 5);
      }
    });
  }
}

TEST(OptimizerState, IsForgottenWhereACheckpointLacksIt) {
  OnMesh({{"dp", 3}}, [](const DeviceMesh& mesh) {
    for (const Maker& maker : Makers()) {
      SCOPED_TRACE(maker.name);
      const Parameters used = TwoMatrices(mesh), fresh = TwoMatrices(mesh);
      const auto optimizer = maker.make(used), other = maker.make(fresh);
      for (int step = 0; step < 3; ++step) Step(*optimizer, step);
      for (size_t i = 0; i < used.size(); ++i) {
        nn::Parameter target = used[i];
        target.SetFull(fresh[i].Full());
      }
      Load(other->State(), optimizer->State());
      EXPECT_EQ(optimizer->states()[0].step, 0);
      Step(*optimizer, 7);
      Step(*other, 7);
      EXPECT_EQ(AllValues(used), AllValues(fresh));
    }
  });
}

TEST(OptimizerState, MayBeMadeBeforeTheFirstStep) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    for (const Maker& maker : Makers()) {
      SCOPED_TRACE(maker.name);
      const Parameters early = TwoMatrices(mesh), late = TwoMatrices(mesh);
      const auto optimizer = maker.make(early), other = maker.make(late);
      const std::shared_ptr<Allocator> memory = mesh.context().allocator();
      const int64_t before = memory->stats(MemoryCategory::kOptimizer).bytes;
      optimizer->CreateState();
      const int64_t made = memory->stats(MemoryCategory::kOptimizer).bytes;
      EXPECT_GT(made, before);
      Step(*optimizer, 5);
      EXPECT_EQ(memory->stats(MemoryCategory::kOptimizer).bytes, made);
      Step(*other, 5);
      EXPECT_EQ(AllValues(early), AllValues(late));
      // Loading in place into what was made is not a first step either.
      const Parameters third = TwoMatrices(mesh);
      const auto loaded = maker.make(third);
      loaded->CreateState();
      for (size_t i = 0; i < third.size(); ++i) {
        nn::Parameter target = third[i];
        target.SetFull(early[i].Full());
      }
      Load(optimizer->State(), loaded->State());
      Step(*loaded, 6);
      Step(*optimizer, 6);
      EXPECT_EQ(AllValues(third), AllValues(early));
    }
  });
}

TEST(OptimizerState, LeavesFrozenParametersAloneWhenItIsMade) {
  OnMesh({{"dp", 1}}, [](const DeviceMesh& mesh) {
    Parameters parameters = TwoMatrices(mesh);
    parameters[0].set_requires_grad(false);
    AdamW optimizer(parameters);
    optimizer.CreateState();
    EXPECT_FALSE(static_cast<bool>(optimizer.states()[0].Find("exp_avg")));
    EXPECT_TRUE(static_cast<bool>(optimizer.states()[1].Find("exp_avg")));
    EXPECT_FALSE(static_cast<bool>(optimizer.states()[1].Find("max_exp_avg_sq")));
    nn::Parameter unplaced({3}, DType::kF64, nn::Init::Constant(0));
    AdamW early({unplaced});
    EXPECT_THAT(ErrorOf([&] { early.CreateState(); }), HasSubstr("has no values yet"));
  });
}

TEST(OptimizerState, MovesAlongWithItsParameter) {
  for (const MeshShape& shape : {MeshShape{{"dp", 2}}, {{"dp", 3}}}) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      for (const Maker& maker : Makers()) {
        SCOPED_TRACE(maker.name);
        const Parameters moved = TwoMatrices(mesh), kept = TwoMatrices(mesh);
        const auto optimizer = maker.make(moved), other = maker.make(kept);
        Step(*optimizer, 0);
        Step(*other, 0);
        for (const Placement& placement : {Replicate(), Shard(1), Shard(0)}) {
          for (nn::Parameter parameter : moved) {
            parameter.Place(mesh, Layout::Make(mesh.shape(), {placement}, parameter.shape()));
          }
          EXPECT_THAT(ErrorOf([&] { Step(*optimizer, 1); }), HasSubstr("call Relayout() first"));
          optimizer->Relayout();
          Step(*optimizer, 1);
          Step(*other, 1);
        }
        for (size_t i = 0; i < moved.size(); ++i) {
          EXPECT_TRUE(shardmesh::testing::AreClose(ValuesOf(moved[i]), ValuesOf(kept[i]), 1e-13));
        }
      }
    });
  }
}

TEST(OptimizerState, NeedsNamesAndPlaces) {
  OnMesh({{"dp", 1}}, [](const DeviceMesh& mesh) {
    Parameters parameters = TwoMatrices(mesh);
    Sgd optimizer(parameters, {.momentum = 0.5});
    parameters[0].set_name("");
    EXPECT_THAT(ErrorOf([&] { optimizer.State(); }),
                HasSubstr("Sgd: parameter (unnamed) f64[7,3] [S(0)] @ [dp=1] has no name"));
    parameters[0].set_name("down.weight");
    EXPECT_THAT(ErrorOf([&] { optimizer.State(); }),
                HasSubstr("two parameters are called down.weight"));
    nn::Parameter meta({3}, DType::kF64, nn::Init::Constant(0));
    meta.set_name("norm.weight");
    EXPECT_THAT(ErrorOf([&] { Sgd({meta}).State(); }),
                HasSubstr("norm.weight f64[3] on meta has no mesh yet"));
  });
}

TEST(OptimizerState, RefusesWhatDoesNotFit) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Parameters parameters = TwoMatrices(mesh);
    AdamW optimizer(parameters);
    StateDict state = optimizer.State();
    const auto error_of = [&](const std::string& name, const StateValue& value) {
      return ErrorOf([&] { state.Find(name)->set(value); });
    };
    EXPECT_THAT(error_of("state.up.weight.step", int64_t{-1}), HasSubstr("is given -1"));
    EXPECT_THAT(error_of("state.up.weight.step", 1.0), HasSubstr("is given f64, expected i64"));
    EXPECT_THAT(error_of("groups.0.lr", -1.0), HasSubstr("lr is -1"));
    EXPECT_THAT(error_of("groups.0.lr", std::string("x")), HasSubstr("expected a number"));
    EXPECT_THAT(error_of("groups.0.amsgrad", int64_t{1}), HasSubstr("expected bool"));
    EXPECT_THAT(error_of("state.up.weight.exp_avg", parameters[1].data()),
                HasSubstr("exp_avg of parameter up.weight f64[7,3] [S(0)] @ [dp=2] is given "
                          "f64[2,5] [S(0)] @ [dp=2]"));
    EXPECT_THAT(error_of("state.up.weight.exp_avg", 1.0), HasSubstr("is given f64"));
    EXPECT_EQ(optimizer.lr(), 1e-3);
    state.Find("groups.0.lr")->set(int64_t{2});  // A number is a number.
    EXPECT_EQ(optimizer.lr(), 2);
  });
}

TEST(Optimizer, UpdatesNothingIfOneParameterIsRefused) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) {
    const Parameters parameters = TwoMatrices(mesh);
    AdamW optimizer(parameters);
    Step(optimizer, 0);
    nn::Parameter moved = parameters[1];
    moved.Place(mesh, Layout::Replicated(mesh.shape(), moved.shape()));
    const Values before = AllValues(parameters);
    EXPECT_THAT(ErrorOf([&] { Step(optimizer, 1); }), HasSubstr("down.weight"));
    EXPECT_EQ(AllValues(parameters), before);
    EXPECT_EQ(optimizer.states()[0].step, 1);
    EXPECT_TRUE(static_cast<bool>(parameters[0].data().grad()));
    optimizer.ZeroGrad();
    EXPECT_FALSE(static_cast<bool>(parameters[0].data().grad()));
    optimizer.Step();  // Nothing to do.
    EXPECT_EQ(optimizer.states()[0].step, 1);
  });
}

// FullyShard and autograd compare versions; ranks of two minds would wait for each other.
TEST(Optimizer, CountsAWriteAlsoOnARankWithoutElements) {
  OnMesh({{"dp", 3}}, [](const DeviceMesh& mesh) {
    for (const Maker& maker : Makers()) {
      SCOPED_TRACE(maker.name);
      const Parameters parameters = TwoMatrices(mesh);  // [2, 5] leaves nothing for the last rank.
      const auto optimizer = maker.make(parameters);
      for (int step = 0; step < 2; ++step) {
        std::vector<int64_t> before;
        for (const nn::Parameter& parameter : parameters)
          before.push_back(parameter.data().local().storage()->version());
        Step(*optimizer, step);
        for (size_t i = 0; i < parameters.size(); ++i)
          EXPECT_GT(parameters[i].data().local().storage()->version(), before[i]);
      }
    }
  });
}

// ---- an optimizer of one's own ------------------------------------------------------------------

struct HeavyBallOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  std::vector<OptionField> Fields() {
    return {{"lr", &lr}, {"momentum", &momentum, /*low=*/0, /*high=*/1}};
  }
};

// p -= lr b, where b = momentum b + g; asks for what it has not listed if `asks_for_more`.
class HeavyBall : public OptimizerOf<HeavyBallOptions> {
 public:
  explicit HeavyBall(Parameters parameters, const HeavyBallOptions& options = {},
                     const std::vector<ParameterGroup<HeavyBallOptions>>& groups = {})
      : OptimizerOf("HeavyBall", std::move(parameters), options, groups) {}
  bool asks_for_more = false;

 protected:
  std::vector<std::string> StateNames(const HeavyBallOptions&) const override { return {"ball"}; }
  void Update(const HeavyBallOptions& options, ParameterUpdate& update) override {
    if (asks_for_more) update.LocalState("more");
    Tensor& ball = update.LocalState("ball");
    ops::BinaryInto(update.context, BinaryOp::kMul, ball, options.momentum);
    ops::Accumulate(update.context, update.gradient, ball);
    ops::Accumulate(update.context, ops::Binary(update.context, BinaryOp::kMul, ball, -options.lr),
                    update.value);
  }
};

TEST(Optimizer, GivesAnUpdateOfOnesOwnEverythingElse) {
  OnMesh({{"dp", 3}}, [](const DeviceMesh& mesh) {
    const Parameters own = TwoMatrices(mesh), known = TwoMatrices(mesh);
    HeavyBall ball(own, {.lr = 0.25},
                   {{.parameters = "down.*", .change = [](auto& o) { o.lr = 0.5; }}});
    Sgd sgd(known, {.lr = 0.25, .momentum = 0.9},
            {{.parameters = "down.*", .change = [](auto& o) { o.lr = 0.5; }}});
    for (int step = 0; step < 3; ++step) {
      for (Optimizer* optimizer : {static_cast<Optimizer*>(&ball), static_cast<Optimizer*>(&sgd)}) {
        for (const nn::Parameter& parameter : optimizer->parameters()) SetGrad(parameter, step);
        ClipGradNorm(optimizer->parameters(), 1.0);
        optimizer->Step();
      }
    }
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(shardmesh::testing::AreClose(ValuesOf(own[i]), ValuesOf(known[i]), 1e-14));
    }
    const StateDict state = ball.State();
    EXPECT_THAT(NamesOf(state),
                ElementsAre("state.up.weight.step", "state.up.weight.ball",
                            "state.down.weight.step", "state.down.weight.ball", "groups.0.lr",
                            "groups.0.momentum", "groups.1.lr", "groups.1.momentum"));
    EXPECT_EQ(state.Integer("state.down.weight.step"), 3);
    EXPECT_EQ(state.Number("groups.1.lr"), 0.5);
    EXPECT_EQ(ErrorOf([&] { HeavyBall(own, {.momentum = 1}); }),
              "HeavyBall: momentum is 1, expected 0 to below 1");
    ball.asks_for_more = true;
    EXPECT_EQ(ErrorOf([&] { Step(ball, 1); }),
              "HeavyBall: an update asks for the state more, which StateNames does not list");
  });
}

}  // namespace
}  // namespace shardmesh::optim
