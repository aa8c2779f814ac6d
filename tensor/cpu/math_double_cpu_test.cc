// SPDX-License-Identifier: Apache-2.0
//
// Functions of doubles, and those of floats that are rounded from them.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/tensor/cpu/log_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/trigonometry_cpu.h"

namespace shardmesh::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// A function for inner loops, and the same in 64 bits of precision.
#define SHARDMESH_FUNCTION(Name, exact)                       \
  struct Name##Of {                                           \
    template <typename T>                                     \
    static SHARDMESH_ALWAYS_INLINE T Apply(T x) {             \
      return Name(x);                                         \
    }                                                         \
    static long double Exact(long double x) { return exact; } \
  };
SHARDMESH_FUNCTION(Exp, std::exp(x))
SHARDMESH_FUNCTION(Log, std::log(x))
SHARDMESH_FUNCTION(Tanh, std::tanh(x))
SHARDMESH_FUNCTION(Sigmoid, x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)))
SHARDMESH_FUNCTION(Sin, std::sin(x))
SHARDMESH_FUNCTION(Cos, std::cos(x))
#undef SHARDMESH_FUNCTION

template <typename Function, typename T>
struct Loop {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, T* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = Function::Apply(x[i]);
  }
};

// Between `least` and `most` in magnitude, of both signs, evenly in the logarithm.
template <typename T>
std::vector<T> Spread(double least, double most) {
  std::mt19937_64 random(7);
  std::vector<T> values;
  for (int i = 0; i < 100003; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const double x = std::exp(std::log(least) + u * (std::log(most) - std::log(least)));
    values.push_back(static_cast<T>(random() % 2 == 0 ? x : -x));
  }
  return values;
}

template <typename T>
long double UnitInLastPlace(long double value) {
  int exponent;
  std::frexp(value, &exponent);
  using Limits = std::numeric_limits<T>;
  return std::ldexp(1.0L, std::max(exponent, Limits::min_exponent) - Limits::digits);
}

template <typename Function, typename T>
void ExpectWithinUnits(double least, double most, double units) {
  const std::vector<T> x = Spread<T>(least, most);
  std::vector<T> y(x.size());
  RunForIsa<Loop<Function, T>>(x.data(), y.data(), static_cast<int64_t>(x.size()));
  long double worst = 0, worst_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = Function::Exact(x[i]);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(y[i])) << x[i];
    } else if (std::isinf(static_cast<T>(exact))) {
      EXPECT_EQ(y[i], static_cast<T>(exact)) << x[i];
    } else {
      const long double error = std::fabs(y[i] - exact) / UnitInLastPlace<T>(exact);
      if (error > worst) worst = error, worst_x = x[i];
    }
  }
  EXPECT_LE(worst, units) << "at " << worst_x;
}

TEST(MathOfDoubles, IsAccurate) {
  ExpectWithinUnits<ExpOf, double>(1e-20, 1000, 1.01);
  ExpectWithinUnits<ExpOf, double>(0.1, 3, 1.01);
  ExpectWithinUnits<LogOf, double>(1e-320, 1e308, 0.8);
  ExpectWithinUnits<LogOf, double>(0.3, 3, 0.8);
  ExpectWithinUnits<TanhOf, double>(1e-20, 100, 1.4);
  ExpectWithinUnits<SigmoidOf, double>(1e-20, 700, 2.5);
  ExpectWithinUnits<SinOf, double>(1e-20, 1e7, 0.8);
  ExpectWithinUnits<CosOf, double>(1e-20, 1e7, 0.8);
  // The C library's long double is 0.5 units off, of 1/2048.
  ExpectWithinUnits<SinOf, double>(1e6, 1e308, 0.8);
  ExpectWithinUnits<CosOf, double>(1e6, 1e308, 0.8);
}

TEST(MathOfDoubles, RoundsFunctionsOfFloatsOnce) {
  ExpectWithinUnits<LogOf, float>(1e-44, 3e38, 0.5001);
  ExpectWithinUnits<SinOf, float>(1e-30, 3e38, 0.5001);
  ExpectWithinUnits<CosOf, float>(1e-30, 3e38, 0.5001);
}

// Multiples of pi/2 rounded to a double, where the rest is as small as it gets: 6381956970095103 *
// 2^797 is the double next to one.
TEST(MathOfDoubles, ReducesAnglesNextToMultiplesOfHalfPi) {
  for (int i = 1; i < 100000; ++i) {
    const double x = i * 1.5707963267948966;
    EXPECT_NEAR(Sin(x), std::sin(x), 1e-15) << x;
    const double small = i % 2 == 0 ? Sin(x) : Cos(x);
    const double exact = i % 2 == 0 ? std::sin(x) : std::cos(x);
    ASSERT_NEAR(small / exact, 1, 4e-16) << x;
  }
  EXPECT_EQ(Cos(6381956970095103.0 * 0x1p797), -0x1.14ae72e6ba22fp-61);
}

template <typename Function, typename T>
void ExpectSameBitsOnEveryIsa() {
  const std::vector<T> x = Spread<T>(1e-10, 1e10);
  std::vector<T> expected(x.size()), y(x.size());
  const auto n = static_cast<int64_t>(x.size());
  RunBaseline<Loop<Function, T>>(x.data(), expected.data(), n);
  const auto differ = [&] {
    int count = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool both_nan = std::isnan(y[i]) && std::isnan(expected[i]);
      count += !both_nan && std::memcmp(&y[i], &expected[i], sizeof(T)) != 0;
    }
    return count;
  };
  if (CurrentIsa() >= Isa::kAvx2) {
    RunAvx2<Loop<Function, T>>(x.data(), y.data(), n);
    EXPECT_EQ(differ(), 0);
  }
  if (CurrentIsa() >= Isa::kAvx512) {
    RunAvx512<Loop<Function, T>>(x.data(), y.data(), n);
    EXPECT_EQ(differ(), 0);
  }
  for (size_t i = 0; i < x.size(); ++i) {  // As a tail of one element.
    RunForIsa<Loop<Function, T>>(&x[i], &y[i], int64_t{1});
  }
  EXPECT_EQ(differ(), 0);
}

TEST(MathOfDoubles, IsTheSameOnEveryInstructionSet) {
  ExpectSameBitsOnEveryIsa<ExpOf, double>();
  ExpectSameBitsOnEveryIsa<LogOf, double>();
  ExpectSameBitsOnEveryIsa<TanhOf, double>();
  ExpectSameBitsOnEveryIsa<SigmoidOf, double>();
  ExpectSameBitsOnEveryIsa<SinOf, double>();
  ExpectSameBitsOnEveryIsa<CosOf, double>();
  ExpectSameBitsOnEveryIsa<LogOf, float>();
  ExpectSameBitsOnEveryIsa<SinOf, float>();
  ExpectSameBitsOnEveryIsa<CosOf, float>();
}

TEST(MathOfDoubles, SpecialValues) {
  EXPECT_EQ(Exp(0.0), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_LT(Exp(709.78), kInfinity);
  EXPECT_EQ(Exp(709.79), kInfinity);
  EXPECT_EQ(Exp(-745.0), 0x1p-1074);  // The smallest subnormal.
  EXPECT_EQ(Exp(-746.0), 0);
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_EQ(Log(0.0), -kInfinity);
  EXPECT_EQ(Log(-0.0), -kInfinity);
  EXPECT_EQ(Log(1.0), 0);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  for (const double x : {-1.0, -0x1p-1074, -kInfinity, kNan}) EXPECT_TRUE(std::isnan(Log(x)));
  EXPECT_EQ(Tanh(kInfinity), 1);
  EXPECT_EQ(Tanh(-kInfinity), -1);
  EXPECT_TRUE(std::signbit(Tanh(-0.0)));
  EXPECT_TRUE(std::isnan(Tanh(kNan)));
  EXPECT_EQ(Sigmoid(-kInfinity), 0);
  EXPECT_GT(Sigmoid(-740.0), 0);
  EXPECT_EQ(Sin(0.0), 0);
  EXPECT_TRUE(std::signbit(Sin(-0.0)));
  EXPECT_EQ(Cos(0.0), 1);
  for (const double x : {kInfinity, -kInfinity, kNan}) {
    EXPECT_TRUE(std::isnan(Sin(x)));
    EXPECT_TRUE(std::isnan(Cos(x)));
  }
  EXPECT_EQ(Sin(-1e300), -Sin(1e300));
  EXPECT_EQ(Cos(-1e300), Cos(1e300));
}

}  // namespace
}  // namespace shardmesh::cpu
