// SPDX-License-Identifier: Apache-2.0
//
// Element types: the one table, and the one way from a run-time dtype to a C++ type.
//
//   VisitDType(x.dtype(), [&]<typename T>() { Fill(x.mutable_data<T>(), x.NumElements()); });
#ifndef SHARDMESH_TENSOR_DTYPE_H_
#define SHARDMESH_TENSOR_DTYPE_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

namespace shardmesh {

enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64, kBool };

/// bfloat16: the upper half of a float. Conversion from float rounds to nearest, ties to even; NaN
/// stays NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    word += 0x7fffu + ((word >> 16) & 1u);
    bits = is_nan ? uint16_t{0x7fc0} : static_cast<uint16_t>(word >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

/// IEEE binary16. Conversion from float rounds to nearest, ties to even; overflow gives infinity,
/// NaN stays NaN.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

// Both without branches, so that loops over them vectorise. Float addition does the rounding of
// subnormal results.
inline Float16::Float16(float value) {
  constexpr uint32_t kInfinity = 255u << 23, kOverflow = (127u + 16u) << 23,
                     kSmallestNormal = 113u << 23;
  constexpr uint32_t kSubnormalMagic = (127u - 15u + 23u - 10u + 1u) << 23;
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = word & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) +
                                                     std::bit_cast<float>(kSubnormalMagic)) -
                             kSubnormalMagic;
  const uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  bits =
      static_cast<uint16_t>((magnitude >= kOverflow ? special : finite) | ((word >> 16) & 0x8000u));
}

inline Float16::operator float() const {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & (0x7c00u << 13);
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t special = normal + (112u << 23);  // Infinity and NaN keep the largest exponent.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1u << 23)) -
                                                     std::bit_cast<float>(113u << 23));
  const uint32_t word = exponent == (0x7c00u << 13) ? special : exponent == 0 ? subnormal : normal;
  return std::bit_cast<float>(word | (static_cast<uint32_t>(bits & 0x8000u) << 16));
}

/// Size of one element in bytes. A bool takes one byte.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kBool:
      return 1;
  }
  return 0;
}

/// "f32", "f64", "bf16", "f16", "i32", "i64", "bool".
std::string_view Name(DType dtype);
/// The inverse of Name.
std::optional<DType> DTypeFromName(std::string_view name);
std::ostream& operator<<(std::ostream& out, DType dtype);

constexpr bool IsFloating(DType dtype) { return dtype <= DType::kF16; }

/// The type in which sums over elements of T are accumulated and transcendental functions computed.
template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using Type = float;
};
template <>
struct AccumulatorOf<Float16> {
  using Type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

/// `value` as a To: floats to integers towards zero, what is out of range to the nearest integer
/// there is and NaN to 0; to bool as != 0; bf16 and f16 through float.
template <typename To, typename From>
inline __attribute__((always_inline)) To ConvertTo(const From& value) {
  constexpr bool kSmallFrom = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool kSmallTo = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kSmallFrom) {
    return ConvertTo<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (kSmallTo) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The least To is a power of two, which every From holds exactly.
    constexpr From kLeast = static_cast<From>(std::numeric_limits<To>::min());
    if (value >= -kLeast) return std::numeric_limits<To>::max();
    if (value <= kLeast) return std::numeric_limits<To>::min();
    return value == value ? static_cast<To>(value) : To{0};
  } else {
    return static_cast<To>(value);
  }
}

template <typename T>
struct DTypeOfType;
template <>
struct DTypeOfType<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOfType<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOfType<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOfType<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOfType<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOfType<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOfType<bool> {
  static constexpr DType value = DType::kBool;
};
/// The DType of a C++ type.
template <typename T>
inline constexpr DType kDTypeOf = DTypeOfType<T>::value;

/// Calls visitor.template operator()<T>() with the C++ type of `dtype`.
template <typename Visitor>
decltype(auto) VisitDType(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF32:
      return visitor.template operator()<float>();
    case DType::kF64:
      return visitor.template operator()<double>();
    case DType::kBF16:
      return visitor.template operator()<BFloat16>();
    case DType::kF16:
      return visitor.template operator()<Float16>();
    case DType::kI32:
      return visitor.template operator()<int32_t>();
    case DType::kI64:
      return visitor.template operator()<int64_t>();
    case DType::kBool:
      break;
  }
  return visitor.template operator()<bool>();
}

/// As VisitDType, for the four floating-point types; any other dtype throws Error(kInvalidArgument)
/// naming `what`.
[[noreturn]] void ThrowNotFloating(DType dtype, std::string_view what);
template <typename Visitor>
decltype(auto) VisitFloating(DType dtype, std::string_view what, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF32:
      return visitor.template operator()<float>();
    case DType::kF64:
      return visitor.template operator()<double>();
    case DType::kBF16:
      return visitor.template operator()<BFloat16>();
    case DType::kF16:
      return visitor.template operator()<Float16>();
    default:
      ThrowNotFloating(dtype, what);
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_DTYPE_H_
