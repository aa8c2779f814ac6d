// SPDX-License-Identifier: Apache-2.0
//
// Sine and cosine for inner loops, of any argument in radians: multiplications and additions in a
// fixed order (and integers, for large arguments), so that every processor gives the same bits.
//
// Largest error in units in the last place: 0.8 for double, 0.5 for float.
#ifndef SHARDMESH_TENSOR_CPU_TRIGONOMETRY_CPU_H_
#define SHARDMESH_TENSOR_CPU_TRIGONOMETRY_CPU_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shardmesh/tensor/cpu/isa_cpu.h"

namespace shardmesh::cpu {

/// An angle as a multiple of pi/2 and a rest of at most pi/4: quadrant pi/2 + (hi + lo).
struct ReducedAngle {
  double hi, lo;
  uint64_t quadrant;  ///< Its two lowest bits count.
};

/// Of a finite x with |x| >= 2^20.
ReducedAngle ReduceLargeAngle(double x);

SHARDMESH_ALWAYS_INLINE ReducedAngle ReduceAngle(double x) {
  if (!(std::fabs(x) <= 0x1p20)) {
    if (std::fabs(x) < std::numeric_limits<double>::infinity()) return ReduceLargeAngle(x);
    return {std::numeric_limits<double>::quiet_NaN(), 0, 0};
  }
  constexpr double kRoundToInteger = 0x1.8p52;  // Adding it leaves the integer in the low bits.
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRoundToInteger;
  const double n = shifted - kRoundToInteger;
  // pi/2 in three parts; the first two have 32 bits, so that their products with n are exact.
  const double first = x - n * 0x1.921fb544p+0, second = n * 0x1.0b4611a6p-34;
  const double r = first - second;
  const double rest = ((first - r) - second) - n * 0x1.3198a2e037073p-69;
  const double hi = r + rest;
  return {hi, (r - hi) + rest, std::bit_cast<uint64_t>(shifted)};
}

/// sin(hi + lo) = hi + (hi z p(z) + lo cos hi) with z = hi^2.
SHARDMESH_ALWAYS_INLINE double SineOfReduced(double hi, double lo) {
  const double z = hi * hi;
  double p = -0x1.ab17d083f6cf7p-41;
  p = p * z + 0x1.61217f058e863p-33;
  p = p * z + -0x1.ae645412bde0ep-26;
  p = p * z + 0x1.71de3a5460916p-19;
  p = p * z + -0x1.a01a01a019938p-13;
  p = p * z + 0x1.111111111111p-7;
  p = p * z + -0x1.5555555555555p-3;
  return hi + (hi * (z * p) + lo * (1.0 - 0.5 * z));
}

/// cos(hi + lo) = 1 - z/2 + (z^2 p(z) - hi lo) with z = hi^2; what 1 - z/2 rounds off is added.
SHARDMESH_ALWAYS_INLINE double CosineOfReduced(double hi, double lo) {
  const double z = hi * hi;
  double p = -0x1.907da036ba5cfp-37;
  p = p * z + 0x1.1eeb68e4cd852p-29;
  p = p * z + -0x1.27e4fa17d5c9dp-22;
  p = p * z + 0x1.a01a019f4eaccp-16;
  p = p * z + -0x1.6c16c16c16967p-10;
  p = p * z + 0x1.5555555555555p-5;
  const double half = 0.5 * z, w = 1.0 - half;
  return w + (((1.0 - w) - half) + (z * z * p - hi * lo));
}

/// The sine of an angle `quadrants` further on: an odd quadrant swaps sine and cosine, bit 1 of it
/// is the sign.
SHARDMESH_ALWAYS_INLINE double SineOf(const ReducedAngle& angle, uint64_t quadrants) {
  const double sine = SineOfReduced(angle.hi, angle.lo);
  const double cosine = CosineOfReduced(angle.hi, angle.lo);
  const uint64_t quadrant = angle.quadrant + quadrants;
  const double value = (quadrant & 1) != 0 ? cosine : sine;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(value) ^ ((quadrant & 2) << 62));
}

SHARDMESH_ALWAYS_INLINE double Sin(double x) {
  return x == 0.0 ? x : SineOf(ReduceAngle(x), 0);  // -0 stays.
}
SHARDMESH_ALWAYS_INLINE double Cos(double x) { return SineOf(ReduceAngle(x), 1); }

/// Rounded from double.
SHARDMESH_ALWAYS_INLINE float Sin(float x) {
  return static_cast<float>(Sin(static_cast<double>(x)));
}
SHARDMESH_ALWAYS_INLINE float Cos(float x) {
  return static_cast<float>(Cos(static_cast<double>(x)));
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_TRIGONOMETRY_CPU_H_
