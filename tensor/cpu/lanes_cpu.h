// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over a run of elements, in an order that is written out and therefore the same
// for every instruction set: 32-byte vectors, four at a time, added as a tree at the end. For use
// inside a body of RunForIsa.
//
//   SumOfProducts(x, x, n);
#ifndef SHARDMESH_TENSOR_CPU_LANES_CPU_H_
#define SHARDMESH_TENSOR_CPU_LANES_CPU_H_

#include <cstdint>
#include <limits>

#include "shardmesh/tensor/cpu/isa_cpu.h"

namespace shardmesh::cpu {
namespace internal {

template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(32)));
};

}  // namespace internal

/// Passed by reference only: how vectors are passed by value depends on the instruction set.
template <typename T>
using Lanes = typename internal::VectorOf<T>::Type;
template <typename T>
inline constexpr int64_t kLanes = 32 / static_cast<int64_t>(sizeof(T));

template <typename T>
SHARDMESH_ALWAYS_INLINE void LoadLanes(const T* from, Lanes<T>& to) {
  __builtin_memcpy(&to, from, sizeof(to));
}
/// `count` < kLanes elements, then `fill`.
template <typename T>
SHARDMESH_ALWAYS_INLINE void LoadLanes(const T* from, int64_t count, T fill, Lanes<T>& to) {
  T padded[kLanes<T>];
  for (int64_t i = 0; i < kLanes<T>; ++i) padded[i] = i < count ? from[i] : fill;
  LoadLanes(padded, to);
}

/// Folds n elements: combine(sum, at, count) adds lanes [at, at + count) to `sum`, count == kLanes
/// but for the tail.
template <typename T, typename Combine, typename Merge>
SHARDMESH_ALWAYS_INLINE T FoldLanes(int64_t n, T identity, const Combine& combine,
                                    const Merge& merge) {
  constexpr int64_t kWidth = kLanes<T>;
  Lanes<T> start = {};
  start += identity;
  Lanes<T> folds[4] = {start, start, start, start};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    combine(folds[0], i, kWidth);
    combine(folds[1], i + kWidth, kWidth);
    combine(folds[2], i + 2 * kWidth, kWidth);
    combine(folds[3], i + 3 * kWidth, kWidth);
  }
  for (; i + kWidth <= n; i += kWidth) combine(folds[0], i, kWidth);
  if (i < n) combine(folds[1], i, n - i);
  merge(folds[0], folds[1]);
  merge(folds[2], folds[3]);
  merge(folds[0], folds[2]);
  T lanes[kWidth];
  __builtin_memcpy(lanes, &folds[0], sizeof(lanes));
  for (int64_t width = kWidth / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) merge(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

/// Adds elements [at, at + count) of `x` to the lanes, the rest 0.
template <typename T>
SHARDMESH_ALWAYS_INLINE void LoadLanesOrZero(const T* x, int64_t at, int64_t count, Lanes<T>& to) {
  if (count == kLanes<T>) {
    LoadLanes(x + at, to);
  } else {
    LoadLanes(x + at, count, T{0}, to);
  }
}

struct MergeBySum {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    a += b;
  }
};

struct MergeByMax {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    a = b > a ? b : a;
  }
};

template <typename T>
SHARDMESH_ALWAYS_INLINE T Sum(const T* x, int64_t n) {
  const auto add = [x](Lanes<T> & sum, int64_t at, int64_t count) __attribute__((always_inline)) {
    Lanes<T> a;
    LoadLanesOrZero(x, at, count, a);
    sum += a;
  };
  return FoldLanes<T>(n, T{0}, add, MergeBySum());
}

/// sum x_i y_i.
template <typename T>
SHARDMESH_ALWAYS_INLINE T SumOfProducts(const T* x, const T* y, int64_t n) {
  const auto add =
      [ x, y ](Lanes<T> & sum, int64_t at, int64_t count) __attribute__((always_inline)) {
    Lanes<T> a, b;
    LoadLanesOrZero(x, at, count, a);
    LoadLanesOrZero(y, at, count, b);
    sum += a * b;
  };
  return FoldLanes<T>(n, T{0}, add, MergeBySum());
}

/// sum x_i y_i z_i.
template <typename T>
SHARDMESH_ALWAYS_INLINE T SumOfProducts(const T* x, const T* y, const T* z, int64_t n) {
  const auto add =
      [ x, y, z ](Lanes<T> & sum, int64_t at, int64_t count) __attribute__((always_inline)) {
    Lanes<T> a, b, c;
    LoadLanesOrZero(x, at, count, a);
    LoadLanesOrZero(y, at, count, b);
    LoadLanesOrZero(z, at, count, c);
    sum += a * b * c;
  };
  return FoldLanes<T>(n, T{0}, add, MergeBySum());
}

/// The largest element that is a number; -inf if there is none.
template <typename T>
SHARDMESH_ALWAYS_INLINE T Max(const T* x, int64_t n) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  const auto take = [x](Lanes<T> & max, int64_t at, int64_t count) __attribute__((always_inline)) {
    Lanes<T> a;
    if (count == kLanes<T>) {
      LoadLanes(x + at, a);
    } else {
      LoadLanes(x + at, count, kLowest, a);
    }
    max = a > max ? a : max;
  };
  return FoldLanes<T>(n, kLowest, take, MergeByMax());
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_LANES_CPU_H_
