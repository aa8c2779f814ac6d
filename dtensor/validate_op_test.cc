// SPDX-License-Identifier: Apache-2.0
//
// That the proof of sharding rules finds a wrong one, and says where.
#include "shardmesh/dtensor/testing/validate_op.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Operands = std::span<const DTensor>;

// x [n, d] times s [n], with a `rule` that is right or wrong.
DTensor RowScale(const Op& op, const char* rule, const DTensor& x, const DTensor& s) {
  OpCall call(op, {&x, &s});
  call.Decide([&] { return OpRule{Rule::Parse(rule), {x.shape()}}; });
  const Tensor column = call.local(1).Unsqueeze(1).Expand(call.local(0).shape());
  DTensor y = call.Result(ops::Binary(call.context(), BinaryOp::kMul, call.local(0), column));
  call.Record({&y}, [sx = Saved(call.input(0)), ss = Saved(call.input(1))](
                        std::span<const DTensor> grads, Gradients& out) {
    const DTensor scale = Reshape(ss.Get("row_scale"), {grads[0].dim(0), 1});
    if (out.Needs(0)) out.Set(0, Mul(grads[0], scale));
    if (out.Needs(1)) out.Set(1, Sum(Mul(grads[0], sx.Get("row_scale")), {1}));
  });
  return y;
}

// The failures of ValidateOp, as one text.
std::string FailuresOf(const char* rule) {
  const Op op{"row_scale"};
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    ValidateOp({"row_scale", {Values({5, 3}, 1), Values({5}, 2)}, [&](Operands o) {
                  return RowScale(op, rule, o[0], o[1]);
                }});
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i) text += results.GetTestPartResult(i).message();
  return text;
}

TEST(ValidateOp, PassesARightRule) {
  EXPECT_EQ(FailuresOf("n d, n -> n d; linear 0; linear 1"), "");
}

// It is linear in either operand, not in both together.
TEST(ValidateOp, NamesOpLayoutsAndMeshOfAWrongRule) {
  EXPECT_THAT(FailuresOf("n d, n -> n d; linear 0 1"),
              AllOf(HasSubstr("row_scale f64[5,3] f64[5] on [x=2]: operands [P(sum)] ["),
                    HasSubstr("result")));
}

// The result is n d, but the rule says that each rank makes a summand.
TEST(ValidateOp, NamesARuleThatCallsPiecesSummands) {
  EXPECT_THAT(FailuresOf("n d, n -> . d"), HasSubstr("row_scale"));
}

SHARDMESH_VALIDATE_OP(ValidateOpMacro, TakesACase,
                      {"mul", {Values({5, 3}, 1), Values({3}, 2)}, [](Operands o) {
                         return Mul(o[0], o[1]);
                       }});

}  // namespace
}  // namespace shardmesh::testing
