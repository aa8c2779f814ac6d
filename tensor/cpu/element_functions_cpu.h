// SPDX-License-Identifier: Apache-2.0
//
// The functions that rows of elementwise_ops.inc are written in, of one element.
//
// Exp, Log, Tanh, Sigmoid, Silu and what is made of them alone give the same bits on every
// processor; sine, cosine and what has no polynomial of ours is libm's, or computed in double here.
#ifndef SHARDMESH_TENSOR_CPU_ELEMENT_FUNCTIONS_CPU_H_
#define SHARDMESH_TENSOR_CPU_ELEMENT_FUNCTIONS_CPU_H_

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <type_traits>

#include "shardmesh/tensor/cpu/element_cpu.h"
#include "shardmesh/tensor/cpu/log_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/special_cpu.h"
#include "shardmesh/tensor/cpu/trigonometry_cpu.h"

namespace shardmesh::cpu::element {

using cpu::Cos;
using cpu::Exp;
using cpu::Log;
using cpu::Product;
using cpu::Sigmoid;
using cpu::Silu;
using cpu::SiluDerivative;
using cpu::Sin;
using cpu::Tanh;

inline constexpr double kPi = 3.14159265358979323846, kLn2 = 0.69314718055994530942,
                        kLn10 = 2.30258509299404568402, kTwoOverSqrtPi = 1.12837916709551257390,
                        kSqrtTwoOverPi = 0.79788456080286535588, kSqrtHalf = 0.70710678118654752440,
                        kInvSqrtTwoPi = 0.39894228040143267794,
                        kHalfLogTwoPi = 0.91893853320467274178;

/// Of an operand to which no gradient goes.
struct NotDifferentiable {};
inline constexpr NotDifferentiable kNone;

template <typename A>
SHARDMESH_ALWAYS_INLINE constexpr A Infinity() {
  return std::numeric_limits<A>::infinity();
}

// ---- arithmetic ---------------------------------------------------------------------------------

/// Integers wrap.
template <typename A>
SHARDMESH_ALWAYS_INLINE A Negative(A x) {
  if constexpr (std::is_floating_point_v<A>) return -x;  // 0 - x would make -0 of 0 only.
  return Difference(A{0}, x);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Abs(A x) {
  if constexpr (std::is_floating_point_v<A>) return std::fabs(x);
  return x < A{0} ? Difference(A{0}, x) : x;
}
/// nan if either is.
template <typename A>
SHARDMESH_ALWAYS_INLINE A Max(A a, A b) {
  return Maximum(a, b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Min(A a, A b) {
  return Minimum(a, b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Sqrt(A x) {
  return std::sqrt(x);
}
/// 0 / 0 is 0.
template <typename A>
SHARDMESH_ALWAYS_INLINE A Quotient(A a, A b) {
  return b == A{0} ? A{0} : a / b;
}

// ---- rounding: an integer is itself -------------------------------------------------------------

#define SHARDMESH_ROUNDING(Function, function) \
  template <typename A>                        \
  SHARDMESH_ALWAYS_INLINE A Function(A x) {    \
    if constexpr (std::is_integral_v<A>)       \
      return x;                                \
    else                                       \
      return static_cast<A>(std::function(x)); \
  }
SHARDMESH_ROUNDING(Floor, floor)
SHARDMESH_ROUNDING(Ceil, ceil)
SHARDMESH_ROUNDING(Trunc, trunc)
SHARDMESH_ROUNDING(Round, nearbyint)  // Halves to even: nobody sets another mode.
#undef SHARDMESH_ROUNDING

template <typename A>
SHARDMESH_ALWAYS_INLINE A RoundTo(A x, A decimals) {
  const A scale = std::pow(A{10}, std::fabs(decimals));
  return decimals < A{0} ? std::nearbyint(x / scale) * scale : std::nearbyint(x * scale) / scale;
}

// ---- libm's -------------------------------------------------------------------------------------

#define SHARDMESH_LIBM(Function, function)  \
  template <typename A>                     \
  SHARDMESH_ALWAYS_INLINE A Function(A x) { \
    return std::function(x);                \
  }
SHARDMESH_LIBM(Exp2, exp2)
SHARDMESH_LIBM(Expm1, expm1)
SHARDMESH_LIBM(Log2, log2)
SHARDMESH_LIBM(Log10, log10)
SHARDMESH_LIBM(Log1p, log1p)
SHARDMESH_LIBM(Tan, tan)
SHARDMESH_LIBM(Asin, asin)
SHARDMESH_LIBM(Acos, acos)
SHARDMESH_LIBM(Atan, atan)
SHARDMESH_LIBM(Sinh, sinh)
SHARDMESH_LIBM(Cosh, cosh)
SHARDMESH_LIBM(Asinh, asinh)
SHARDMESH_LIBM(Acosh, acosh)
SHARDMESH_LIBM(Atanh, atanh)
SHARDMESH_LIBM(Erf, erf)
SHARDMESH_LIBM(Erfc, erfc)
#undef SHARDMESH_LIBM

template <typename A>
SHARDMESH_ALWAYS_INLINE A Pow(A x, A exponent) {
  return std::pow(x, exponent);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Atan2(A a, A b) {
  return std::atan2(a, b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Hypot(A a, A b) {
  return std::hypot(a, b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A CopySign(A a, A b) {
  return std::copysign(a, b);
}

// ---- special functions, in double (special_cpu.h) -----------------------------------------------

#define SHARDMESH_IN_DOUBLE(Function)                    \
  template <typename A>                                  \
  SHARDMESH_ALWAYS_INLINE A Function(A x) {              \
    return static_cast<A>(special::Function(double{x})); \
  }
SHARDMESH_IN_DOUBLE(Erfcx)
SHARDMESH_IN_DOUBLE(Erfinv)
SHARDMESH_IN_DOUBLE(Lgamma)
SHARDMESH_IN_DOUBLE(Digamma)
SHARDMESH_IN_DOUBLE(Trigamma)
SHARDMESH_IN_DOUBLE(BesselI0)
SHARDMESH_IN_DOUBLE(BesselI1)
SHARDMESH_IN_DOUBLE(LogNormalCdf)
SHARDMESH_IN_DOUBLE(Sinc)
SHARDMESH_IN_DOUBLE(SincDerivative)
#undef SHARDMESH_IN_DOUBLE

template <typename A>
SHARDMESH_ALWAYS_INLINE A NormalCdf(A x) {
  return A{0.5} * std::erfc(-x * A(kSqrtHalf));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A NormalDensity(A x) {
  return A(kInvSqrtTwoPi) * Exp(A{-0.5} * x * x);
}
/// -x log(x).
template <typename A>
SHARDMESH_ALWAYS_INLINE A Entropy(A x) {
  return x == A{0} ? A{0} : x < A{0} ? -Infinity<A>() : -x * Log(x);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Logit(A x, A eps) {
  const A kept = eps < A{0} ? x : x < eps ? eps : x > A{1} - eps ? A{1} - eps : x;
  return Log(kept / (A{1} - kept));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A LogitDerivative(A x, A eps) {
  const A low = eps < A{0} ? A{0} : eps;
  if (x < low || x > A{1} - low) return eps < A{0} ? std::numeric_limits<A>::quiet_NaN() : A{0};
  return A{1} / (x * (A{1} - x));
}

// ---- activations --------------------------------------------------------------------------------

/// log(1 + e^x).
template <typename A>
SHARDMESH_ALWAYS_INLINE A Softplus(A x) {
  return Max(x, A{0}) + Log1p(Exp(-Abs(x)));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A MishDerivative(A x) {
  const A t = Tanh(Softplus(x));
  return t + x * Sigmoid(x) * (A{1} - t * t);
}
/// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename A>
SHARDMESH_ALWAYS_INLINE A GeluByTanh(A x) {
  const A u = A(kSqrtTwoOverPi) * (x + A(0.044715) * (x * x * x));
  return A{0.5} * x * (A{1} + Tanh(u));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A GeluByTanhDerivative(A x) {
  const A u = A(kSqrtTwoOverPi) * (x + A(0.044715) * (x * x * x));
  const A du = A(kSqrtTwoOverPi) * (A{1} + A(3 * 0.044715) * (x * x));
  const A t = Tanh(u);
  return A{0.5} * (A{1} + t) + A{0.5} * x * (A{1} - t * t) * du;
}

// ---- predicates and bits ------------------------------------------------------------------------

template <typename A>
SHARDMESH_ALWAYS_INLINE bool IsInf(A x) {
  if constexpr (std::is_integral_v<A>)
    return false;
  else
    return std::fabs(x) == Infinity<A>();
}
template <typename A>
SHARDMESH_ALWAYS_INLINE bool IsFinite(A x) {
  if constexpr (std::is_integral_v<A>)
    return true;
  else
    return std::fabs(x) < Infinity<A>();
}
template <typename A>
SHARDMESH_ALWAYS_INLINE bool SignBit(A x) {
  if constexpr (std::is_integral_v<A>)
    return x < A{0};
  else
    return std::copysign(A{1}, x) < A{0};  // GCC 12 fails on loops over std::signbit.
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A BitNot(A x) {
  if constexpr (std::is_same_v<A, bool>)
    return !x;
  else
    return static_cast<A>(~x);
}
/// By as many bits as there are, or a negative number: as if bit after bit had been shifted out.
template <typename A>
SHARDMESH_ALWAYS_INLINE A ShiftLeft(A a, A b) {
  constexpr A kBits = sizeof(A) * 8;
  using U = std::make_unsigned_t<A>;
  return b < A{0} || b >= kBits ? A{0} : static_cast<A>(static_cast<U>(a) << b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A ShiftRight(A a, A b) {
  constexpr A kBits = sizeof(A) * 8;
  return static_cast<A>(a >> (b < A{0} || b >= kBits ? kBits - 1 : b));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Gcd(A a, A b) {
  using U = std::make_unsigned_t<A>;
  U x = static_cast<U>(Abs(a)), y = static_cast<U>(Abs(b));
  while (y != 0) {
    const U rest = x % y;
    x = y;
    y = rest;
  }
  return static_cast<A>(x);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Lcm(A a, A b) {
  const A gcd = Gcd(a, b);
  return gcd == A{0} ? A{0} : Abs(Product(static_cast<A>(a / gcd), b));
}
template <typename A, typename P>
SHARDMESH_ALWAYS_INLINE bool IsClose(A a, A b, P relative, P absolute, P equal_nan) {
  if constexpr (std::is_floating_point_v<A>) {
    if (a != a || b != b) return equal_nan != P{0} && a != a && b != b;
    if (a == b) return true;
    return IsFinite(a) && IsFinite(b) && std::fabs(a - b) <= absolute + relative * std::fabs(b);
  } else {
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    return a == b || std::fabs(x - y) <= absolute + relative * std::fabs(y);
  }
}

// ---- division -----------------------------------------------------------------------------------

/// Towards 0. Integers: b is not 0; the least by -1 wraps.
template <typename A>
SHARDMESH_ALWAYS_INLINE A TruncDivide(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return b == A{-1} ? Negative(a) : static_cast<A>(a / b);
  else
    return std::trunc(a / b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A FMod(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return b == A{-1} ? A{0} : static_cast<A>(a % b);
  else
    return std::fmod(a, b);
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A Remainder(A a, A b) {
  const A rest = FMod(a, b);
  return rest != A{0} && (rest < A{0}) != (b < A{0}) ? rest + b : rest;
}
/// The integer whose product with b leaves Remainder(a, b).
template <typename A>
SHARDMESH_ALWAYS_INLINE A FloorDivide(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    const A quotient = TruncDivide(a, b), rest = FMod(a, b);
    return rest != A{0} && (rest < A{0}) != (b < A{0}) ? static_cast<A>(quotient - 1) : quotient;
  } else {
    if (b == A{0}) return a / b;
    const A quotient = (a - Remainder(a, b)) / b;
    if (quotient == A{0}) return std::copysign(A{0}, a / b);
    return std::nearbyint(quotient);
  }
}

// ---- logarithms of sums, losses -----------------------------------------------------------------

template <typename A>
SHARDMESH_ALWAYS_INLINE A LogAddExp(A a, A b) {
  return a == b && IsInf(a) ? a : Max(a, b) + Log1p(Exp(-Abs(a - b)));
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A LogAddExp2(A a, A b) {
  return a == b && IsInf(a) ? a : Max(a, b) + Log1p(Exp2(-Abs(a - b))) * A(1 / kLn2);
}
/// d^2 / (2 beta) up to beta, |d| - beta / 2 beyond.
template <typename A>
SHARDMESH_ALWAYS_INLINE A SmoothL1(A d, A beta) {
  const A size = Abs(d);
  return size < beta ? A{0.5} * size * size / beta : size - A{0.5} * beta;
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A SmoothL1Derivative(A d, A beta) {
  return Abs(d) < beta ? d / beta : A(d > A{0}) - A(d < A{0});
}
/// Stirling's approximation of log(b!) above 1.
template <typename A>
SHARDMESH_ALWAYS_INLINE A StirlingTerm(A b) {
  return b > A{1} ? b * Log(b) - b + A{0.5} * Log(A(2 * kPi) * b) : A{0};
}
template <typename A>
SHARDMESH_ALWAYS_INLINE A StirlingDerivative(A b) {
  return b > A{1} ? Log(b) + A{0.5} / b : A{0};
}

}  // namespace shardmesh::cpu::element

#endif  // SHARDMESH_TENSOR_CPU_ELEMENT_FUNCTIONS_CPU_H_
