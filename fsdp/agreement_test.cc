// SPDX-License-Identifier: Apache-2.0
//
// Ranks that do not do the same are told so, each by name: other units, other parameters, other
// seeds, replicas that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/nn/replicas.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two experts of equal shape; each rank routes its rows to one of them.
class Experts : public nn::Module {
 public:
  Experts() {
    RegisterChild("a", a);
    RegisterChild("b", b);
  }
  nn::Linear a{kFeatures, kFeatures, {.dtype = DType::kF64}};
  nn::Linear b{kFeatures, kFeatures, {.dtype = DType::kF64}};
  bool uses_a = true;

 protected:
  Outputs Forward(const Inputs& x) override { return uses_a ? a(x[0]) : b(x[0]); }
};

std::string RunExperts(bool one_unit_each) {
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Experts experts;
    if (one_unit_each) {
      FullyShard(experts.a, mesh);
      FullyShard(experts.b, mesh);
    }
    FullyShard(experts, mesh);
    experts.Initialize(1);
    experts.uses_a = world.rank() == 0;
    const DTensor x = Full(mesh, {4, kFeatures}, DType::kF64, 0.5, {shardmesh::Shard(0)});
    Backward(Sum(experts(x)));
  });
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(Agreement, RanksThatUseDifferentParametersOfAUnitAreToldBoth) {
  EXPECT_THAT(RunExperts(/*one_unit_each=*/false),
              AllOf(HasSubstr("fsdp_reduce of the outermost module (a.weight)"),
                    HasSubstr("fsdp_reduce of the outermost module (b.weight)")));
}

// A layer that all ranks use, and one of two behind it.
class Branches : public nn::Module {
 public:
  Branches() {
    RegisterChild("trunk", trunk);
    RegisterChild("experts", experts);
  }
  nn::Linear trunk{kFeatures, kFeatures, {.dtype = DType::kF64}};
  Experts experts;

 protected:
  Outputs Forward(const Inputs& x) override { return experts(trunk(x[0])); }
};

// Neither the first parameter nor their number tells these ranks apart.
TEST(Agreement, RanksWhoseParametersDifferBehindAnEqualFirstAreTold) {
  const absl::Status status = RunRanks(2, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Branches branches;
    FullyShard(branches, mesh);
    branches.Initialize(1);
    branches.experts.uses_a = world.rank() == 0;
    const DTensor x = Full(mesh, {4, kFeatures}, DType::kF64, 0.5, {shardmesh::Shard(0)});
    Backward(Sum(branches(x)));
  });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("fsdp_reduce of the outermost module (trunk.weight and 1 more, "));
}

TEST(Agreement, RanksThatUseDifferentUnitsAreToldBoth) {
  EXPECT_THAT(RunExperts(/*one_unit_each=*/true),
              AllOf(HasSubstr("fsdp_gather of module a (a.weight)"),
                    HasSubstr("fsdp_gather of module b (b.weight)")));
}

TEST(Agreement, SeedsAreComparedWhenParametersAreInitialised) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
    Tower tower({5});
    FullyShard(tower, mesh);
    tower.Initialize(world.rank() == 2 ? 8 : 7);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 passes seed 7 and rank 2 seed 8"));
}

// One rank writes its own copy of a parameter.
std::string RunWithOneOtherReplica(const MeshShape& shape, const char* name) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()), [&](Communicator& world) {
        const DeviceMesh mesh = DeviceMesh::Create(world, shape);
        Tower tower({5, 3});
        for (auto& block : tower.blocks) FullyShard(*block, mesh);
        FullyShard(tower, mesh);
        tower.Initialize(1);
        for (const nn::Module::NamedParameter& entry : tower.NamedParameters()) {
          Tensor local = entry.parameter.data().local();
          if (entry.name == name && world.rank() == 0) local.mutable_data<double>()[0] += 0x1p-30;
        }
        const DTensor x = Full(mesh, {4, kFeatures}, DType::kF64, 0.5,
                               std::vector<Placement>(shape.num_axes(), Replicate()));
        tower(x);
      });
  return std::string(status.message());
}

TEST(Agreement, ReplicasThatDifferAreNamedAtTheFirstForward) {
  EXPECT_THAT(RunWithOneOtherReplica({{"dp_replicate", 2}, {"dp", 2}}, "block1.down.weight"),
              AllOf(HasSubstr("parameter block1.down.weight f64[7,3] [R, S(0)]"),
                    HasSubstr("has other values on rank 2 than on rank 0")));
  EXPECT_THAT(RunWithOneOtherReplica({{"dp", 2}, {"tp", 2}}, "head.bias"),
              AllOf(HasSubstr("parameter head.bias"), HasSubstr("on rank 1 than on rank 0")));
}

// All ranks of the group find the difference, so a program may catch it; it is not forgotten.
TEST(Agreement, ReplicasThatDifferAreRefusedUntilTheyAgree) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp_replicate", 2}, {"dp", 1}});
    Tower tower({5});
    FullyShard(tower, mesh);
    tower.Initialize(1);
    Tensor local = tower.head.weight().data().local();
    double* const value = local.mutable_data<double>();
    const double original = value[0];
    value[0] += world.rank();
    const DTensor x = Full(mesh, {4, kFeatures}, DType::kF64, 0.5, {Replicate(), Replicate()});
    for (int i = 0; i < 2; ++i) {
      const absl::Status refused = Catch([&] { tower(x); });
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << i << ": " << refused;
    }
    value[0] = original;
    tower(x);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Agreement, ReplicasAreComparedOnce) {
  OnEachMesh({}, [](Lab& lab) {
    const bool has_replicas = lab.mesh.shape().Has("tp") || lab.mesh.shape().Has("dp_replicate");
    for (int i = 0; i < 2; ++i) {
      CommTrace trace(lab.mesh);
      lab.Loss(0);
      EXPECT_EQ(trace.Count("", "all_gather", "check_replicas"), has_replicas && i == 0 ? 1 : 0);
    }
  });
}

class WithBuffer : public nn::Module {
 public:
  nn::Buffer offset = RegisterBuffer("offset", {3}, DType::kF64, nn::Init::Constant(1));

 protected:
  Outputs Forward(const Inputs& x) override { return Add(x[0], offset.data()); }
};

TEST(CheckReplicas, ComparesBuffersToo) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    WithBuffer module;
    module.PlaceReplicated(mesh);
    module.Initialize(1);
    nn::CheckReplicas(module);
    module.offset.data().local().mutable_data<double>()[2] += world.rank();
    const absl::Status refused = Catch([&] { nn::CheckReplicas(module); });
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("offset f64[3]"), HasSubstr("on rank 1 than on rank 0")));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckReplicas, FindsNothingWhereAllAgree) {
  OnEachMesh({}, [](Lab& lab) {
    nn::CheckReplicas(*lab.tower);
    Backward(lab.Loss(0));
    SgdStep(*lab.tower, 0.1);
    CommTrace trace(lab.mesh);
    nn::CheckReplicas(*lab.tower);
    // One all-gather a set of axes along which something is replicated.
    const bool has_replicas = lab.mesh.shape().Has("tp") || lab.mesh.shape().Has("dp_replicate");
    EXPECT_EQ(trace.Count("", "all_gather"), has_replicas ? 1 : 0);
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
