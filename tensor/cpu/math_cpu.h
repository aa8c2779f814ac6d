// SPDX-License-Identifier: Apache-2.0
//
// Exponentials for inner loops: polynomials without branches or calls, so that loops over them
// vectorise and give the same bits on every processor. The C library's functions do not: it picks
// them by what the processor has (a fused multiply-add changes their last bits).
//
// Largest error in units in the last place, for float (found by trying every float) and double:
// exp 1 and 1, tanh 1.4 and 1.4, sigmoid 2.5 and 2.5; silu 3.5 where sigmoid is a normal number.
#ifndef SHARDMESH_TENSOR_CPU_MATH_CPU_H_
#define SHARDMESH_TENSOR_CPU_MATH_CPU_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "shardmesh/tensor/cpu/isa_cpu.h"

namespace shardmesh::cpu {

/// e^x: exp(-inf) = 0, exp(inf) = inf, NaN stays; too large gives inf, too small a subnormal or 0.
SHARDMESH_ALWAYS_INLINE float Exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Beyond these bounds the result is inf or 0; they keep n
  // within 8 bits.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRoundToInteger = 0x1.8p23f;  // Adding it leaves the integer in the low bits.
  const float shifted = x * 0x1.715476p0f + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  // ln 2 in two parts; the first has 11 bits, so that its product with n is exact.
  const float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  // Minimax of (e^r - 1 - r) / r^2.
  float p = 0x1.6a1a72p-10f;
  p = p * r + 0x1.123fc6p-7f;
  p = p * r + 0x1.555916p-5f;
  p = p * r + 0x1.55548ap-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = (p * (r * r) + r) + 1.0f;
  // Times 2^n in two steps, as 2^n itself may not be a normal float; the second one rounds.
  const int32_t exponent =
      std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundToInteger);
  const int32_t half = exponent >> 1;
  const float scale0 = std::bit_cast<float>((half + 127) << 23);
  const float scale1 = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * scale0 * scale1;
}

/// 2^n for an integer n between -1022 and 1023.
SHARDMESH_ALWAYS_INLINE double TwoToThe(double n) {
  constexpr double kBiased = 0x1.8p52 + 1023.0;  // Leaves n + 1023 in the low bits.
  return std::bit_cast<double>(std::bit_cast<uint64_t>(n + kBiased) << 52);
}

SHARDMESH_ALWAYS_INLINE double Exp(double x) {
  // As for float. Beyond these bounds the result is inf or 0.
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  constexpr double kRoundToInteger = 0x1.8p52;
  const double n = (x * 0x1.71547652b82fep+0 + kRoundToInteger) - kRoundToInteger;
  // The first part of ln 2 has 40 bits.
  const double r = (x - n * 0x1.62e42fefa2p-1) - n * 0x1.9ef35793c7673p-41;
  double p = 0x1.61bfb5691e52ep-33;
  p = p * r + 0x1.1f7f3209901dbp-29;
  p = p * r + 0x1.ae642c7cca827p-26;
  p = p * r + 0x1.27e4d413af71ap-22;
  p = p * r + 0x1.71de3a5aa8df2p-19;
  p = p * r + 0x1.a01a01a9ebb4dp-16;
  p = p * r + 0x1.a01a01a0196aap-13;
  p = p * r + 0x1.6c16c16c15a63p-10;
  p = p * r + 0x1.1111111111111p-7;
  p = p * r + 0x1.5555555555557p-5;
  p = p * r + 0x1.5555555555555p-3;
  p = p * r + 0.5;
  p = (p * (r * r) + r) + 1.0;
  const double half = (n * 0.5 + kRoundToInteger) - kRoundToInteger;
  return p * TwoToThe(half) * TwoToThe(n - half);
}

SHARDMESH_ALWAYS_INLINE float Tanh(float x) {
  const float magnitude = std::fabs(x);
  // Small: x + x^3 q(x^2). Large: 1 - 2 / (e^2|x| + 1).
  const float square = x * x;
  float q = -0x1.745432p-8f;
  q = q * square + 0x1.51d0ccp-6f;
  q = q * square + -0x1.b82fbcp-5f;
  q = q * square + 0x1.1106cap-3f;
  q = q * square + -0x1.555532p-2f;
  const float small = magnitude + magnitude * (square * q);
  const float large = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  return std::copysign(magnitude < 0.625f ? small : large, x);
}
SHARDMESH_ALWAYS_INLINE double Tanh(double x) {
  const double magnitude = std::fabs(x);
  const double square = x * x;
  double q = 0x1.b33642a122cddp-18;
  q = q * square + -0x1.05bbdae896297p-15;
  q = q * square + 0x1.8445870f6fe41p-14;
  q = q * square + -0x1.f243823c8c981p-13;
  q = q * square + 0x1.3526e9ed54da1p-11;
  q = q * square + -0x1.7d9f6f23e8682p-10;
  q = q * square + 0x1.d6d39ae3905e2p-9;
  q = q * square + -0x1.226e3473dce5cp-7;
  q = q * square + 0x1.664f487e0a749p-6;
  q = q * square + -0x1.ba1ba1ba0f126p-5;
  q = q * square + 0x1.11111111110a8p-3;
  q = q * square + -0x1.5555555555555p-2;
  const double small = magnitude + magnitude * (square * q);
  const double large = 1.0 - 2.0 / (Exp(2.0 * magnitude) + 1.0);
  return std::copysign(magnitude < 0.625 ? small : large, x);
}

/// 1 / (1 + e^-x), exact where the result is tiny.
template <typename T>
SHARDMESH_ALWAYS_INLINE T Sigmoid(T x) {
  const T e = Exp(-std::fabs(x));
  return (x < T{0} ? e : T{1}) / (T{1} + e);
}

/// x sigmoid(x).
template <typename T>
SHARDMESH_ALWAYS_INLINE T Silu(T x) {
  return x * Sigmoid(x);
}

/// Derivative of silu at x: s (1 + x (1 - s)) with s = sigmoid(x).
template <typename T>
SHARDMESH_ALWAYS_INLINE T SiluDerivative(T x) {
  const T s = Sigmoid(x);
  return s * (T{1} + x * (T{1} - s));
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_MATH_CPU_H_
