// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/reduction.h"

#include <algorithm>
#include <type_traits>

namespace shardmesh::internal {
namespace {

// Elements that are reduced before the next ones are looked at: a tile of accumulators and four
// packed sources of it stay in the first-level cache.
constexpr int64_t kTile = 1024;
// Sources that one pass over a tile reads.
constexpr int kPass = 4;

struct Sum {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;  // Overflow of signed integers would be undefined.
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN on the left stays by the second condition, one on the right is taken because the comparison
// fails.
struct Min {
  template <typename A>
  static A Apply(A a, A b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename A>
  static A Apply(A a, A b) {
    return a > b || a != a ? a : b;
  }
};

// acc = op(.. op(op(acc, s_0), s_1) .., s_{N-1}), or without acc for the first sources. `acc`
// overlaps no source.
template <typename Op, int N, bool kFirst, typename T, typename A = Accumulator<T>>
void Accumulate(const T* const* sources, int64_t count, A* __restrict acc) {
  const T* const s0 = sources[0];
  const T* const s1 = N > 1 ? sources[1] : nullptr;
  const T* const s2 = N > 2 ? sources[2] : nullptr;
  const T* const s3 = N > 3 ? sources[3] : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    A value = kFirst ? static_cast<A>(s0[i]) : Op::Apply(acc[i], static_cast<A>(s0[i]));
    if constexpr (N > 1) value = Op::Apply(value, static_cast<A>(s1[i]));
    if constexpr (N > 2) value = Op::Apply(value, static_cast<A>(s2[i]));
    if constexpr (N > 3) value = Op::Apply(value, static_cast<A>(s3[i]));
    acc[i] = value;
  }
}

template <typename Op, bool kFirst, typename T>
void AccumulatePass(const T* const* sources, int num_sources, int64_t count, Accumulator<T>* acc) {
  switch (num_sources) {
    case 1:
      return Accumulate<Op, 1, kFirst>(sources, count, acc);
    case 2:
      return Accumulate<Op, 2, kFirst>(sources, count, acc);
    case 3:
      return Accumulate<Op, 3, kFirst>(sources, count, acc);
    default:
      return Accumulate<Op, 4, kFirst>(sources, count, acc);
  }
}

template <typename T, typename A = Accumulator<T>>
void Store(const A* acc, int64_t count, std::span<const StridedView> targets, int64_t begin) {
  if constexpr (std::is_same_v<T, A>) {
    for (const StridedView& target : targets) target.Unpack(acc, begin, count);
  } else {
    alignas(64) char storage[kTile * sizeof(T)];
    T* const rounded = reinterpret_cast<T*>(storage);
    for (int64_t i = 0; i < count; ++i) rounded[i] = T(acc[i]);
    for (const StridedView& target : targets) target.Unpack(rounded, begin, count);
  }
}

// All sources of a tile are read before any target of it is written, so that they may be the same
// memory.
template <typename T, typename Op>
void ReduceTile(std::span<const StridedView> sources, std::span<const StridedView> targets,
                int64_t begin, int64_t count) {
  Accumulator<T> acc[kTile];
  alignas(64) char packed[kPass][kTile * sizeof(T)];  // Not of T, which would be set to zero.
  const int num_sources = static_cast<int>(sources.size());
  for (int first = 0; first < num_sources; first += kPass) {
    const int n = std::min(kPass, num_sources - first);
    const T* data[kPass] = {};
    for (int k = 0; k < n; ++k) {
      const StridedView& source = sources[first + k];
      const char* at = packed[k];
      if (source.IsContiguous()) {
        at = source.At(begin);
      } else {
        source.Pack(begin, count, packed[k]);
      }
      data[k] = reinterpret_cast<const T*>(at);
    }
    if (first == 0) {
      AccumulatePass<Op, true, T>(data, n, count, acc);
    } else {
      AccumulatePass<Op, false, T>(data, n, count, acc);
    }
  }
  Store<T>(acc, count, targets, begin);
}

template <typename T, typename Op>
void ReduceRange(std::span<const StridedView> sources, std::span<const StridedView> targets,
                 int64_t begin, int64_t count) {
  for (const int64_t end = begin + count; begin < end; begin += kTile) {
    ReduceTile<T, Op>(sources, targets, begin, std::min(kTile, end - begin));
  }
}

}  // namespace

void Reduce(ReduceOp op, DType dtype, std::span<const StridedView> sources,
            std::span<const StridedView> targets, int64_t begin, int64_t count) {
  VisitDType(dtype, [&]<typename T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      switch (op) {
        case ReduceOp::kSum:
          return ReduceRange<T, Sum>(sources, targets, begin, count);
        case ReduceOp::kProduct:
          return ReduceRange<T, Product>(sources, targets, begin, count);
        case ReduceOp::kMin:
          return ReduceRange<T, Min>(sources, targets, begin, count);
        case ReduceOp::kMax:
          return ReduceRange<T, Max>(sources, targets, begin, count);
      }
    }
  });
}

}  // namespace shardmesh::internal
