// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/element_difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shardmesh/checkpoint/internal/convert_elements.h"

namespace shardmesh::checkpoint::tool {
namespace {

template <typename T>
constexpr bool kIsFloat = !std::is_integral_v<T>;

// Holds every value of both types.
template <typename A, typename B>
using WideOf =
    std::conditional_t<kIsFloat<A> && kIsFloat<B>, double,
                       std::conditional_t<!kIsFloat<A> && !kIsFloat<B>, int64_t, long double>>;

template <typename T, typename Wide>
Wide Load(const char* source, int64_t index) {
  T value;
  std::memcpy(&value, source + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return static_cast<Wide>(static_cast<float>(value));
  } else {
    return static_cast<Wide>(value);
  }
}

template <typename Wide>
double Distance(Wide a, Wide b) {
  if constexpr (std::is_same_v<Wide, int64_t>) {
    // Unsigned: the distance of two i64 needs 64 bits.
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<double>(a > b ? x - y : y - x);
  } else {
    return static_cast<double>(std::abs(a - b));
  }
}

}  // namespace

void ElementDifference::Add(const char* a, const char* b, int64_t count) {
  // Equal bits are equal values, and most checkpoints differ in few.
  if (a_ == b_ && std::memcmp(a, b, static_cast<size_t>(count * SizeOf(a_))) == 0) {
    num_elements_ += count;
    return;
  }
  VisitDType(a_, [&]<typename A>() {
    VisitDType(b_, [&]<typename B>() { AddTyped<A, B>(a, b, count); });
  });
}

template <typename A, typename B>
void ElementDifference::AddTyped(const char* a, const char* b, int64_t count) {
  using Wide = WideOf<A, B>;
  for (int64_t i = 0; i < count; ++i) {
    const char* const at_a = a + i * static_cast<int64_t>(sizeof(A));
    const char* const at_b = b + i * static_cast<int64_t>(sizeof(B));
    bool is_equal = Compare(Load<A, Wide>(a, i), Load<B, Wide>(b, i));
    if constexpr (std::is_same_v<A, B>) {
      if (tolerance_.bits) is_equal = std::memcmp(at_a, at_b, sizeof(A)) == 0;
    }
    if (is_equal) continue;
    if (++num_different_ > 1) continue;
    first_ = num_elements_ + i;
    first_a_ = shardmesh::internal::ElementToString(a_, at_a);
    first_b_ = shardmesh::internal::ElementToString(b_, at_b);
  }
  num_elements_ += count;
}

template <typename Wide>
bool ElementDifference::Compare(Wide a, Wide b) {
  if (a == b) return true;
  if constexpr (!std::is_same_v<Wide, int64_t>) {
    if (std::isnan(a) && std::isnan(b)) return true;
    if (std::isnan(a) || std::isnan(b)) {
      ++num_nan_;
      return false;
    }
    if (std::isinf(a) || std::isinf(b)) {
      max_absolute_ = max_relative_ = std::numeric_limits<double>::infinity();
      return false;
    }
  }
  const double distance = Distance(a, b);
  const double magnitude =
      std::max(std::abs(static_cast<double>(a)), std::abs(static_cast<double>(b)));
  max_absolute_ = std::max(max_absolute_, distance);
  max_relative_ = std::max(max_relative_, distance / magnitude);
  return distance <= tolerance_.atol + tolerance_.rtol * magnitude;
}

}  // namespace shardmesh::checkpoint::tool
