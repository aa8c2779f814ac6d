// SPDX-License-Identifier: Apache-2.0
//
// Element-wise reduction of several tensors in the order of the sources. It defines what a reducing
// collective computes on every backend.
#ifndef SHARDMESH_COMM_INTERNAL_REDUCTION_H_
#define SHARDMESH_COMM_INTERNAL_REDUCTION_H_

#include <cstdint>
#include <span>

#include "shardmesh/base/reduce_op.h"
#include "shardmesh/comm/internal/strided_view.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh::internal {

/// Elements [begin, begin + count) of every target become
///     round(op(..op(op(s_0, s_1), s_2).., s_last))
/// in Accumulator<dtype>, rounded to the dtype once; integers wrap around; min and max propagate
/// NaN. A target may be the same view as any of the sources. There is at least one source. `dtype`
/// is not bool.
void Reduce(ReduceOp op, DType dtype, std::span<const StridedView> sources,
            std::span<const StridedView> targets, int64_t begin, int64_t count);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_REDUCTION_H_
