// SPDX-License-Identifier: Apache-2.0
//
// ValidateOp (testing/validate_op.h) over the cases of every op of the library.
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/dtensor/testing/op_cases.h"
#include "shardmesh/dtensor/testing/validate_op.h"

namespace shardmesh::testing {
namespace {

void ValidateAll(const std::vector<OpCase>& cases) {
  for (const OpCase& op_case : cases) ValidateOp(op_case);
}

TEST(ShardingRules, UnaryRowsAreThoseOfOneRank) { ValidateAll(ElementwiseCases(1)); }
TEST(ShardingRules, BinaryRowsAreThoseOfOneRank) { ValidateAll(ElementwiseCases(2)); }
TEST(ShardingRules, TernaryRowsAreThoseOfOneRank) { ValidateAll(ElementwiseCases(3)); }
TEST(ShardingRules, BinaryOpsAreThoseOfOneRank) { ValidateAll(BinaryCases()); }
TEST(ShardingRules, SelectionsAreThoseOfOneRank) { ValidateAll(SelectionCases()); }
TEST(ShardingRules, ReductionsAreThoseOfOneRank) { ValidateAll(ReductionCases()); }
TEST(ShardingRules, ProductsAreThoseOfOneRank) { ValidateAll(ProductCases()); }
TEST(ShardingRules, SoftmaxAndNormsAreThoseOfOneRank) { ValidateAll(RowCases()); }
TEST(ShardingRules, LookupsAreThoseOfOneRank) { ValidateAll(LookupCases()); }
TEST(ShardingRules, LossesAreThoseOfOneRank) { ValidateAll(LossCases()); }
TEST(ShardingRules, AttentionIsThatOfOneRank) { ValidateAll(AttentionCases()); }
TEST(ShardingRules, ShapeOpsAreThoseOfOneRank) { ValidateAll(ShapeCases()); }
TEST(ShardingRules, MoreReductionsAreThoseOfOneRank) { ValidateAll(MoreReductionCases()); }
TEST(ShardingRules, MoreLossesAreThoseOfOneRank) { ValidateAll(MoreLossCases()); }
TEST(ShardingRules, ScansAndOrderAreThoseOfOneRank) { ValidateAll(OrderCases()); }
TEST(ShardingRules, IndexingIsThatOfOneRank) { ValidateAll(IndexingCases()); }
TEST(ShardingRules, ViewsAreThoseOfOneRank) { ValidateAll(ViewCases()); }
TEST(ShardingRules, RearrangementsAreThoseOfOneRank) { ValidateAll(RearrangementCases()); }
TEST(ShardingRules, ContractionsAreThoseOfOneRank) { ValidateAll(ContractionCases()); }
TEST(ShardingRules, LinearAlgebraIsThatOfOneRank) { ValidateAll(LinalgCases()); }
TEST(ShardingRules, MatrixAndCrossProductsAreThoseOfOneRank) { ValidateAll(LinalgProductCases()); }
TEST(ShardingRules, WindowsAreThoseOfOneRank) { ValidateAll(WindowCases()); }
TEST(ShardingRules, ChannelNormsAreThoseOfOneRank) { ValidateAll(ChannelNormCases()); }

}  // namespace
}  // namespace shardmesh::testing
