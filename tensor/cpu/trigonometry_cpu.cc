// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/trigonometry_cpu.h"

namespace shardmesh::cpu {
namespace {

using Wide = unsigned __int128;

// 64 zero bits, then the binary digits of 2/pi after the point.
constexpr uint64_t kTwoOverPi[] = {
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
    0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
    0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
    0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};

// The 64 digits that begin `bit` digits into the table.
uint64_t DigitsAt(int bit) {
  const int word = bit / 64, shift = bit % 64;
  if (shift == 0) return kTwoOverPi[word];
  return kTwoOverPi[word] << shift | kTwoOverPi[word + 1] >> (64 - shift);
}

// 2^n for a normal result.
double TwoTo(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

// fraction 2^-128 pi/2 as hi + lo. The product of two doubles is made exact by cutting each in two.
ReducedAngle AngleOf(Wide fraction) {
  if (fraction == 0) return {0, 0, 0};
  const auto top = static_cast<uint64_t>(fraction >> 64);
  const int zeros =
      top != 0 ? __builtin_clzll(top) : 64 + __builtin_clzll(static_cast<uint64_t>(fraction));
  const Wide digits = fraction << zeros;
  constexpr uint64_t kLow53 = (uint64_t{1} << 53) - 1;
  const double unit = TwoTo(-zeros - 53);
  const double u = static_cast<double>(static_cast<uint64_t>(digits >> 75)) * unit;
  const double u_rest =
      static_cast<double>(static_cast<uint64_t>(digits >> 22) & kLow53) * (unit * 0x1p-53);
  constexpr double kHalfPi = 0x1.921fb54442d18p+0, kHalfPiRest = 0x1.1a62633145c07p-54;
  constexpr double kUpper = 0x1.921fb5p+0, kLower = kHalfPi - kUpper;
  const double upper = std::bit_cast<double>(std::bit_cast<uint64_t>(u) & ~uint64_t{0x7ffffff});
  const double lower = u - upper;
  const double product = u * kHalfPi;
  const double rounded_off =
      ((upper * kUpper - product) + upper * kLower + lower * kUpper) + lower * kLower;
  const double rest = rounded_off + (u * kHalfPiRest + u_rest * kHalfPi);
  const double hi = product + rest;
  return {hi, (product - hi) + rest, 0};
}

}  // namespace

// x = m 2^e with an integer m of 53 bits. Digits of 2/pi whose product with x is a multiple of 4,
// whole turns, are left out; three words of those that follow give the angle to 2^-126 of pi/2.
// Source: M. Payne, R. Hanek, "Radian reduction for trigonometric functions", 1983.
ReducedAngle ReduceLargeAngle(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int e = static_cast<int>(bits >> 52 & 0x7ff) - 1075;
  const uint64_t m = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const int first = e - 2 + 64;
  // m times the digits, modulo 4; the point is after the two highest bits.
  const Wide product = (Wide{m} * DigitsAt(first) << 64) + Wide{m} * DigitsAt(first + 64) +
                       (Wide{m} * DigitsAt(first + 128) >> 64);
  uint64_t quadrant = static_cast<uint64_t>(product >> 126);
  Wide fraction = product << 2;
  const bool is_past_half = fraction >> 127 != 0;
  if (is_past_half) {
    quadrant += 1;
    fraction = -fraction;
  }
  ReducedAngle angle = AngleOf(fraction);
  const bool is_negative = bits >> 63 != 0;
  if (is_past_half != is_negative) angle.hi = -angle.hi, angle.lo = -angle.lo;
  angle.quadrant = is_negative ? -quadrant : quadrant;
  return angle;
}

}  // namespace shardmesh::cpu
