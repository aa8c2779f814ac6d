// SPDX-License-Identifier: Apache-2.0
//
// A view of a tensor's elements in row-major order, from which backends copy ranges to and from
// contiguous memory or other tensors, strided or not. Holds plain pointers, so any thread may use
// it.
#ifndef SHARDMESH_COMM_INTERNAL_STRIDED_VIEW_H_
#define SHARDMESH_COMM_INTERNAL_STRIDED_VIEW_H_

#include <cstdint>

#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// Shape and strides with adjacent dims merged where they follow one another in memory.
class StridedView {
 public:
  StridedView() = default;
  explicit StridedView(const Tensor& tensor);

  int64_t elements() const { return elements_; }
  bool IsContiguous() const { return rank_ == 0 || (rank_ == 1 && strides_[0] == element_bytes_); }
  /// Of element `index`; only if contiguous.
  char* At(int64_t index) const { return data_ + index * element_bytes_; }

  /// Copies elements [begin, begin + count) to contiguous memory.
  void Pack(int64_t begin, int64_t count, void* out) const;
  /// Copies contiguous memory to elements [begin, begin + count).
  void Unpack(const void* in, int64_t begin, int64_t count) const;

  /// Copies elements [begin, begin + count) of `from` to the same elements of `to`. Both have the
  /// same number and size of elements. Does nothing if they are the same view.
  static void Copy(const StridedView& from, const StridedView& to, int64_t begin, int64_t count);

 private:
  // Calls fn(first, run) for the stretches of the last dim that make up the range, in order.
  template <typename Fn>
  void ForEachRun(int64_t begin, int64_t count, const Fn& fn) const;
  bool IsSameAs(const StridedView& other) const;

  char* data_ = nullptr;
  int64_t elements_ = 0;
  int64_t element_bytes_ = 1;
  int rank_ = 0;
  int64_t shape_[Dims::kMaxRank];
  int64_t strides_[Dims::kMaxRank];  // In bytes.
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_STRIDED_VIEW_H_
