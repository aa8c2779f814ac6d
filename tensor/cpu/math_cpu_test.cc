// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/math_cpu.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace shardmesh::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ExpOf {
  static SHARDMESH_ALWAYS_INLINE float Apply(float x) { return Exp(x); }
  static double Exact(double x) { return std::exp(x); }
};
struct TanhOf {
  static SHARDMESH_ALWAYS_INLINE float Apply(float x) { return Tanh(x); }
  static double Exact(double x) { return std::tanh(x); }
};
struct SigmoidOf {
  static SHARDMESH_ALWAYS_INLINE float Apply(float x) { return Sigmoid(x); }
  static double Exact(double x) {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
  }
};
struct SiluOf {
  static SHARDMESH_ALWAYS_INLINE float Apply(float x) { return Silu(x); }
  static double Exact(double x) { return x * SigmoidOf::Exact(x); }
};

template <typename Function>
struct Loop {
  static SHARDMESH_ALWAYS_INLINE void Run(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = Function::Apply(x[i]);
  }
};

// Every 1009th float (a prime, so that all exponents and low bits occur).
std::vector<float> SomeFloats() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 1009) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

double UnitInLastPlace(double value) {
  int exponent;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

template <typename Function>
void ExpectWithinUnits(double units) {
  const std::vector<float> x = SomeFloats();
  std::vector<float> y(x.size());
  RunForIsa<Loop<Function>>(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0, worst_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = Function::Exact(x[i]);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(y[i])) << x[i];
    } else if (std::isinf(static_cast<float>(exact))) {
      EXPECT_EQ(y[i], static_cast<float>(exact)) << x[i];
    } else {
      const double error = std::fabs(y[i] - exact) / UnitInLastPlace(exact);
      if (error > worst) worst = error, worst_x = x[i];
    }
  }
  EXPECT_LE(worst, units) << "at " << worst_x;
}

template <typename Function>
void ExpectSameBitsOnEveryIsa() {
  const std::vector<float> x = SomeFloats();
  std::vector<float> expected(x.size()), y(x.size());
  const auto n = static_cast<int64_t>(x.size());
  RunBaseline<Loop<Function>>(x.data(), expected.data(), n);
  const auto differ = [&] {
    int count = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool both_nan = std::isnan(y[i]) && std::isnan(expected[i]);
      count += !both_nan && std::memcmp(&y[i], &expected[i], sizeof(float)) != 0;
    }
    return count;
  };
  if (CurrentIsa() >= Isa::kAvx2) {
    RunAvx2<Loop<Function>>(x.data(), y.data(), n);
    EXPECT_EQ(differ(), 0);
  }
  if (CurrentIsa() >= Isa::kAvx512) {
    RunAvx512<Loop<Function>>(x.data(), y.data(), n);
    EXPECT_EQ(differ(), 0);
  }
  // A vector's lanes and a tail of one element.
  for (size_t i = 0; i < x.size(); i += 1013) {
    float one;
    RunForIsa<Loop<Function>>(&x[i], &one, int64_t{1});
    if (std::isnan(one)) continue;
    ASSERT_EQ(std::memcmp(&one, &expected[i], sizeof(float)), 0) << x[i];
  }
}

TEST(Math, IsAccurate) {
  ExpectWithinUnits<ExpOf>(1);
  ExpectWithinUnits<TanhOf>(2);
  ExpectWithinUnits<SigmoidOf>(3);
}

TEST(Math, SiluIsAccurateWhereSigmoidIsNormal) {
  const std::vector<float> x = SomeFloats();
  for (size_t i = 0; i < x.size(); i += 7) {
    if (!(x[i] > -87)) continue;
    const double exact = SiluOf::Exact(x[i]);
    if (std::isinf(exact)) continue;
    ASSERT_LE(std::fabs(Silu(x[i]) - exact), 4 * UnitInLastPlace(exact)) << x[i];
  }
}

TEST(Math, IsTheSameOnEveryInstructionSet) {
  ExpectSameBitsOnEveryIsa<ExpOf>();
  ExpectSameBitsOnEveryIsa<TanhOf>();
  ExpectSameBitsOnEveryIsa<SigmoidOf>();
  ExpectSameBitsOnEveryIsa<SiluOf>();
}

TEST(Math, SpecialValues) {
  EXPECT_EQ(Exp(0.0f), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(88.8f), kInfinity);
  EXPECT_LT(Exp(88.7f), kInfinity);
  EXPECT_EQ(Exp(-103.0f), 0x1p-149f);  // The smallest subnormal.
  EXPECT_EQ(Exp(-104.0f), 0);
  EXPECT_TRUE(std::isnan(Exp(std::nanf(""))));
  EXPECT_EQ(Tanh(kInfinity), 1);
  EXPECT_EQ(Tanh(-kInfinity), -1);
  EXPECT_TRUE(std::signbit(Tanh(-0.0f)));
  EXPECT_TRUE(std::isnan(Tanh(std::nanf(""))));
  EXPECT_EQ(Tanh(1e-30f), 1e-30f);
  EXPECT_EQ(Sigmoid(kInfinity), 1);
  EXPECT_EQ(Sigmoid(-kInfinity), 0);
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(-0.0f), 0.5f);
  EXPECT_GT(Sigmoid(-100.0f), 0);  // Subnormal, not 1 / (1 + inf).
  EXPECT_TRUE(std::isnan(Sigmoid(std::nanf(""))));
  EXPECT_EQ(Silu(kInfinity), kInfinity);
}

}  // namespace
}  // namespace shardmesh::cpu
