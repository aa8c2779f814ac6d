// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/box_runs.h"

namespace shardmesh::internal {

BoxRuns::BoxRuns(const Dims& shape, const Box& box) {
  const Dims extents = box.Extents();
  if (box.IsEmpty()) {
    done_ = true;
    run_elements_ = 0;
    return;
  }
  // A run reaches over the trailing dims that the box covers whole, and over the one before them.
  int outer_dims = shape.size();
  while (outer_dims > 0) {
    --outer_dims;
    run_elements_ *= extents[outer_dims];
    if (extents[outer_dims] != shape[outer_dims]) break;
  }
  int64_t stride = 1;
  Dims strides = Dims::Filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    strides[d] = stride;
    next_ += box.begin[d] * stride;
    stride *= shape[d];
  }
  for (int d = 0; d < outer_dims; ++d) {
    extents_.push_back(extents[d]);
    strides_.push_back(strides[d]);
    position_.push_back(0);
  }
}

std::optional<int64_t> BoxRuns::Next() {
  if (done_) return std::nullopt;
  const int64_t first = next_;
  int d = extents_.size() - 1;
  for (; d >= 0; --d) {
    next_ += strides_[d];
    if (++position_[d] < extents_[d]) break;
    next_ -= strides_[d] * extents_[d];
    position_[d] = 0;
  }
  done_ = d < 0;
  return first;
}

}  // namespace shardmesh::internal
