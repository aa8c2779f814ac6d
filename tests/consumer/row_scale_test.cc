// SPDX-License-Identifier: Apache-2.0
#include "row_scale.h"

#include "shardmesh/dtensor/testing/validate_op.h"

namespace consumer {
namespace {

using shardmesh::testing::Values;

// In every combination of layouts, forward and backward.
SHARDMESH_VALIDATE_OP(RowScale, OfUnevenRows,
                      {"row_scale",
                       {Values({5, 3}, 1), Values({5}, 2)},
                       [](std::span<const shardmesh::DTensor> o) { return RowScale(o[0], o[1]); }});

}  // namespace
}  // namespace consumer
