// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/convert_elements.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shardmesh::internal {
namespace {

// The type of an element in the file; a bool may be any byte there.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <typename T>
constexpr bool kIsSmallFloat = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsSmallFloat<T>;

template <typename T>
Stored<T> Load(const char* source, int64_t index) {
  Stored<T> value;
  std::memcpy(&value, source + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}

// `value` in a type that has arithmetic and represents every value of T.
template <typename T>
auto Widened(T value) {
  if constexpr (kIsSmallFloat<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <typename Wide>
bool IsInfinite(Wide value) {
  if constexpr (std::is_floating_point_v<Wide>) return std::isinf(value);
  return false;
}

// Whether an integer or bool type represents this value exactly.
template <typename To, typename Wide>
bool Holds(Wide value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value == Wide{0} || value == Wide{1};
  } else if constexpr (std::is_floating_point_v<Wide>) {
    // -2^(bits - 1) is exact in any floating-point type; the largest integer may not be.
    constexpr Wide kLowest = static_cast<Wide>(std::numeric_limits<To>::min());
    return value >= kLowest && value < -kLowest && value == std::trunc(value);
  } else {
    return value >= std::numeric_limits<To>::min() && value <= std::numeric_limits<To>::max();
  }
}

template <typename From, typename To>
std::optional<int64_t> Convert(const char* source, To* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = Widened(Load<From>(source, i));
    if constexpr (std::is_same_v<From, bool>) {
      if (value > 1) return i;
    }
    if constexpr (kIsFloat<To>) {
      target[i] = ConvertTo<To>(value);
      if (std::isinf(Widened(target[i])) && !IsInfinite(value)) return i;
    } else {
      if (!Holds<To>(value)) return i;
      target[i] = static_cast<To>(value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> ConvertElements(DType from, const void* source, DType to, void* target,
                                       int64_t count) {
  if (count == 0) return std::nullopt;
  if (from == to && from != DType::kBool) {
    std::memcpy(target, source, static_cast<size_t>(count * SizeOf(from)));
    return std::nullopt;
  }
  return VisitDType(from, [&]<typename From>() {
    return VisitDType(to, [&]<typename To>() {
      return Convert<From, To>(static_cast<const char*>(source), static_cast<To*>(target), count);
    });
  });
}

std::string ElementToString(DType dtype, const void* source) {
  return VisitDType(dtype, [&]<typename T>() -> std::string {
    const auto value = Widened(Load<T>(static_cast<const char*>(source), 0));
    if constexpr (kIsFloat<T>) return absl::StrFormat("%.17g", value);
    return absl::StrCat(value);
  });
}

}  // namespace shardmesh::internal
