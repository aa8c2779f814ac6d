// SPDX-License-Identifier: Apache-2.0
//
// Rows (runs along the last dim) of a strided tensor, as contiguous values in the accumulator's
// type. A row that is contiguous and of that type is not copied.
//
//   RowReader<T> x(tensor, first_row, scratch, kSlot);
//   for (...) Use(x.Next(), n);
#ifndef SHARDMESH_TENSOR_CPU_ROWS_ACCESS_CPU_H_
#define SHARDMESH_TENSOR_CPU_ROWS_ACCESS_CPU_H_

#include <cstdint>
#include <type_traits>

#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/dtype.h"
#include "shardmesh/tensor/internal/output_data.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::cpu {

/// Number of rows of `x`: the product of all extents but the last.
inline int64_t RowsOf(const Tensor& x) {
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < x.num_dims(); ++dim) rows *= x.dim(dim);
  return rows;
}

/// Offsets, in elements, of consecutive rows in row-major order.
class RowCursor {
 public:
  /// `row` may be the end. With `dims_in_row` = 0 every element is a row.
  RowCursor(const Tensor& x, int64_t row, int dims_in_row = 1) : dims_(x.num_dims() - dims_in_row) {
    for (int dim = dims_ - 1; dim >= 0; --dim) {
      extents_[dim] = x.dim(dim);
      strides_[dim] = x.strides()[dim];
      if (extents_[dim] == 0) return;
      index_[dim] = row % extents_[dim];
      row /= extents_[dim];
      offset_ += index_[dim] * strides_[dim];
    }
  }

  int64_t offset() const { return offset_; }
  void Next() {
    for (int dim = dims_ - 1; dim >= 0; --dim) {
      offset_ += strides_[dim];
      if (++index_[dim] < extents_[dim]) return;
      offset_ -= extents_[dim] * strides_[dim];
      index_[dim] = 0;
    }
  }

 private:
  int dims_;
  int64_t offset_ = 0;
  int64_t index_[Dims::kMaxRank] = {};
  int64_t extents_[Dims::kMaxRank] = {};
  int64_t strides_[Dims::kMaxRank] = {};
};

/// to[i] = From -> To, for floating types and their accumulators.
template <typename To, typename From>
struct ConvertLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const From* from, To* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
  }
};

template <typename To, typename From>
void ConvertStrided(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    RunForIsa<ConvertLoop<To, From>>(from, to, n);
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * to_stride] = static_cast<To>(from[i * from_stride]);
}

inline int64_t LastStride(const Tensor& x) { return x.dim(-1) <= 1 ? 1 : x.strides().back(); }

/// Whether a row of elements of type T can be used where it is.
template <typename T>
constexpr bool IsDirectRow(int64_t stride) {
  return std::is_same_v<T, Accumulator<T>> && stride == 1;
}

/// Reads the rows of an input of at least one dim, one after another.
template <typename T>
class RowReader {
 public:
  using Value = Accumulator<T>;

  /// Slot `slot` of `scratch` is used if rows have to be copied.
  RowReader(const Tensor& x, int64_t first_row, Scratch& scratch, int slot)
      : data_(x.data<T>()),
        cursor_(x, first_row),
        n_(x.dim(-1)),
        stride_(LastStride(x)),
        buffer_(IsDirectRow<T>(stride_) ? nullptr : scratch.Get<Value>(slot, n_)) {}

  /// Valid until the next call.
  const Value* Next() {
    const T* row = data_ + cursor_.offset();
    cursor_.Next();
    if constexpr (std::is_same_v<T, Value>) {
      if (stride_ == 1) return row;
    }
    ConvertStrided(row, stride_, buffer_, 1, n_);
    return buffer_;
  }

 private:
  const T* data_;
  RowCursor cursor_;
  int64_t n_;
  int64_t stride_;
  Value* buffer_;
};

/// Writes the rows of an output of at least one dim, one after another: fill Row(), then call
/// Commit().
template <typename T>
class RowWriter {
 public:
  using Value = Accumulator<T>;

  RowWriter(Tensor& y, int64_t first_row, Scratch& scratch, int slot)
      : data_(shardmesh::internal::OutputData<T>(y)),
        cursor_(y, first_row),
        n_(y.dim(-1)),
        stride_(LastStride(y)),
        buffer_(IsDirectRow<T>(stride_) ? nullptr : scratch.Get<Value>(slot, n_)) {}

  Value* Row() {
    if constexpr (std::is_same_v<T, Value>) {
      if (stride_ == 1) return data_ + cursor_.offset();
    }
    return buffer_;
  }
  void Commit() {
    if (!IsDirectRow<T>(stride_)) ConvertStrided(buffer_, 1, data_ + cursor_.offset(), stride_, n_);
    cursor_.Next();
  }

 private:
  T* data_;
  RowCursor cursor_;
  int64_t n_;
  int64_t stride_;
  Value* buffer_;
};

/// How many rows of n elements make a tile, by shape alone: about 16384 elements.
inline int64_t RowsPerTile(int64_t n) {
  constexpr int64_t kElements = 16384;
  return n >= kElements ? 1 : kElements / (n > 0 ? n : 1);
}

/// Calls fn(first_row, end_row) for tiles of rows.
template <typename Fn>
void ForRowTiles(ExecutionContext& context, int64_t rows, int64_t rows_per_tile, const Fn& fn) {
  if (rows == 0) return;
  const int64_t tiles = (rows + rows_per_tile - 1) / rows_per_tile;
  context.ParallelFor(tiles, [&](int64_t tile) {
    const int64_t begin = tile * rows_per_tile;
    fn(begin, begin + rows_per_tile < rows ? begin + rows_per_tile : rows);
  });
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_ROWS_ACCESS_CPU_H_
