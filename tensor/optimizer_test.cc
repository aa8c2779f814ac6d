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
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

constexpr AdamWStep kOptions = {
    .lr = 0.03, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 1};

double Tolerance(DType dtype) { return dtype == DType::kF64 ? 1e-14 : 2e-6; }

// Three steps by PyTorch's formulas, on every pair of dtypes.
TEST(AdamW, FollowsItsFormulas) {
  ExecutionContext context;
  const Dims shape = {7, 19};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const DType grad_dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      Tensor p = RandomTensor(context, shape, dtype, 1), m = ops::Zeros(context, shape, dtype),
             v = ops::Zeros(context, shape, dtype);
      auto ps = Values(p);
      std::vector<double> ms(ps.size(), 0.0), vs(ps.size(), 0.0);
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = RandomTensor(context, shape, grad_dtype, 10 + step);
        AdamWStep options = kOptions;
        options.step = step;
        ops::AdamW(context, options, grad, p, m, v);
        const auto gs = Values(grad);
        for (size_t i = 0; i < ps.size(); ++i) {
          ps[i] *= 1 - options.lr * options.weight_decay;
          ms[i] = ms[i] * options.beta1 + (1 - options.beta1) * gs[i];
          vs[i] = vs[i] * options.beta2 + (1 - options.beta2) * gs[i] * gs[i];
          const double corrected_m = ms[i] / (1 - std::pow(options.beta1, step));
          const double corrected_v = vs[i] / (1 - std::pow(options.beta2, step));
          ps[i] -= options.lr * corrected_m / (std::sqrt(corrected_v) + options.eps);
        }
      }
      EXPECT_LT(WorstRelative(Values(p), ps), Tolerance(dtype)) << dtype << " " << grad_dtype;
      EXPECT_LT(WorstRelative(Values(m), ms), Tolerance(dtype));
      EXPECT_LT(WorstRelative(Values(v), vs), Tolerance(dtype));
    }
  }
}

// eps stands beside the corrected root: gradients far below it move little.
TEST(AdamW, AddsEpsAfterTheSquareRoot) {
  ExecutionContext context;
  Tensor p = MakeTensor(context, {1}, DType::kF64, {0.0}),
         m = ops::Zeros(context, {1}, DType::kF64), v = ops::Zeros(context, {1}, DType::kF64);
  const Tensor grad = MakeTensor(context, {1}, DType::kF64, {1e-8});
  ops::AdamW(context, kOptions, grad, p, m, v);
  EXPECT_NEAR(Values(p)[0], -0.03 / 2, 1e-12);
}

// 0 / 0 was NaN for a parameter whose gradients are all 0, and m / 0 inf where g^2 vanishes.
TEST(AdamW, WithoutEpsDoesNotUpdateWhereNoGradientWas) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Tensor p = MakeTensor(context, {3}, dtype, {1.5, -2, 3}), m = ops::Zeros(context, {3}, dtype),
           v = ops::Zeros(context, {3}, dtype);
    AdamWStep options = kOptions;
    options.eps = 0, options.weight_decay = 0, options.lr = 0.25;
    ops::AdamW(context, options, MakeTensor(context, {3}, dtype, {0, 2, 1e-300}), p, m, v);
    EXPECT_EQ(Values(p)[0], 1.5);
    EXPECT_NEAR(Values(p)[1], -2.25, 1e-6);
    EXPECT_EQ(Values(p)[2], 3);
  }
}

TEST(AdamW, KeepsUpdatesBelowTheStepOfBF16) {
  ExecutionContext context;
  Tensor p = MakeTensor(context, {1}, DType::kF32, {1.0}),
         m = ops::Zeros(context, {1}, DType::kF32), v = ops::Zeros(context, {1}, DType::kF32);
  AdamWStep options = kOptions;
  options.lr = 1e-5, options.weight_decay = 0;
  ops::AdamW(context, options, MakeTensor(context, {1}, DType::kBF16, {3.0}), p, m, v);
  EXPECT_NEAR(Values(p)[0], 1.0 - 1e-5, 1e-7);
}

TEST(Sgd, FollowsItsFormulas) {
  ExecutionContext context;
  const Dims shape = {7, 19};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const DType grad_dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (const double momentum : {0.0, 0.9}) {
        Tensor p = RandomTensor(context, shape, dtype, 1), buffer;
        if (momentum != 0.0)
          buffer = MakeTensor(context, shape, dtype, std::vector<double>(7 * 19, NAN));
        auto ps = Values(p);
        std::vector<double> bs(ps.size(), 0.0);
        for (int step = 0; step < 3; ++step) {
          const Tensor grad = RandomTensor(context, shape, grad_dtype, 10 + step);
          ops::Sgd(context, 0.05, momentum, 0.1, /*first=*/step == 0, grad, p, buffer);
          const auto gs = Values(grad);
          for (size_t i = 0; i < ps.size(); ++i) {
            bs[i] = momentum * bs[i] + gs[i] + 0.1 * ps[i];
            ps[i] -= 0.05 * bs[i];
          }
        }
        EXPECT_LT(WorstRelative(Values(p), ps), Tolerance(dtype));
        if (buffer) {
          EXPECT_LT(WorstRelative(Values(buffer), bs), Tolerance(dtype));
        }
      }
    }
  }
}

TEST(Optimizer, SameBitsForAnyNumberOfThreadsAndAnySplit) {
  std::vector<std::string> bits;
  for (const int threads : {1, 2, 3}) {
    ExecutionContext context(Device::Cpu(), threads);
    const Dims shape = {100003};
    Tensor p = RandomTensor(context, shape, DType::kF32, 1),
           m = RandomTensor(context, shape, DType::kF32, 2);
    auto squares = testing::RandomValues(100003, 3);
    for (double& value : squares) value *= value;
    Tensor v = MakeTensor(context, shape, DType::kF32, squares);
    const Tensor grad = RandomTensor(context, shape, DType::kF32, 4);
    if (threads == 3) {  // In two parts, as two ranks would.
      for (const auto& [begin, count] : {std::pair{0, 40001}, std::pair{40001, 60002}}) {
        Tensor ps = p.Narrow(0, begin, count), ms = m.Narrow(0, begin, count),
               vs = v.Narrow(0, begin, count);
        ops::AdamW(context, kOptions, grad.Narrow(0, begin, count), ps, ms, vs);
        ops::Sgd(context, 0.1, 0.9, 0.1, false, grad.Narrow(0, begin, count), ps, ms);
      }
    } else {
      ops::AdamW(context, kOptions, grad, p, m, v);
      ops::Sgd(context, 0.1, 0.9, 0.1, false, grad, p, m);
    }
    bits.push_back(Bits(p) + Bits(m) + Bits(v));
  }
  EXPECT_EQ(bits[0], bits[1]);
  EXPECT_EQ(bits[0], bits[2]);
}

TEST(Optimizer, EmptyShardsAndErrors) {
  ExecutionContext context;
  Tensor empty = Tensor::Empty(context, {0, 5}, DType::kF32), none;
  ops::AdamW(context, kOptions, empty, empty, empty, empty);
  ops::Sgd(context, 0.1, 0.0, 0.0, true, empty, empty, none);
  Tensor p = RandomTensor(context, {3, 5}, DType::kF32, 1),
         m = RandomTensor(context, {3, 5}, DType::kF64, 1);
  const auto message = [](auto fn) { return std::string(Catch(fn).message()); };
  const int64_t version = p.storage()->version();
  EXPECT_EQ(message([&] { ops::AdamW(context, kOptions, p, p, m, m); }),
            "adamw: m must have the dtype f32, got f64[3,5]");
  EXPECT_EQ(message([&] { ops::AdamW(context, kOptions, p, p, p, none); }),
            "adamw: needs both moments of f32[3,5]");
  EXPECT_EQ(message([&] { ops::Sgd(context, 0.1, 0.9, 0.0, true, p, p, none); }),
            "sgd: a momentum of 0.9 needs a buffer");
  EXPECT_EQ(message([&] { ops::Sgd(context, 0.1, 0.0, 0.0, true, empty, p, none); }),
            "sgd: the gradient must have the shape [3,5], got f32[0,5]");
  EXPECT_NE(message([&] {
              ops::Sgd(context, 0.1, 0.0, 0.0, true,
                       RandomTensor(context, {5, 3}, DType::kF32, 1).Transpose(0, 1), p, none);
            }),
            "");
  Tensor narrow = RandomTensor(context, {3, 5}, DType::kBF16, 1);
  EXPECT_EQ(message([&] { ops::Sgd(context, 0.1, 0.0, 0.0, true, narrow, narrow, none); }),
            "sgd: parameters are f32 or f64, got bf16[3,5]");
  EXPECT_EQ(p.storage()->version(), version);
  ops::Sgd(context, 0.1, 0.0, 0.0, true, RandomTensor(context, {3, 5}, DType::kF32, 1), p, none);
  EXPECT_GT(p.storage()->version(), version);
}

TEST(Optimizer, CountsAStepOfEachOperandAlsoWithoutElements) {
  // Ranks whose shard is empty must decide as the others do.
  ExecutionContext context;
  for (const Dims& shape : {Dims{3, 5}, Dims{0, 5}}) {
    const Tensor grad = RandomTensor(context, shape, DType::kF32, 1);
    Tensor p = RandomTensor(context, shape, DType::kF32, 2);
    Tensor m = ops::Zeros(context, shape, DType::kF32), v = ops::Zeros(context, shape, DType::kF32);
    ops::AdamW(context, kOptions, grad, p, m, v);
    for (const Tensor& x : {p, m, v}) EXPECT_EQ(x.storage()->version(), 1) << x.ToString();
    ops::Sgd(context, 0.1, 0.9, 0.0, true, grad, p, m);
    EXPECT_EQ(p.storage()->version(), 2) << p.ToString();
    EXPECT_EQ(m.storage()->version(), 2) << p.ToString();
    EXPECT_EQ(grad.storage()->version(), 0) << p.ToString();
  }
}

}  // namespace
}  // namespace shardmesh
