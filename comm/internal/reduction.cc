// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/reduction.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace shardmesh::internal {
namespace {

// Elements that are reduced before the next ones are looked at: a tile of accumulators and four
// packed sources of it stay in the first-level cache.
constexpr int64_t kTile = 1024;
// Sources that one pass over a tile reads.
constexpr size_t kPass = 4;

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

// out = op(.. op(op(out, s_0), s_1) .., s_{N-1}), or without out where these are the first sources.
// `out` may be one of the sources: each element is read before it is written, which is all that
// vectors of elements need.
template <typename Op, int N, bool kFirst, typename T, typename A = Accumulator<T>>
void Accumulate(const T* const* sources, int64_t count, A* out) {
  const T* const s0 = sources[0];
  const T* const s1 = N > 1 ? sources[1] : nullptr;
  const T* const s2 = N > 2 ? sources[2] : nullptr;
  const T* const s3 = N > 3 ? sources[3] : nullptr;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    A value = kFirst ? static_cast<A>(s0[i]) : Op::Apply(out[i], static_cast<A>(s0[i]));
    if constexpr (N > 1) value = Op::Apply(value, static_cast<A>(s1[i]));
    if constexpr (N > 2) value = Op::Apply(value, static_cast<A>(s2[i]));
    if constexpr (N > 3) value = Op::Apply(value, static_cast<A>(s3[i]));
    out[i] = value;
  }
}

template <typename Op, bool kFirst, typename T>
void AccumulatePass(const T* const* sources, int num_sources, int64_t count, Accumulator<T>* out) {
  switch (num_sources) {
    case 1:
      return Accumulate<Op, 1, kFirst>(sources, count, out);
    case 2:
      return Accumulate<Op, 2, kFirst>(sources, count, out);
    case 3:
      return Accumulate<Op, 3, kFirst>(sources, count, out);
    default:
      return Accumulate<Op, 4, kFirst>(sources, count, out);
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

// Where the elements of a pass over sources are, packed into `packed` where they are strided.
template <typename T>
std::array<const T*, kPass> DataOf(std::span<const StridedView> sources, int64_t begin,
                                   int64_t count, char (*packed)[kTile * sizeof(T)]) {
  std::array<const T*, kPass> data = {};
  for (size_t k = 0; k < sources.size(); ++k) {
    const char* at = packed[k];
    if (sources[k].IsContiguous()) {
      at = sources[k].At(begin);
    } else {
      sources[k].Pack(begin, count, packed[k]);
    }
    data[k] = reinterpret_cast<const T*>(at);
  }
  return data;
}

// All sources of a tile are read before any target of it is written, so that they may be the same
// memory.
template <typename T, typename Op>
void ReduceTile(std::span<const StridedView> sources, std::span<const StridedView> targets,
                int64_t begin, int64_t count) {
  alignas(64) char packed[kPass][kTile * sizeof(T)];  // Not of T, which would be set to zero.
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    // The common case, without a tile in between: one pass straight into the first target, then
    // copies of that.
    if (sources.size() <= kPass && !targets.empty() && targets[0].IsContiguous()) {
      T* const out = reinterpret_cast<T*>(targets[0].At(begin));
      const auto data = DataOf<T>(sources, begin, count, packed);
      AccumulatePass<Op, true, T>(data.data(), static_cast<int>(sources.size()), count, out);
      return Store<T>(out, count, targets.subspan(1), begin);
    }
  }
  Accumulator<T> acc[kTile];
  for (size_t first = 0; first < sources.size(); first += kPass) {
    const std::span pass = sources.subspan(first, std::min<size_t>(kPass, sources.size() - first));
    const auto data = DataOf<T>(pass, begin, count, packed);
    if (first == 0) {
      AccumulatePass<Op, true, T>(data.data(), static_cast<int>(pass.size()), count, acc);
    } else {
      AccumulatePass<Op, false, T>(data.data(), static_cast<int>(pass.size()), count, acc);
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
