// SPDX-License-Identifier: Apache-2.0
//
// What is gathered ahead, as lists say: the order of gathers, and the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The meshes on which a gather communicates.
void OnMeshesOfSeveralShards(const std::function<void(Lab&)>& program) {
  for (const MeshShape& shape :
       {MeshShape{{"dp", 2}}, MeshShape{{"dp", 3}}, MeshShape{{"dp", 4}},
        MeshShape{{"dp", 2}, {"tp", 2}}, MeshShape{{"dp_replicate", 2}, {"dp", 2}}}) {
    OnLabMesh({shape}, {}, program);
  }
}

// The units that `trace` has seen gathered, in order, by the bytes of their shards: "r", "0", ..
std::vector<std::string> Gathers(const Lab& lab, const CommTrace& trace) {
  const auto sent = [&](nn::Module& module) {
    int64_t own = 0;
    for (const nn::Parameter& parameter : module.Parameters())
      own += parameter.data().local().Bytes();
    return own * (lab.mesh.Size("dp") - 1);
  };
  std::vector<std::string> names;
  for (const CommTrace::Event& event : trace.events()) {
    if (event.op != "fsdp_gather") continue;
    std::string name = "?";
    if (event.bytes == sent(lab.tower->head)) name = "r";
    for (int i = 0; i < 3; ++i) {
      if (event.bytes == sent(lab.block(i))) name = std::to_string(i);
    }
    names.push_back(name);
  }
  return names;
}

int64_t Gathered(const Lab& lab) { return lab.Bytes(MemoryCategory::kUnshardedParameters); }
int64_t Of(const Lab& lab, int block) { return GatheredBytes(lab, lab.block(block)); }
int64_t OfRoot(const Lab& lab) { return GatheredBytes(lab, lab.tower->head); }

void Release(Lab& lab) {
  for (const nn::Parameter& parameter : lab.tower->Parameters())
    DTensor(parameter.data()).ZeroGrad();
}

TEST(ForwardPrefetch, GathersWhatTheListSaysInItsOrder) {
  OnMeshesOfSeveralShards([](Lab& lab) {
    SetForwardPrefetch(*lab.tower, {});
    SetForwardPrefetch(lab.block(0), {&lab.block(2), &lab.block(1)});
    for (int step = 0; step < 3; ++step) {
      CommTrace trace(lab.mesh);
      std::vector<std::string> in_block0;
      int64_t memory = 0;
      lab.block(0).in_forward = [&] {
        in_block0 = Gathers(lab, trace);
        memory = Gathered(lab);
      };
      const DTensor loss = lab.Loss(step);
      // From the first forward on.
      EXPECT_THAT(in_block0, ElementsAre("r", "0", "2", "1"));
      EXPECT_EQ(memory, OfRoot(lab) + Of(lab, 0) + Of(lab, 1) + Of(lab, 2));
      EXPECT_THAT(Gathers(lab, trace), ElementsAre("r", "0", "2", "1"));
      EXPECT_EQ(Gathered(lab), OfRoot(lab));
      Backward(loss);
      EXPECT_EQ(Gathered(lab), 0);
      Release(lab);
    }
  });
}

TEST(ForwardPrefetch, OfAnEmptyListIsNone) {
  OnMeshesOfSeveralShards([](Lab& lab) {
    SetForwardPrefetch(*lab.tower, {});
    for (auto& block : lab.tower->blocks) SetForwardPrefetch(*block, {});
    Backward(lab.Loss(0));
    for (int i = 0; i < 3; ++i) {
      lab.block(i).in_forward = [&lab, i] { EXPECT_EQ(Gathered(lab), OfRoot(lab) + Of(lab, i)); };
    }
    lab.Loss(1);
    ResetPrefetch(lab.block(0));
    lab.block(0).in_forward = [&] {
      EXPECT_EQ(Gathered(lab), OfRoot(lab) + Of(lab, 0) + Of(lab, 1)) << "as predicted again";
    };
    lab.Loss(2);
  });
}

TEST(ForwardPrefetch, NotUsedIsReleasedAtTheEndOfTheOutermostCall) {
  OnMeshesOfSeveralShards([](Lab& lab) {
    SetForwardPrefetch(lab.block(0), {&lab.block(2), &lab.block(1)});
    for (const std::vector<int>& route : {std::vector<int>{0}, {0, 1}, {1, 0}, {0, 0}}) {
      lab.tower->route = route;
      CommTrace trace(lab.mesh);
      {
        const NoGrad no_grad(lab.mesh);
        lab.Loss(0);
      }
      EXPECT_EQ(Gathered(lab), 0);
      const DTensor loss = lab.Loss(1);
      EXPECT_EQ(Gathered(lab), OfRoot(lab));
      Backward(loss);
      EXPECT_EQ(Gathered(lab), 0);
    }
    lab.tower->route = {0, 1, 2};
    lab.block(1).in_forward = [] { throw std::runtime_error("a bad batch"); };
    EXPECT_THROW(lab.Loss(0), std::runtime_error);
    EXPECT_EQ(Gathered(lab), 0);
  });
}

// What the list of one unit names may be gathered as predicted already, or kept.
TEST(ForwardPrefetch, OfWhatIsGatheredAlready) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    for (int step = 0; step < 4; ++step) {
      if (lab.is_sharded && step == 1) {
        SetForwardPrefetch(lab.block(1), {&lab.block(1), lab.tower.get(), &lab.block(2)});
        Unshard(lab.block(2));
      }
      lab.tower->route = {step % 2, 1, 2, 1};
      const DTensor loss = lab.Loss(step);
      EXPECT_EQ(Gathered(lab), lab.is_sharded ? OfRoot(lab) : 0) << "what was kept before is kept";
      Backward(loss);
      seen.Gradients(lab);
      EXPECT_EQ(Gathered(lab), 0);
      SgdStep(*lab.tower, 0.1);
    }
  });
}

TEST(BackwardPrefetch, GathersWhatTheListSaysInItsOrder) {
  OnMeshesOfSeveralShards([](Lab& lab) {
    SetBackwardPrefetch(*lab.tower, {});
    SetBackwardPrefetch(lab.block(2), {&lab.block(0), &lab.block(1)});
    Allocator& memory = *lab.mesh.context().allocator();
    for (int step = 0; step < 3; ++step) {
      const DTensor loss = lab.Loss(step);
      CommTrace trace(lab.mesh);
      memory.ResetPeaks();
      Backward(loss);
      EXPECT_THAT(Gathers(lab, trace), ElementsAre("2", "0", "1"));
      EXPECT_EQ(lab.Peak(MemoryCategory::kUnshardedParameters),
                OfRoot(lab) + Of(lab, 0) + Of(lab, 1) + Of(lab, 2));
      EXPECT_EQ(Gathered(lab), 0);
      Release(lab);
    }
    // Nothing ahead: one at a time.
    for (auto& block : lab.tower->blocks) SetBackwardPrefetch(*block, {});
    const DTensor loss = lab.Loss(3);
    memory.ResetPeaks();
    Backward(loss);
    EXPECT_EQ(lab.Peak(MemoryCategory::kUnshardedParameters),
              OfRoot(lab) + std::max({Of(lab, 0), Of(lab, 1), Of(lab, 2)}));
  });
}

TEST(BackwardPrefetch, NotUsedIsReleasedAtTheEndOfBackward) {
  OnMeshesOfSeveralShards([](Lab& lab) {
    Lab other;
    other.mesh = lab.mesh;
    other.tower = std::make_unique<Tower>(std::vector<int64_t>{5});
    FullyShard(*other.tower->blocks[0], lab.mesh);
    FullyShard(*other.tower, lab.mesh);
    other.tower->Initialize(2);
    SetBackwardPrefetch(lab.block(2), {&lab.block(1), &other.block(0)});
    lab.tower->route = {0, 2};
    Backward(lab.Loss(0));
    EXPECT_EQ(GetUnitStats(other.block(0))[0].gathers, 0) << "has run no forward yet";
    Backward(other.Loss(0));
    const int64_t gathers = GetUnitStats(other.block(0))[0].gathers;
    Backward(lab.Loss(0));
    EXPECT_EQ(GetUnitStats(other.block(0))[0].gathers, gathers + 1);
    EXPECT_EQ(Gathered(lab), 0);
    // After block2 has gathered ahead, before block0.
    const DTensor x =
        WithBackwardCallback(lab.block(0)(lab.Batch(0)), [] { throw std::runtime_error("bad"); });
    const DTensor loss = Sum(lab.block(2)(x));
    EXPECT_THROW(Backward(loss), std::runtime_error);
    EXPECT_EQ(Gathered(lab), 0);
  });
}

TEST(Prefetch, ComputesTheSameNumbers) {
  ExpectSameOnEachMesh([](Lab& lab, Numbers& seen) {
    if (lab.is_sharded) {
      SetForwardPrefetch(*lab.tower, {&lab.block(0), &lab.block(1)});
      SetForwardPrefetch(lab.block(0), {&lab.block(2)});
      SetBackwardPrefetch(*lab.tower, {&lab.block(2), &lab.block(1)});
      SetBackwardPrefetch(lab.block(1), {});
    }
    const std::vector<int> routes[] = {{0, 1, 2}, {2, 1, 0}, {1}, {0, 0, 2}, {0, 1, 2}};
    for (int step = 0; step < 5; ++step) {
      lab.tower->route = routes[step];
      const DTensor loss = lab.Loss(step);
      Backward(loss);
      seen.Add("loss", Item(loss));
      seen.Gradients(lab);
      SgdStep(*lab.tower, 0.1);
      EXPECT_EQ(Gathered(lab), 0);
    }
  });
}

TEST(Prefetch, OfWhatIsNoUnitIsRefused) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    nn::Module& head = lab.tower->head;
    const auto message = [](const std::function<void()>& fn) {
      return std::string(Catch(fn).message());
    };
    EXPECT_EQ(message([&] { SetForwardPrefetch(head, {}); }),
              "SetForwardPrefetch: head is not a FullyShard unit");
    EXPECT_EQ(message([&] {
                SetBackwardPrefetch(lab.block(0), {&lab.block(1), &head});
              }),
              "SetBackwardPrefetch: head is not a FullyShard unit");
    EXPECT_THAT(message([&] {
                  SetBackwardPrefetch(lab.block(0), {&lab.block(1), nullptr});
                }),
                HasSubstr("SetBackwardPrefetch: module 1 of 2 is null"));
    EXPECT_THAT(message([&] { ResetPrefetch(head); }), HasSubstr("ResetPrefetch: head"));
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
