// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/backward_region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Events = std::vector<std::string>;

class Noted : public BackwardRegion {
 public:
  Noted(std::string name, Events& events) : name_(std::move(name)), events_(events) {}
  void Expect() override { events_.push_back("expect " + name_); }
  void Enter(BackwardRegion* next) override {
    events_.push_back(absl::StrCat("enter ", name_, ", then ",
                                   next == nullptr ? "none" : static_cast<Noted*>(next)->name_));
  }
  void Leave() override { events_.push_back("leave " + name_); }

 private:
  std::string name_;
  Events& events_;
};

// A hook that notes when the gradient of `x` has come.
DTensor NoteGradient(DTensor x, std::string name, Events& events) {
  x.RegisterGradHook([name, &events](const DTensor& grad) {
    events.push_back(name);
    return grad;
  });
  return x;
}

const MeshShape kOne = {{"dp", 1}};

DTensor Leaf(const DeviceMesh& mesh) {
  return Place(mesh, {Replicate()}, Values({3}, 1)).SetRequiresGrad();
}

TEST(BackwardRegion, IsEnteredBeforeItsLastOpAndLeftAfterItsFirst) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    Events events;
    const DTensor leaf = Leaf(mesh);
    DTensor y = NoteGradient(Exp(leaf), "before", events);
    {
      BackwardRegionScope a(mesh, std::make_shared<Noted>("a", events));
      y = NoteGradient(Tanh(y), "a1", events);
      y = NoteGradient(Tanh(y), "a2", events);
    }
    y = NoteGradient(Tanh(y), "between", events);
    {
      BackwardRegionScope b(mesh, std::make_shared<Noted>("b", events));
      y = NoteGradient(Tanh(y), "b1", events);
    }
    Backward(Sum(y));
    EXPECT_THAT(events,
                ElementsAre("expect b", "expect a", "enter b, then a", "b1", "leave b", "between",
                            "enter a, then none", "a2", "a1", "leave a", "before"));
  });
}

TEST(BackwardRegion, OuterRegionsAreEnteredFirstAndLeftLast) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    Events events;
    const DTensor leaf = Leaf(mesh);
    DTensor y = leaf;
    {
      BackwardRegionScope outer(mesh, std::make_shared<Noted>("outer", events));
      for (const char* name : {"first", "second"}) {
        BackwardRegionScope inner(mesh, std::make_shared<Noted>(name, events));
        y = NoteGradient(Tanh(y), name, events);
      }
    }
    Backward(Sum(y));
    EXPECT_THAT(events, ElementsAre("expect outer", "expect second", "expect first",
                                    "enter outer, then second", "enter second, then first",
                                    "second", "leave second", "enter first, then none", "first",
                                    "leave first", "leave outer"));
  });
}

// A region of which only a part that needs no gradient, or that the loss does not depend on, was
// recorded takes no part.
TEST(BackwardRegion, WithoutOpsInTheGraphIsNotEntered) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    Events events;
    const DTensor leaf = Leaf(mesh), frozen = leaf.Detach();
    DTensor y;
    const auto without = std::make_shared<Noted>("without", events);
    {
      BackwardRegionScope scope(mesh, without);
      Exp(frozen);
    }
    EXPECT_FALSE(without->has_ops());
    {
      BackwardRegionScope scope(mesh, std::make_shared<Noted>("unused", events));
      y = Exp(leaf);
    }
    Backward(Sum(Tanh(leaf)));
    EXPECT_THAT(events, IsEmpty());
  });
}

TEST(BackwardRegion, LivesAsLongAsItsOps) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    Events events;
    std::weak_ptr<Noted> watch;
    DTensor y;
    {
      const auto region = std::make_shared<Noted>("a", events);
      watch = region;
      BackwardRegionScope scope(mesh, region);
      y = Exp(Leaf(mesh));
    }
    EXPECT_FALSE(watch.expired());
    y = DTensor();
    EXPECT_TRUE(watch.expired());
  });
}

class Participant : public BackwardParticipant {
 public:
  Participant(DTensor leaf, Events& events) : leaf_(std::move(leaf)), events_(events) {}
  void Finish(BackwardRun& run) override {
    EXPECT_FALSE(leaf_.grad());
    events_.push_back("finish");
    run.Deliver(leaf_, Full(leaf_.mesh(), leaf_.shape(), leaf_.dtype(), 10, {Replicate()}));
    if (fails) throw std::runtime_error("in Finish");
  }
  void Succeeded() override { events_.push_back(leaf_.grad() ? "succeeded" : "no gradient"); }
  void Failed() override { events_.push_back(leaf_.grad() ? "gradient" : "failed"); }
  bool fails = false;

 private:
  DTensor leaf_;
  Events& events_;
};

TEST(BackwardParticipant, DeliversToLeavesBeforeTheirHooksRun) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    for (const bool fails : {false, true}) {
      Events events;
      const DTensor leaf = Leaf(mesh);
      DTensor(leaf).RegisterGradHook([&](const DTensor& grad) {
        events.push_back(absl::StrCat("hook ", grad.local().ToVector<double>()[0]));
        return grad;
      });
      const auto participant = std::make_shared<Participant>(leaf, events);
      participant->fails = fails;
      const DTensor y = WithBackwardCallback(Mul(leaf, 2.0), [&] {
        JoinBackward(mesh, participant);
        JoinBackward(mesh, participant);  // Once, however often it joins.
      });
      if (fails) {
        EXPECT_THROW(Backward(Sum(y)), std::runtime_error);
        EXPECT_THAT(events, ElementsAre("finish", "failed"));
      } else {
        Backward(Sum(y));
        EXPECT_THAT(events, ElementsAre("finish", "hook 12", "succeeded"));
        EXPECT_EQ(leaf.grad().local().ToVector<double>(), std::vector<double>(3, 12));
      }
    }
    Events events;
    const auto late = std::make_shared<Participant>(Leaf(mesh), events);
    EXPECT_THAT(ErrorOf([&] { JoinBackward(mesh, late); }), HasSubstr("no Backward is running"));
  });
}

}  // namespace
}  // namespace shardmesh::testing
