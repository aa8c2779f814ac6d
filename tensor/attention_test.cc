// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::Dot;
using testing::FiniteDifferences;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

double Tolerance(DType dtype) {
  return dtype == DType::kF64   ? 1e-14
         : dtype == DType::kF32 ? 3e-6
         : dtype == DType::kF16 ? 2e-3
                                : 1e-2;
}

// ---- rotary -------------------------------------------------------------------------------------

TEST(Rotary, TurnsPairsAndBack) {
  ExecutionContext context;
  const int64_t batch = 2, heads = 3, rows = 5, d = 14, half = d / 2;
  for (const DType dtype : kFloating) {
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Tensor x = RandomTensor(context, {batch, heads, rows, d}, dtype, 1);
    std::vector<double> c, s;
    for (int i = 0; i < rows * half; ++i)
      c.push_back(std::cos(0.3 * i)), s.push_back(std::sin(0.3 * i));
    const Tensor cos = MakeTensor(context, {rows, half}, wide, c),
                 sin = MakeTensor(context, {rows, half}, wide, s);
    const auto values = Values(x);
    std::vector<double> expected(values.size());
    for (int64_t head = 0; head < batch * heads; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < half; ++i) {
          const size_t at = (head * rows + row) * d + i;
          const double co = c[row * half + i], si = s[row * half + i];
          expected[at] = values[at] * co - values[at + half] * si;
          expected[at + half] = values[at + half] * co + values[at] * si;
        }
      }
    }
    for (const auto& order :
         {std::vector{0, 1, 2, 3}, std::vector{0, 2, 1, 3}, std::vector{3, 2, 1, 0}}) {
      const Tensor y =
          ops::Rotary(context, InMemoryOrder(context, x, order, 2), cos, sin, /*inverse=*/false);
      EXPECT_LT(WorstRelative(Values(y), expected), Tolerance(dtype));
      EXPECT_LT(WorstRelative(Values(ops::Rotary(context, y, cos, sin, /*inverse=*/true)), values),
                2 * Tolerance(dtype));
    }
    // A transposed view gives a transposed result: [batch, rows, heads, d] in memory.
    const Tensor y = ops::Rotary(context, InMemoryOrder(context, x, {0, 2, 1, 3}), cos, sin, false);
    EXPECT_TRUE(y.Transpose(1, 2).IsContiguous());
  }
}

// ---- attention ----------------------------------------------------------------------------------

struct Extents {
  int64_t batch, heads, key_heads, queries, keys, d;
};

struct Reference {
  std::vector<double> out, log_sum_exp;
};

Reference Attend(const Extents& e, const std::vector<double>& q, const std::vector<double>& k,
                 const std::vector<double>& v, bool causal, double scale) {
  Reference result;
  for (int64_t bh = 0; bh < e.batch * e.heads; ++bh) {
    const int64_t batch = bh / e.heads, key_head = bh % e.heads / (e.heads / e.key_heads);
    const double* ks = k.data() + (batch * e.key_heads + key_head) * e.keys * e.d;
    const double* vs = v.data() + (batch * e.key_heads + key_head) * e.keys * e.d;
    for (int64_t i = 0; i < e.queries; ++i) {
      const double* qs = q.data() + (bh * e.queries + i) * e.d;
      const int64_t seen =
          causal ? std::min(e.keys, std::max<int64_t>(0, i + 1 + e.keys - e.queries)) : e.keys;
      double sum = 0.0;
      std::vector<double> row(e.d, 0.0);
      for (int64_t j = 0; j < seen; ++j) {
        double score = 0.0;
        for (int64_t l = 0; l < e.d; ++l) score += qs[l] * ks[j * e.d + l];
        const double weight = std::exp(score * scale);
        sum += weight;
        for (int64_t l = 0; l < e.d; ++l) row[l] += weight * vs[j * e.d + l];
      }
      for (const double value : row) result.out.push_back(seen == 0 ? 0.0 : value / sum);
      result.log_sum_exp.push_back(std::log(sum));
    }
  }
  return result;
}

// Of each row's largest score and sum of exponentials.
std::vector<double> LogSumExp(const Tensor& statistics) {
  const std::vector<double> pairs = Values(statistics);
  std::vector<double> result;
  for (size_t i = 0; i < pairs.size(); i += 2) result.push_back(pairs[i] + std::log(pairs[i + 1]));
  return result;
}

struct Inputs {
  Tensor q, k, v, grad;
};
Inputs RandomInputs(ExecutionContext& context, const Extents& e, DType dtype) {
  return {RandomTensor(context, {e.batch, e.heads, e.queries, e.d}, dtype, 1),
          RandomTensor(context, {e.batch, e.key_heads, e.keys, e.d}, dtype, 2),
          RandomTensor(context, {e.batch, e.key_heads, e.keys, e.d}, dtype, 3),
          RandomTensor(context, {e.batch, e.heads, e.queries, e.d}, dtype, 4)};
}

constexpr Extents kExtents[] = {
    {2, 3, 3, 5, 11, 7},    {1, 6, 2, 7, 7, 3},     {2, 2, 1, 67, 67, 16},
    {1, 2, 2, 1, 131, 32},  {1, 1, 1, 131, 5, 1},   {1, 4, 2, 131, 257, 8},
    {1, 2, 1, 257, 131, 5}, {1, 1, 1, 64, 128, 32}, {1, 1, 1, 65, 129, 33},
};

TEST(Attention, EveryDTypeAndBlockBoundary) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const Extents& e : kExtents) {
      for (const bool causal : {false, true}) {
        const Inputs in = RandomInputs(context, e, dtype);
        const auto expected = Attend(e, Values(in.q), Values(in.k), Values(in.v), causal, 0.7);
        const auto actual = ops::Attention(context, in.q, in.k, in.v, causal, 0.7);
        EXPECT_LT(WorstRelative(Values(actual.out), expected.out), Tolerance(dtype))
            << dtype << " " << in.q.ToString() << in.k.ToString() << causal;
        EXPECT_LT(WorstRelative(LogSumExp(actual.statistics), expected.log_sum_exp),
                  dtype == DType::kF64 ? 1e-14 : 2e-6);
      }
    }
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  ExecutionContext context;
  const Extents e = {1, 1, 1, 3, 300, 2};
  std::vector<double> q = {50, 50, -50, 50, 0, 0}, k(600), v(600);
  for (int i = 0; i < 600; ++i) k[i] = (i % 7) - 3, v[i] = i;
  for (int i = 0; i < 600; ++i) k[i] *= i;  // Later blocks have ever larger maxima.
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto actual = ops::Attention(context, MakeTensor(context, {1, 1, 3, 2}, dtype, q),
                                       MakeTensor(context, {1, 1, 300, 2}, dtype, k),
                                       MakeTensor(context, {1, 1, 300, 2}, dtype, v), false, 1e-4);
    EXPECT_LT(WorstRelative(Values(actual.out), Attend(e, q, k, v, false, 1e-4).out), 1e-5);
    const auto extreme = ops::Attention(context, MakeTensor(context, {1, 1, 3, 2}, dtype, q),
                                        MakeTensor(context, {1, 1, 300, 2}, dtype, k),
                                        MakeTensor(context, {1, 1, 300, 2}, dtype, v), false, 1.0);
    for (const double value : Values(extreme.out)) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Attention, BackwardIsTheGradient) {
  ExecutionContext context;
  for (const Extents& e :
       {Extents{2, 3, 3, 5, 11, 7}, Extents{1, 6, 2, 7, 7, 3}, Extents{1, 2, 1, 7, 5, 3}}) {
    for (const bool causal : {false, true}) {
      Inputs in = RandomInputs(context, e, DType::kF64);
      const auto loss = [&] {
        return Dot(Values(in.grad),
                   Values(ops::Attention(context, in.q, in.k, in.v, causal, 0.7).out));
      };
      const auto dq = FiniteDifferences(in.q, loss), dk = FiniteDifferences(in.k, loss),
                 dv = FiniteDifferences(in.v, loss);
      const auto forward = ops::Attention(context, in.q, in.k, in.v, causal, 0.7);
      const auto actual = ops::AttentionBackward(context, in.grad, in.q, in.k, in.v, forward.out,
                                                 forward.statistics, causal, 0.7);
      EXPECT_LT(WorstRelative(Values(actual.dq), dq), 1e-8);
      EXPECT_LT(WorstRelative(Values(actual.dk), dk), 1e-8);
      EXPECT_LT(WorstRelative(Values(actual.dv), dv), 1e-8);
    }
  }
}

// By formulas over the whole matrix of weights.
struct ReferenceGradients {
  std::vector<double> dq, dk, dv;
};
ReferenceGradients AttendBackward(const Extents& e, const std::vector<double>& grad,
                                  const std::vector<double>& q, const std::vector<double>& k,
                                  const std::vector<double>& v, bool causal, double scale) {
  const Reference forward = Attend(e, q, k, v, causal, scale);
  ReferenceGradients result{std::vector<double>(q.size(), 0.0), std::vector<double>(k.size(), 0.0),
                            std::vector<double>(v.size(), 0.0)};
  for (int64_t bh = 0; bh < e.batch * e.heads; ++bh) {
    const int64_t base =
        (bh / e.heads * e.key_heads + bh % e.heads / (e.heads / e.key_heads)) * e.keys * e.d;
    for (int64_t i = 0; i < e.queries; ++i) {
      const int64_t row = bh * e.queries + i;
      const int64_t seen =
          causal ? std::min(e.keys, std::max<int64_t>(0, i + 1 + e.keys - e.queries)) : e.keys;
      double dot = 0.0;
      for (int64_t l = 0; l < e.d; ++l) dot += grad[row * e.d + l] * forward.out[row * e.d + l];
      for (int64_t j = 0; j < seen; ++j) {
        double score = 0.0, product = 0.0;
        for (int64_t l = 0; l < e.d; ++l) {
          score += q[row * e.d + l] * k[base + j * e.d + l];
          product += grad[row * e.d + l] * v[base + j * e.d + l];
        }
        const double weight = std::exp(score * scale - forward.log_sum_exp[row]),
                     g = weight * (product - dot) * scale;
        for (int64_t l = 0; l < e.d; ++l) {
          result.dq[row * e.d + l] += g * k[base + j * e.d + l];
          result.dk[base + j * e.d + l] += g * q[row * e.d + l];
          result.dv[base + j * e.d + l] += weight * grad[row * e.d + l];
        }
      }
    }
  }
  return result;
}

TEST(Attention, BackwardOfEveryDTypeBlockBoundaryAndMemoryOrder) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const Extents& e : kExtents) {
      for (const bool causal : {false, true}) {
        const Inputs in = RandomInputs(context, e, dtype);
        const auto expected = AttendBackward(e, Values(in.grad), Values(in.q), Values(in.k),
                                             Values(in.v), causal, 0.7);
        for (const auto& order :
             {std::vector{0, 1, 2, 3}, std::vector{0, 2, 1, 3}, std::vector{3, 0, 1, 2}}) {
          const auto turned = [&](const Tensor& x) {
            return InMemoryOrder(context, x, order, order[3] == 3 ? 3 : 0);
          };
          const Inputs t = {turned(in.q), turned(in.k), turned(in.v), turned(in.grad)};
          const auto forward = ops::Attention(context, t.q, t.k, t.v, causal, 0.7);
          const auto actual = ops::AttentionBackward(context, t.grad, t.q, t.k, t.v, forward.out,
                                                     forward.statistics, causal, 0.7);
          EXPECT_LT(WorstRelative(Values(actual.dq), expected.dq), 4 * Tolerance(dtype))
              << dtype << in.q.ToString() << in.k.ToString() << causal;
          EXPECT_LT(WorstRelative(Values(actual.dk), expected.dk), 4 * Tolerance(dtype));
          EXPECT_LT(WorstRelative(Values(actual.dv), expected.dv), 4 * Tolerance(dtype));
        }
      }
    }
  }
}

// A log-sum-exp in f32 would be rounded to 1/128 at these scores.
TEST(Attention, KeepsDigitsOfScoresFarFromZero) {
  ExecutionContext context;
  const Extents e = {1, 2, 1, 5, 7, 2};
  for (const double offset : {1e5, -3e5, 1e6}) {
    // Scores are offset + k / 8, exact in f32.
    Inputs in = RandomInputs(context, e, DType::kF32);
    in.q = MakeTensor(context, {1, 2, 5, 2}, DType::kF32,
                      {1, 1, 1, 2, 1, 3, 1, -1, 1, 0, 1, 1, 1, 5, 1, -2, 1, 4, 1, -3});
    std::vector<double> keys;
    for (int j = 0; j < 7; ++j) {
      keys.push_back(offset);
      keys.push_back((j * 3 % 7 - 2) * 0.125);
    }
    in.k = MakeTensor(context, {1, 1, 7, 2}, DType::kF32, keys);
    // In double, without the offset, which changes no weight.
    std::vector<double> near = keys;
    for (size_t i = 0; i < near.size(); i += 2) near[i] = 0;
    for (const bool causal : {false, true}) {
      const auto forward = ops::Attention(context, in.q, in.k, in.v, causal, 1.0);
      const auto expected = Attend(e, Values(in.q), near, Values(in.v), causal, 1.0);
      EXPECT_LT(WorstRelative(Values(forward.out), expected.out), 2e-6) << offset;
      const auto actual = ops::AttentionBackward(context, in.grad, in.q, in.k, in.v, forward.out,
                                                 forward.statistics, causal, 1.0);
      const auto gradients =
          AttendBackward(e, Values(in.grad), Values(in.q), near, Values(in.v), causal, 1.0);
      EXPECT_LT(WorstRelative(Values(actual.dk), gradients.dk), 4e-6) << offset;
      EXPECT_LT(WorstRelative(Values(actual.dv), gradients.dv), 4e-6) << offset;
    }
  }
}

TEST(Attention, ATransposedViewGivesTransposedResults) {
  ExecutionContext context;
  const Extents e = {2, 4, 2, 5, 5, 6};
  const Inputs in = RandomInputs(context, e, DType::kF32);
  const auto view = [&](const Tensor& x) { return InMemoryOrder(context, x, {0, 2, 1, 3}); };
  const auto forward = ops::Attention(context, view(in.q), view(in.k), view(in.v), true, 0.5);
  EXPECT_TRUE(forward.out.Transpose(1, 2).IsContiguous());
  EXPECT_TRUE(forward.out.Transpose(1, 2).TryView({2, 5, 24}).has_value());
  const auto gradients =
      ops::AttentionBackward(context, view(in.grad), view(in.q), view(in.k), view(in.v),
                             forward.out, forward.statistics, true, 0.5);
  for (const Tensor& x : {gradients.dq, gradients.dk, gradients.dv})
    EXPECT_TRUE(x.Transpose(1, 2).IsContiguous());
  // A gradient without memory of its own: one value, expanded.
  const Tensor one = MakeTensor(context, {1, 1, 1, 1}, DType::kF32, {0.5}).Expand({2, 4, 5, 6});
  const auto expanded = ops::AttentionBackward(context, one, in.q, in.k, in.v, forward.out,
                                               forward.statistics, true, 0.5);
  const auto copied = ops::AttentionBackward(context, ops::Clone(context, one), in.q, in.k, in.v,
                                             forward.out, forward.statistics, true, 0.5);
  EXPECT_EQ(Bits(expanded.dq), Bits(copied.dq));
  EXPECT_EQ(Bits(expanded.dv), Bits(copied.dv));
}

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::string> bits;
    for (const int threads : {1, 2, 3}) {
      ExecutionContext context(Device::Cpu(), threads);
      const Inputs in = RandomInputs(context, {3, 4, 2, 131, 257, 16}, dtype);
      const auto forward = ops::Attention(context, in.q, in.k, in.v, true, 0.25);
      const auto g = ops::AttentionBackward(context, in.grad, in.q, in.k, in.v, forward.out,
                                            forward.statistics, true, 0.25);
      bits.push_back(Bits(forward.out) + Bits(forward.statistics) + Bits(g.dq) + Bits(g.dk) +
                     Bits(g.dv));
    }
    EXPECT_EQ(bits[0], bits[1]);
    EXPECT_EQ(bits[0], bits[2]);
  }
}

// A rank may hold no rows of the batch, or no heads.
TEST(Attention, EmptyExtents) {
  ExecutionContext context;
  for (const Extents& e : {Extents{0, 2, 2, 5, 5, 3}, Extents{2, 0, 0, 5, 5, 3},
                           Extents{2, 4, 2, 0, 5, 3}, Extents{2, 4, 2, 5, 0, 3}}) {
    for (const bool causal : {false, true}) {
      const Inputs in = RandomInputs(context, e, DType::kF32);
      const auto forward = ops::Attention(context, in.q, in.k, in.v, causal, 1.0);
      for (const double value : Values(forward.out)) EXPECT_EQ(value, 0.0);
      for (const double value : LogSumExp(forward.statistics)) EXPECT_EQ(value, -INFINITY);
      const auto g = ops::AttentionBackward(context, in.grad, in.q, in.k, in.v, forward.out,
                                            forward.statistics, causal, 1.0);
      for (const Tensor& x : {g.dq, g.dk, g.dv}) {
        for (const double value : Values(x)) EXPECT_EQ(value, 0.0);
      }
    }
  }
}

TEST(Attention, ErrorsNameTheOperands) {
  ExecutionContext context;
  const auto zeros = [&](const Dims& shape) { return ops::Zeros(context, shape, DType::kF32); };
  const auto message = [&](const Dims& q, const Dims& k, const Dims& v) {
    return std::string(
        Catch([&] { ops::Attention(context, zeros(q), zeros(k), zeros(v), true, 1.0); }).message());
  };
  EXPECT_EQ(message({1, 3, 5, 4}, {1, 2, 5, 4}, {1, 2, 5, 4}),
            "attention: 3 query heads do not share 2 key heads evenly");
  EXPECT_EQ(message({1, 2, 5, 4}, {1, 2, 5, 4}, {1, 2, 7, 4}),
            "attention: v must have the shape [1,2,5,4], got f32[1,2,7,4]");
  EXPECT_EQ(message({1, 2, 5, 4}, {1, 2, 5, 3}, {1, 2, 5, 3}),
            "attention: q f32[1,2,5,4] and k f32[1,2,5,3] differ in batch or head_dim");
  EXPECT_EQ(message({2, 5, 4}, {2, 5, 4}, {2, 5, 4}),
            "attention: q needs the dims [batch, heads, sequence, head_dim], got f32[2,5,4]");
  EXPECT_EQ(message({1, 1, 5, 0}, {1, 1, 5, 0}, {1, 1, 5, 0}),
            "attention: head_dim must be positive, got f32[1,1,5,0]");
  EXPECT_EQ(
      std::string(Catch([&] {
                    ops::Rotary(context, zeros({1, 1, 5, 3}), zeros({5, 1}), zeros({5, 1}), false);
                  }).message()),
      "rotary: head_dim must be even, got f32[1,1,5,3]");
  EXPECT_EQ(
      std::string(Catch([&] {
                    ops::Rotary(context, zeros({1, 1, 5, 4}), zeros({5, 2}), zeros({4, 2}), false);
                  }).message()),
      "rotary: sin must have the shape [5,2], got f32[4,2]");
  const auto meta = ops::Attention(context, Tensor::Meta({1, 2, 5, 4}, DType::kBF16),
                                   Tensor::Meta({1, 1, 7, 4}, DType::kBF16),
                                   Tensor::Meta({1, 1, 7, 4}, DType::kBF16), false, 1.0);
  EXPECT_EQ(meta.statistics.ToString(), "f32[1,2,5,2]");
}

}  // namespace
}  // namespace shardmesh
