// SPDX-License-Identifier: Apache-2.0
//
// Ops that take the elements of one dim in another order, with gaps and repetitions, written as
// runs: flips, rolls, pads, repetitions and windows are one kernel and one backward.
//
//   constexpr Op kFlip{"flip"};
//   DTensor y = TakeRuns(kFlip, x, dim, {{/*out=*/0, /*in=*/n - 1, /*step=*/-1, /*length=*/n}}, n);
#ifndef SHARDMESH_DTENSOR_INTERNAL_INDEX_RUNS_H_
#define SHARDMESH_DTENSOR_INTERNAL_INDEX_RUNS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "shardmesh/dtensor/dispatch.h"

namespace shardmesh::internal {

/// Index out + k of the result is index in + k * step of the operand, for k in [0, length).
struct IndexRun {
  int64_t out, in, step, length;
};

/// The runs of a map from indices of the result to those of the operand; kGap is in no run.
inline constexpr int64_t kGap = -1;
std::vector<IndexRun> RunsOf(std::span<const int64_t> map);

/// x with `dim` of extent `extent` made up of `runs`; the rest is `fill`. Linear in x if `fill` is
/// 0. The dim is gathered if it is sharded; the others stay.
DTensor TakeRuns(const Op& op, const DTensor& x, int dim, const std::vector<IndexRun>& runs,
                 int64_t extent, double fill = 0);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_INDEX_RUNS_H_
