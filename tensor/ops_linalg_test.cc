// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/ops_linalg.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

constexpr DType kReal[] = {DType::kF32, DType::kF64};

double ToleranceOf(DType dtype) { return dtype == DType::kF32 ? 3e-5 : 3e-13; }

Tensor Transposed(const Tensor& x) { return x.Transpose(-2, -1); }

// x x^T + 1: symmetric and positive definite.
Tensor Positive(ExecutionContext& context, const Dims& shape, DType dtype) {
  const Tensor x = RandomTensor(context, shape, dtype, 1);
  Tensor y = ops::MatMul(context, x, Transposed(x));
  for (int64_t i = 0; i < shape.back(); ++i) {
    Tensor element = y.Narrow(-1, i, 1).Narrow(-2, i, 1);
    ops::BinaryInto(context, BinaryOp::kAdd, element, 1);
  }
  return y;
}

// Everything that this family makes of `x`, positive definite, and `b`.
std::vector<Tensor> All(ExecutionContext& context, const Tensor& x, const Tensor& b) {
  const auto [sign, log_abs] = ops::LogDeterminant(context, x);
  const auto [q, r] = ops::Qr(context, x, /*complete=*/false);
  const auto [values, vectors] = ops::Eigh(context, x, /*upper=*/false);
  return {ops::Cholesky(context, x).value,
          sign,
          log_abs,
          ops::Determinant(context, x),
          ops::Cofactors(context, x),
          ops::Solve(context, x, b).value,
          ops::SolveTriangular(context, x, b, /*upper=*/true, /*unit_diagonal=*/false),
          ops::Inverse(context, x).value,
          q,
          r,
          values,
          vectors};
}

// Below and above the extents at which LAPACK works in blocks.
TEST(OpsLinalg, FactorsMultiplyToTheMatrix) {
  ExecutionContext context;
  for (const DType dtype : kReal) {
    for (const int64_t n : {1, 2, 7, 70}) {
      SCOPED_TRACE(std::to_string(n) + " " + std::string(Name(dtype)));
      const double tolerance = ToleranceOf(dtype);
      const auto close = [&](const Tensor& actual, const Tensor& expected) {
        EXPECT_LT(WorstRelative(Values(actual), Values(expected)), tolerance);
      };
      const auto product = [&](const Tensor& a, const Tensor& b) {
        return ops::MatMul(context, a, b);
      };
      const Tensor x = Positive(context, {2, n, n}, dtype);
      const Tensor b = RandomTensor(context, {2, n, 3}, dtype, 2);
      const Tensor l = ops::Cholesky(context, x).value;
      close(product(l, Transposed(l)), x);
      close(product(x, ops::Solve(context, x, b).value), b);
      close(product(l, ops::SolveTriangular(context, l, b, false, false)), b);
      const auto [values, vectors] = ops::Eigh(context, x, false);
      const Tensor scaled =
          ops::Binary(context, BinaryOp::kMul, Transposed(vectors), values.Unsqueeze(-1));
      close(product(vectors, scaled), x);
      for (const int64_t rows : {n, n + 2, n / 2}) {
        const Tensor oblong = RandomTensor(context, {2, rows, n}, dtype, 3);
        for (const bool complete : {false, true}) {
          const auto [q, r] = ops::Qr(context, oblong, complete);
          close(product(q, r), oblong);
          for (int64_t i = 1; i < r.dim(-2); ++i) {
            const std::vector<double> below =
                Values(r.Narrow(-2, i, 1).Narrow(-1, 0, std::min(i, n)));
            EXPECT_EQ(below, std::vector<double>(below.size(), 0));
          }
        }
      }
    }
  }
}

TEST(OpsLinalg, AreTheSameOnAnyThreadsAndStrides) {
  ExecutionContext one, four(Device::Cpu(), 4);
  for (const DType dtype : kReal) {
    for (const int64_t n : {3, 40}) {
      const Tensor x = Positive(one, {37, n, n}, dtype);
      const Tensor b = RandomTensor(one, {37, n, 2}, dtype, 2);
      const std::vector<Tensor> expected = All(one, x, b);
      const Tensor strided = InMemoryOrder(one, x, {2, 1, 0}, 1);
      const std::vector<Tensor> actual = All(four, strided, InMemoryOrder(one, b, {1, 2, 0}, 1));
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(Bits(actual[i]), Bits(expected[i])) << i;
    }
  }
}

TEST(OpsLinalg, ReportTheFirstOfSeveralFailuresOnAnyThreads) {
  for (const int threads : {1, 4}) {
    ExecutionContext context(Device::Cpu(), threads);
    Tensor x = Positive(context, {37, 40, 40}, DType::kF64);
    for (const int64_t i : {36, 11, 30}) {
      Tensor matrix = x.Narrow(0, i, 1);
      ops::Fill(context, matrix, 0);
    }
    EXPECT_EQ(ops::Cholesky(context, x).failed, 11);
    EXPECT_EQ(ops::Inverse(context, x).failed, 11);
    EXPECT_EQ(ops::Solve(context, x, x.Narrow(-1, 0, 0)).failed, 11);
    EXPECT_EQ(ops::Cholesky(context, x.Narrow(0, 0, 11)).failed, std::nullopt);
    // A matrix for a batch fails at the first of the batch.
    EXPECT_EQ(ops::Solve(context, x.Narrow(0, 11, 1), x).failed, 0);
  }
}

TEST(OpsLinalg, InferShapesAlsoOnMeta) {
  ExecutionContext cpu, meta(Device::Meta());
  for (const Dims& shape : std::vector<Dims>{{2, 3, 3}, {0, 3, 3}, {2, 0, 0}, {0, 0}, {3, 3}}) {
    const auto shapes = [&](ExecutionContext& context) {
      Dims right = shape;
      right[right.size() - 1] = 5;
      std::string text;
      const Tensor x = ops::Zeros(context, shape, DType::kF32);
      for (const Tensor& y : All(context, x, ops::Zeros(context, right, DType::kF32)))
        text += y.ToString() + " ";
      return text;
    };
    EXPECT_EQ(shapes(meta), shapes(cpu));
  }
}

TEST(OpsLinalg, NameWhatDoesNotFit) {
  ExecutionContext context;
  const auto message = [](const auto& fn) { return std::string(Catch(fn).message()); };
  const Tensor x = ops::Zeros(context, {2, 3, 3}, DType::kF64);
  const Tensor small = ops::Zeros(context, {3, 3}, DType::kBF16);
  const Tensor oblong = ops::Zeros(context, {3, 2}, DType::kF64);
  for (const std::string& text : {message([&] { ops::Cholesky(context, small); }),
                                  message([&] { ops::Qr(context, small, false); })})
    EXPECT_NE(text.find("expected f32 or f64, got bf16[3,3]"), std::string::npos) << text;
  EXPECT_EQ(message([&] { ops::Eigh(context, oblong, false); }),
            "eigh: expected square matrices, got f64[3,2]");
  EXPECT_EQ(message([&] { ops::Solve(context, x, oblong.Transpose(0, 1)); }),
            "solve: f64[2,3,3] has 3 columns, but f64[2,3] has 2 rows");
  ExecutionContext meta(Device::Meta());
  const Tensor large = ops::Zeros(meta, {32767, 32767}, DType::kF32);
  EXPECT_EQ(message([&] { ops::Eigh(meta, large, false); }),
            "eigh: expected at most 32766 rows, got f32[32767,32767]");
}

}  // namespace
}  // namespace shardmesh
