// SPDX-License-Identifier: Apache-2.0
//
// One element in an inner loop: loads that widen bf16 and f16, stores that round once, integer
// arithmetic that wraps.
#ifndef SHARDMESH_TENSOR_CPU_ELEMENT_CPU_H_
#define SHARDMESH_TENSOR_CPU_ELEMENT_CPU_H_

#include <type_traits>

#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/dtype.h"

/// For a loop over elements whose output may be its input: no element depends on another one's
/// result.
#define SHARDMESH_INDEPENDENT _Pragma("GCC ivdep")

namespace shardmesh::cpu {

/// Converts to the computation type.
template <typename T>
SHARDMESH_ALWAYS_INLINE Accumulator<T> Load(const T& value) {
  return static_cast<Accumulator<T>>(value);
}

template <typename T>
SHARDMESH_ALWAYS_INLINE T Store(Accumulator<T> value) {
  return static_cast<T>(value);
}

namespace internal {

template <typename T>
constexpr bool kWraps = std::is_integral_v<T> && !std::is_same_v<T, bool>;

}  // namespace internal

/// a + b, a - b, a * b. Integers wrap around; for bool they are or, exclusive or, and.
template <typename T>
SHARDMESH_ALWAYS_INLINE T Plus(T a, T b) {
  if constexpr (internal::kWraps<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (std::is_same_v<T, bool>) {
    return a | b;
  } else {
    return a + b;
  }
}

template <typename T>
SHARDMESH_ALWAYS_INLINE T Difference(T a, T b) {
  if constexpr (internal::kWraps<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  } else if constexpr (std::is_same_v<T, bool>) {
    return a ^ b;
  } else {
    return a - b;
  }
}

template <typename T>
SHARDMESH_ALWAYS_INLINE T Product(T a, T b) {
  if constexpr (internal::kWraps<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else if constexpr (std::is_same_v<T, bool>) {
    return a & b;
  } else {
    return a * b;
  }
}

/// NaN if either is.
template <typename T>
SHARDMESH_ALWAYS_INLINE T Maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return (a > b) | (a != a) ? a : b;
  } else {
    return a > b ? a : b;
  }
}

/// NaN if either is.
template <typename T>
SHARDMESH_ALWAYS_INLINE T Minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return (a < b) | (a != a) ? a : b;
  } else {
    return a < b ? a : b;
  }
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_ELEMENT_CPU_H_
