// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/reshard_policy.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// x [6, 4] in rows and w [4, 10] in rows: either x moves or w does.
struct Operands {
  explicit Operands(const DeviceMesh& mesh)
      : x(Place(mesh, {Shard(0)}, Values({6, 4}, 1))),
        w(Place(mesh, {Shard(0)}, Values({4, 10}, 2))) {}
  DTensor x, w;
};

TEST(ExplicitPolicy, NamesTheOperandsAndEveryChoiceWithItsBytes) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    const ReshardPolicyScope scope(mesh, ReshardPolicy::kExplicit);
    const CommTrace trace(mesh);
    const absl::Status status = Catch([&] { MatMul(o.x, o.w); });
    EXPECT_TRUE(trace.events().empty());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    // Half of x or half of w is exchanged, in f64.
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("matmul: operands have to move first:\n  operand 0: "),
                      HasSubstr("operand 1: "), HasSubstr("[S(1)], [S(0)] -> [P(sum)]: 48"),
                      HasSubstr("[S(0)], [R] -> [S(0)]: 160"),
                      HasSubstr("[R], [S(1)] -> [S(1)]: 176"), HasSubstr("[R], [R] -> [R]: 256")));
  });
}

TEST(ExplicitPolicy, AllowsWhatWasAskedForAndWhatCostsNothing) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    const DTensor expected = MatMul(o.x, o.w);
    const DTensor whole = Place(mesh, {Replicate()}, Values({4, 10}, 2));
    const ReshardPolicyScope scope(mesh, ReshardPolicy::kExplicit);
    const DTensor y = MatMul(o.x, Redistribute(o.w, {Replicate()}));
    EXPECT_EQ(FullTensor(y).ToVector<double>(), FullTensor(expected).ToVector<double>());
    // A slice of what every rank has.
    const DTensor z = Add(o.w, whole);
    EXPECT_EQ(z.layout().placement(0), Shard(0));
  });
}

// What is cached without a policy is looked at all the same.
TEST(ExplicitPolicy, HoldsForCallsThatWereMadeBefore) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    MatMul(o.x, o.w);
    {
      const ReshardPolicyScope scope(mesh, ReshardPolicy::kExplicit);
      EXPECT_FALSE(Catch([&] { MatMul(o.x, o.w); }).ok());
      {
        const ReshardPolicyScope inner(mesh, ReshardPolicy::kAuto);
        MatMul(o.x, o.w);
      }
      EXPECT_FALSE(Catch([&] { MatMul(o.x, o.w); }).ok());
    }
    MatMul(o.x, o.w);
  });
}

TEST(ExplicitPolicy, LetsABackwardPassMoveWhatItsForwardAskedFor) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    Operands o(mesh);
    o.w.SetRequiresGrad();
    const DTensor y = Sum(MatMul(o.x, o.w));
    Backward(y);
    const std::vector<double> expected = FullTensor(o.w.grad()).ToVector<double>();
    o.w.ZeroGrad();
    const ReshardPolicyScope scope(mesh, ReshardPolicy::kExplicit);
    const DTensor z = Sum(MatMul(o.x, Redistribute(o.w, {Replicate()})));
    Backward(z);
    EXPECT_EQ(FullTensor(o.w.grad()).ToVector<double>(), expected);
  });
}

TEST(WarnPolicy, SaysItOnceOfEachKindOfCallAndMovesThem) {
  ::testing::internal::CaptureStderr();
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    const ReshardPolicyScope scope(mesh, ReshardPolicy::kWarn);
    const DTensor first = MatMul(o.x, o.w), second = MatMul(o.x, o.w);
    EXPECT_EQ(FullTensor(first).ToVector<double>(), FullTensor(second).ToVector<double>());
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("matmul: operands have to move first:"));
  EXPECT_EQ(text.find("matmul"), text.rfind("matmul")) << text;
  EXPECT_THAT(text, Not(HasSubstr("explicit")));
}

TEST(NoReshard, ForbidsEveryMove) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    const DTensor whole = Place(mesh, {Replicate()}, Values({4, 10}, 2));
    const NoReshard guard(mesh);
    EXPECT_FALSE(Catch([&] { MatMul(o.x, o.w); }).ok());
    EXPECT_FALSE(Catch([&] { Add(o.w, whole); }).ok());
    EXPECT_THAT(std::string(Catch([&] { Redistribute(o.w, {Replicate()}); }).message()),
                AllOf(HasSubstr("[4,10] [S(0)] @ [x=2] to [4,10] [R] @ [x=2]"),
                      HasSubstr("forbids every move")));
    MatMul(o.x, whole);
  });
}

// In a backward pass, too: of a Partial gradient.
TEST(NoReshard, ForbidsMovesOfABackwardPass) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const Operands o(mesh);
    const DTensor w = Place(mesh, {Replicate()}, Values({4, 10}, 2)).SetRequiresGrad();
    const DTensor y = MatMul(o.x, w);
    const DTensor ones = Place(mesh, {Shard(0)}, Values({6, 10}, 3));
    const absl::Status status = Catch([&] {
      const NoReshard guard(mesh);
      Backward(y, ones);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  });
}

}  // namespace
}  // namespace shardmesh::testing
