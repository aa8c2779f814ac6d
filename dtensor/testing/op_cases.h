// SPDX-License-Identifier: Apache-2.0
//
// Every op of dtensor/ops.h on small operands of prime, uneven, empty and size-one extents: what
// the proof of the sharding rules runs over.
#ifndef SHARDMESH_DTENSOR_TESTING_OP_CASES_H_
#define SHARDMESH_DTENSOR_TESTING_OP_CASES_H_

#include <vector>

#include "shardmesh/dtensor/testing/validate_op.h"

namespace shardmesh::testing {

// By family, in the order of ops.h.
std::vector<OpCase> ElementwiseCases(int arity);  ///< Rows of elementwise_ops.inc.
std::vector<OpCase> BinaryCases();
std::vector<OpCase> SelectionCases();  ///< Compare, Where, Cast, Dropout.
std::vector<OpCase> ReductionCases();
std::vector<OpCase> ProductCases();
std::vector<OpCase> RowCases();
std::vector<OpCase> LookupCases();
std::vector<OpCase> LossCases();
std::vector<OpCase> AttentionCases();
std::vector<OpCase> ShapeCases();
// Of dtensor/ops/.
std::vector<OpCase> MoreReductionCases();
std::vector<OpCase> MoreLossCases();
std::vector<OpCase> OrderCases();
std::vector<OpCase> IndexingCases();
std::vector<OpCase> ContractionCases();  ///< Einsum and ops/products.h (op_cases_products.cc).
// ops/linalg.h (op_cases_linalg.cc).
std::vector<OpCase> LinalgCases();         ///< For f32 and f64 only.
std::vector<OpCase> LinalgProductCases();  ///< Of any floating dtype.
// ops/shape.h (op_cases_shape.cc).
std::vector<OpCase> ViewCases();           ///< Views, parts, joining.
std::vector<OpCase> RearrangementCases();  ///< Elements in other places, triangles, diagonals.
// ops/windows.h and ops/norms.h (op_cases_windows.cc).
std::vector<OpCase> WindowCases();
std::vector<OpCase> ChannelNormCases();

}  // namespace shardmesh::testing

#endif  // SHARDMESH_DTENSOR_TESTING_OP_CASES_H_
