// SPDX-License-Identifier: Apache-2.0
//
// In which order the dims of a tensor lie in memory, known alike on every rank: local strides are
// ambiguous where a box is empty or has an extent of 1, so nothing is decided by them.
#ifndef SHARDMESH_DTENSOR_INTERNAL_MEMORY_ORDER_H_
#define SHARDMESH_DTENSOR_INTERNAL_MEMORY_ORDER_H_

#include <cstdint>
#include <span>

#include "shardmesh/base/dims.h"

namespace shardmesh::internal {

/// Value type.
class MemoryOrder {
 public:
  /// Contiguous, last dim innermost.
  static constexpr MemoryOrder RowMajor() { return MemoryOrder(0xfedcba9876543210u); }
  /// There may be gaps, or ranks may differ.
  static constexpr MemoryOrder Unknown() { return MemoryOrder(0); }

  bool IsRowMajor() const { return *this == RowMajor(); }
  /// Whether `dim` is the outermost in memory, so that a slice of it is contiguous.
  bool IsOutermost(int dim) const { return *this != Unknown() && Position(dim) == 0; }
  /// Of the tensor with these dims swapped.
  MemoryOrder Transposed(int dim0, int dim1) const {
    const uint64_t difference = Position(dim0) ^ Position(dim1);
    return MemoryOrder(positions_ ^ (difference << (4 * dim0)) ^
                       (dim0 == dim1 ? 0 : difference << (4 * dim1)));
  }

  /// Of the tensor whose dim i is dim dims[i] of this one.
  MemoryOrder Permuted(std::span<const int> dims) const {
    MemoryOrder result = *this;
    if (*this == Unknown()) return result;
    for (size_t i = 0; i < dims.size(); ++i) {
      result.positions_ &= ~(uint64_t{15} << (4 * i));
      result.positions_ |= Position(dims[i]) << (4 * i);
    }
    return result;
  }

  friend constexpr bool operator==(const MemoryOrder&, const MemoryOrder&) = default;

 private:
  explicit constexpr MemoryOrder(uint64_t positions) : positions_(positions) {}
  uint64_t Position(int dim) const { return positions_ >> (4 * dim) & 15u; }

  uint64_t positions_;  // Four bits per dim: its position in memory, 0 the outermost.
};
static_assert(Dims::kMaxRank <= 16);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_MEMORY_ORDER_H_
