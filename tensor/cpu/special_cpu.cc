// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/special_cpu.h"

#include <cmath>
#include <limits>

namespace shardmesh::cpu::special {
namespace {

constexpr double kPi = 3.14159265358979323846, kSqrtPi = 1.77245385090551602730,
                 kSqrtHalf = 0.70710678118654752440;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Above this, asymptotic series of gamma's derivatives have converged with the terms below.
constexpr double kAsymptotic = 12.0;

// The continued fraction of erfcx from here on.
constexpr double kFractionFrom = 4.0;

}  // namespace

double Lgamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}

// By reflection and recurrence to the asymptotic series in Bernoulli numbers (NIST's Digital
// Library of Mathematical Functions, 5.5.4, 5.5.2, 5.11.2).
double Digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  if (x < 0) {
    if (x == std::floor(x)) return kNan;
    return Digamma(1 - x) - kPi / std::tan(kPi * (x - std::floor(x)));
  }
  double sum = 0;
  for (; x < kAsymptotic; x += 1) sum -= 1 / x;
  if (x == kInfinity) return x;
  const double z = 1 / (x * x);
  const double series =
      z * (1.0 / 12 - z * (1.0 / 120 -
                           z * (1.0 / 252 -
                                z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  return sum + std::log(x) - 0.5 / x - series;
}

// The same, differentiated (5.15.6, 5.15.5, 5.15.8).
double Trigamma(double x) {
  if (x <= 0) {
    if (x == std::floor(x)) return kInfinity;
    const double s = std::sin(kPi * (x - std::floor(x)));
    return kPi * kPi / (s * s) - Trigamma(1 - x);
  }
  double sum = 0;
  for (; x < kAsymptotic; x += 1) sum += 1 / (x * x);
  const double z = 1 / (x * x);
  const double series =
      z *
      (1.0 / 6 -
       z * (1.0 / 30 -
            z * (1.0 / 42 - z * (1.0 / 30 - z * (5.0 / 66 - z * (691.0 / 2730 - z * 7.0 / 6))))));
  return sum + 1 / x + 0.5 * z + series / x;
}

double Erfcx(double x) {
  if (x < 0) return 2 * std::exp(x * x) - Erfcx(-x);
  // What rounding takes from x^2 is put back.
  if (x < kFractionFrom) {
    const double square = x * x;
    return std::exp(square) * std::erfc(x) * (1 + std::fma(x, x, -square));
  }
  // 1 / (x + (1/2) / (x + 1 / (x + (3/2) / ..))) / sqrt(pi)  (7.9.1)
  double rest = x;
  for (int k = 60; k > 0; --k) rest = x + 0.5 * k / rest;
  return 1 / (kSqrtPi * rest);
}

// A closed approximation (Winitzki's) and three steps of Halley's method on erf, or on erfc where
// erf has few digits left.
double Erfinv(double x) {
  const double size = std::fabs(x);
  if (!(size < 1)) return size == 1 ? std::copysign(kInfinity, x) : kNan;
  if (size == 0) return x;
  const double log = std::log1p(-size * size);
  constexpr double kA = 0.147;
  const double half = 2 / (kPi * kA) + 0.5 * log;
  double y = std::sqrt(std::sqrt(half * half - log / kA) - half);
  for (int step = 0; step < 3; ++step) {
    const double error = size > 0.5 ? (1 - size) - std::erfc(y) : std::erf(y) - size;
    const double newton = error / (2 / kSqrtPi * std::exp(-y * y));
    y -= newton / (1 + y * newton);
  }
  return std::copysign(y, x);
}

// The series in x^2 / 4, whose terms are positive (10.25.2).
double BesselI0(double x) {
  if (std::fabs(x) > 720) return kInfinity;
  const double z = 0.25 * x * x;
  double term = 1, sum = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= z / (static_cast<double>(k) * k);
    sum += term;
  }
  return x != x ? x : sum;
}

double BesselI1(double x) {
  if (std::fabs(x) > 720) return std::copysign(kInfinity, x);
  const double z = 0.25 * x * x;
  double term = 1, sum = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= z / (static_cast<double>(k) * (k + 1));
    sum += term;
  }
  return 0.5 * x * (x != x ? x : sum);
}

double LogNormalCdf(double x) {
  const double t = x * kSqrtHalf;
  if (x < -1) return std::log(0.5 * Erfcx(-t)) - t * t;
  return std::log1p(-0.5 * std::erfc(t));
}

double Sinc(double x) { return x == 0 ? 1 : std::sin(kPi * x) / (kPi * x); }

double SincDerivative(double x) {
  if (x == 0) return 0;
  const double t = kPi * x;
  return (t * std::cos(t) - std::sin(t)) / (t * x);
}

}  // namespace shardmesh::cpu::special
