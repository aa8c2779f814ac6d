// SPDX-License-Identifier: Apache-2.0
//
// The natural logarithm for inner loops: multiplications, additions and one division in a fixed
// order, without branches, so that loops vectorise and every processor gives the same bits.
//
// Largest error in units in the last place: 0.8 for double, 0.5 for float.
#ifndef SHARDMESH_TENSOR_CPU_LOG_CPU_H_
#define SHARDMESH_TENSOR_CPU_LOG_CPU_H_

#include <bit>
#include <cstdint>
#include <limits>

#include "shardmesh/tensor/cpu/isa_cpu.h"

namespace shardmesh::cpu {

/// log(0) = -inf, log(inf) = inf; a negative number gives NaN, and NaN stays.
SHARDMESH_ALWAYS_INLINE double Log(double x) {
  // x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
  const bool is_subnormal = x < 0x1p-1022;
  const uint64_t bits = std::bit_cast<uint64_t>(is_subnormal ? x * 0x1p54 : x);
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // As a double.
  constexpr uint64_t kBias = uint64_t{2048} << 52;    // Keeps the exponent positive.
  const uint64_t exponent = (bits - kSqrtHalf + kBias) >> 52;
  constexpr uint64_t kTwoTo52 = 0x4330000000000000;  // As a double: low bits count ones.
  const double biased = std::bit_cast<double>(kTwoTo52 | exponent) - 0x1p52;
  const double k = biased - (is_subnormal ? 2048.0 + 54.0 : 2048.0);
  const double f = std::bit_cast<double>(bits - ((exponent << 52) - kBias)) - 1.0;
  // log(1 + f) = 2 atanh(s) = 2 s + s^3 p(s^2) with s = f / (2 + f), and 2 s = f - s f; with
  // h = f^2 / 2, s f = h - s h. So log(1 + f) = f - (h - s (h + s^2 p)).
  const double s = f / (2.0 + f), z = s * s;
  double p = 0x1.0c06cf14c641bp-3;
  p = p * z + 0x1.0fbe478772696p-3;
  p = p * z + 0x1.3b1c38474d3eep-3;
  p = p * z + 0x1.745cf8f6c9119p-3;
  p = p * z + 0x1.c71c72017a15cp-3;
  p = p * z + 0x1.2492492476ba1p-2;
  p = p * z + 0x1.9999999999a38p-2;
  p = p * z + 0x1.5555555555555p-1;
  const double h = 0.5 * f * f;
  // ln 2 in two parts; the first has 40 bits, so that its product with k is exact.
  constexpr double kLn2 = 0x1.62e42fefa2p-1, kLn2Rest = 0x1.9ef35793c7673p-41;
  const double finite = k * kLn2 - ((h - (s * (h + p * z) + k * kLn2Rest)) - f);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double y = x == 0.0 ? -kInfinity : finite;
  y = x < 0.0 ? std::numeric_limits<double>::quiet_NaN() : y;
  return x < kInfinity ? y : x;
}

/// Rounded from double.
SHARDMESH_ALWAYS_INLINE float Log(float x) {
  return static_cast<float>(Log(static_cast<double>(x)));
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_LOG_CPU_H_
