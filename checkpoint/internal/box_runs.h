// SPDX-License-Identifier: Apache-2.0
//
// The position of a box in a row-major tensor, as the fewest contiguous runs of elements that cover
// it. All runs have the same length.
//
//   BoxRuns runs(/*shape=*/{3, 5, 7}, box);                 // box = [0:3, 1:3, 0:7]: runs of 14
//   while (auto first = runs.Next()) Use(*first, runs.run_elements());   // 7, 42, 77
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_BOX_RUNS_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_BOX_RUNS_H_

#include <cstdint>
#include <optional>

#include "shardmesh/base/dims.h"
#include "shardmesh/placement/box.h"

namespace shardmesh::internal {

/// An iterator over the runs, in ascending order.
class BoxRuns {
 public:
  /// `box` lies within `shape`; an empty one has no runs.
  BoxRuns(const Dims& shape, const Box& box);

  int64_t run_elements() const { return run_elements_; }
  /// The row-major index of the next run's first element, or nothing after the last run.
  std::optional<int64_t> Next();

 private:
  Dims extents_;  // Of the dims that the runs do not span.
  Dims strides_;
  Dims position_;
  int64_t run_elements_ = 1;
  int64_t next_ = 0;
  bool done_ = false;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_BOX_RUNS_H_
