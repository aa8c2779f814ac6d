// SPDX-License-Identifier: Apache-2.0
//
// Random numbers as a function of (seed, stream, global element index). These bits are a format,
// documented in docs/random.md with known answers: every device and every instruction set gives the
// same ones. Hence nothing but exact integer steps, and float additions, multiplications and square
// roots in the order written (never contracted).
//
//   PhiloxWords words = Philox(seed, stream, /*block=*/index / 4);
//   double u = UniformOf(words.word[index % 4]);
//
// Source: Philox4x32-10, from J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC11. Normal numbers: G. Box, M. Muller, "A note on the generation of random
// normal deviates", 1958.
#ifndef SHARDMESH_TENSOR_PHILOX_H_
#define SHARDMESH_TENSOR_PHILOX_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SHARDMESH_PHILOX_INLINE __host__ __device__ __forceinline__
#else
#define SHARDMESH_PHILOX_INLINE inline __attribute__((always_inline))
#endif

namespace shardmesh {

/// What one call of Philox gives: the random words of elements 4 block .. 4 block + 3.
struct PhiloxWords {
  uint32_t word[4];
};

/// Counter: the block in the lower 64 bits, the stream in the upper. Key: the seed.
SHARDMESH_PHILOX_INLINE PhiloxWords Philox(uint64_t seed, uint64_t stream, uint64_t block) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  uint32_t x0 = static_cast<uint32_t>(block), x1 = static_cast<uint32_t>(block >> 32);
  uint32_t x2 = static_cast<uint32_t>(stream), x3 = static_cast<uint32_t>(stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * x0, product1 = kMultiplier1 * x2;
    x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x1 = static_cast<uint32_t>(product1);
    x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x3 = static_cast<uint32_t>(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {{x0, x1, x2, x3}};
}

/// A multiple of 2^-24 in [0, 1): the word's upper 24 bits.
SHARDMESH_PHILOX_INLINE double UniformOf(uint32_t word) {
  return static_cast<int32_t>(word >> 8) * 0x1p-24;
}

/// Dropout keeps an element if UniformOf(word) >= p, that is, if its upper 24 bits are not below
/// this.
inline int32_t KeepThreshold(double p) { return static_cast<int32_t>(std::ceil(p * 0x1p24)); }

struct NormalPair {
  float even, odd;  ///< Of the elements with words 0 and 1, or 2 and 3, of their block.
};

namespace internal {

template <typename To, typename From>
SHARDMESH_PHILOX_INLINE To BitsAs(From from) {
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

/// ln(k 2^-24) for k in [1, 2^24]; error below 1.1 units in the last place.
SHARDMESH_PHILOX_INLINE float LogOfUniform(int32_t k) {
  // k = m 2^e with m in [sqrt(1/2), sqrt(2)), by the bits of the float (which is exact).
  constexpr int32_t kSqrtHalf = 0x3f3504f3;
  const int32_t bits = BitsAs<int32_t>(static_cast<float>(k)) - kSqrtHalf;
  const float e = static_cast<float>((bits >> 23) - 24);
  const float t = BitsAs<float>((bits & 0x007fffff) + kSqrtHalf) - 1.0f;
  // Minimax of (ln(1 + t) - t) / t^2.
  float q = -0x1.384192p-4f;
  q = q * t + 0x1.084722p-3f;
  q = q * t + -0x1.0f32d4p-3f;
  q = q * t + 0x1.227190p-3f;
  q = q * t + -0x1.54280cp-3f;
  q = q * t + 0x1.99a3f8p-3f;
  q = q * t + -0x1.000422p-2f;
  q = q * t + 0x1.555550p-2f;
  q = q * t + -0x1.fffff8p-2f;
  return e * 0x1.62e430p-1f + (t + (t * t) * q);
}

}  // namespace internal

/// Two independent standard normal numbers, sqrt(-2 ln u) times the cosine and the sine of 2 pi v,
/// with quotients by 2^8 rounded down:
///   u = (w0 / 2^8 + 1) / 2^24
///   v = (w1 / 2^8) / 2^24
SHARDMESH_PHILOX_INLINE NormalPair NormalsOf(uint32_t word0, uint32_t word1) {
  const float radius =
      sqrtf(0.0f - 2.0f * internal::LogOfUniform(static_cast<int32_t>(word0 >> 8) + 1));
  // v = (quarter + x) / 4, |x| <= 1/2, exactly.
  const int32_t angle = static_cast<int32_t>(word1 >> 8);
  const int32_t quarter = (angle + (1 << 21)) >> 22;
  const float x = static_cast<float>(angle - (quarter << 22)) * 0x1p-22f;
  const float z = x * x;
  // Minimax of sin(pi/2 x) / x and of cos(pi/2 x), in x^2.
  float sine = -0x1.2d9302p-8f;
  sine = sine * z + 0x1.465e92p-4f;
  sine = sine * z + -0x1.4abbbap-1f;
  sine = sine * z + 0x1.921fb6p+0f;
  sine = sine * x;
  float cosine = 0x1.d99f54p-11f;
  cosine = cosine * z + -0x1.55c4eap-6f;
  cosine = cosine * z + 0x1.03c1dap-2f;
  cosine = cosine * z + -0x1.3bd3ccp+0f;
  cosine = cosine * z + 1.0f;
  // Quadrant: an odd one swaps sine and cosine; bit 1 sets the sign.
  const bool swap = (quarter & 1) != 0;
  const uint32_t even = internal::BitsAs<uint32_t>(swap ? sine : cosine);
  const uint32_t odd = internal::BitsAs<uint32_t>(swap ? cosine : sine);
  const uint32_t even_sign = static_cast<uint32_t>((quarter + 1) & 2) << 30;
  const uint32_t odd_sign = static_cast<uint32_t>(quarter & 2) << 30;
  return {radius * internal::BitsAs<float>(even ^ even_sign),
          radius * internal::BitsAs<float>(odd ^ odd_sign)};
}

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_PHILOX_H_
