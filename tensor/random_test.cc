// SPDX-License-Identifier: Apache-2.0
//
// The build runs this test once for each instruction set (SHARDMESH_ISA): the known answers prove
// equal bits.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/philox.h"
#include "shardmesh/tensor/testing/reference.h"

namespace shardmesh {
namespace {

using testing::Bits;
using testing::HashOfBits;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;

constexpr RandomKey kKey{.seed = 0x123456789abcdef0, .stream = 0xfedcba9876543210};

RandomBox Whole(const Dims& shape) { return {shape, Dims::Filled(shape.size(), 0)}; }

Tensor Uniform(ExecutionContext& context, const Dims& shape, DType dtype, const RandomBox& box,
               double low, double high) {
  Tensor out = Tensor::Empty(context, shape, dtype);
  ops::RandomUniform(context, kKey, box, low, high, out);
  return out;
}
Tensor Normal(ExecutionContext& context, const Dims& shape, DType dtype, const RandomBox& box,
              double mean, double stddev) {
  Tensor out = Tensor::Empty(context, shape, dtype);
  ops::RandomNormal(context, kKey, box, mean, stddev, out);
  return out;
}

// ---- known answers ------------------------------------------------------------------------------

TEST(Philox, KnownAnswersOfItsAuthors) {
  const auto words = [](uint64_t seed, uint64_t stream, uint64_t block) {
    const PhiloxWords w = Philox(seed, stream, block);
    return std::vector<uint32_t>(w.word, w.word + 4);
  };
  EXPECT_EQ(words(0, 0, 0),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<uint32_t> FirstBits(const Tensor& x) {
  std::vector<uint32_t> bits;
  for (int i = 0; i < 8; ++i) bits.push_back(std::bit_cast<uint32_t>(x.data<float>()[i]));
  return bits;
}

// Computed by a transcription of docs/random.md into another language; 4099 elements are several
// vector bodies and a tail.
TEST(Random, KnownAnswers) {
  ExecutionContext context;
  const Dims shape = {4099};
  const Tensor uniform = Uniform(context, shape, DType::kF32, Whole(shape), -0.5, 2.25);
  EXPECT_EQ(FirstBits(uniform),
            (std::vector<uint32_t>{0x3f86eb1c, 0xbc5d1710, 0xbe9229a3, 0x3f91f8c9, 0xbe3f79c2,
                                   0x3f2ade5f, 0x3f87a1c5, 0x3ef3d16b}));
  EXPECT_EQ(HashOfBits(uniform), 0xf9d0c1cccc379239);
  const Tensor unit = Normal(context, shape, DType::kF32, Whole(shape), 0.0, 1.0);
  EXPECT_EQ(FirstBits(unit),
            (std::vector<uint32_t>{0x3ef27897, 0x3f752c22, 0xbfed91d8, 0xbfa4c53f, 0xbfed67bd,
                                   0x3f73b30f, 0xbf271698, 0x3f5773d5}));
  EXPECT_EQ(HashOfBits(unit), 0x59b53d34cce76048);
  EXPECT_EQ(HashOfBits(Normal(context, shape, DType::kF32, Whole(shape), 0.25, 0.02)),
            0x7540ed1c7df7bff9);
}

// ---- the same bits whatever the box -------------------------------------------------------------

TEST(Random, AnyBoxHoldsTheBitsOfTheWhole) {
  ExecutionContext context;
  const Dims global = {5, 7, 11};
  const Tensor input = RandomTensor(context, global, DType::kF32, 1);
  const Tensor uniform = Uniform(context, global, DType::kF32, Whole(global), 0, 1);
  const Tensor normal = Normal(context, global, DType::kF32, Whole(global), 0, 1);
  const Tensor dropped = ops::Dropout(context, kKey, Whole(global), input, 0.3);
  struct {
    Dims begin, shape;
  } boxes[] = {{{0, 0, 0}, {5, 7, 11}}, {{1, 0, 0}, {3, 7, 11}}, {{4, 3, 0}, {1, 4, 11}},
               {{0, 0, 3}, {5, 7, 5}},  {{2, 1, 10}, {3, 6, 1}}, {{3, 2, 1}, {1, 1, 1}},
               {{5, 0, 0}, {0, 7, 11}}, {{0, 7, 0}, {5, 0, 11}}, {{0, 0, 11}, {5, 7, 0}}};
  for (const auto& [begin, shape] : boxes) {
    const RandomBox box{global, begin};
    Tensor part = input;
    const auto narrow = [&](Tensor x) {
      for (int dim = 0; dim < 3; ++dim) x = x.Narrow(dim, begin[dim], shape[dim]);
      return x;
    };
    EXPECT_EQ(Bits(Uniform(context, shape, DType::kF32, box, 0, 1)), Bits(narrow(uniform)));
    EXPECT_EQ(Bits(Normal(context, shape, DType::kF32, box, 0, 1)), Bits(narrow(normal)));
    EXPECT_EQ(Bits(ops::Dropout(context, kKey, box, narrow(part), 0.3)), Bits(narrow(dropped)));
    // And into strided memory.
    Tensor out = InMemoryOrder(context, Tensor::Empty(context, shape, DType::kF32), {1, 2, 0}, 1);
    ops::RandomNormal(context, kKey, box, 0, 1, out);
    EXPECT_EQ(Bits(out), Bits(narrow(normal)));
    ops::RandomUniform(context, kKey, box, 0, 1, out);
    EXPECT_EQ(Bits(out), Bits(narrow(uniform)));
  }
}

TEST(Random, LongRowsAreCutInChunksThatDoNotShow) {
  ExecutionContext context;
  const Dims global = {3, 40009};
  const Tensor normal = Normal(context, global, DType::kF32, Whole(global), 0, 1);
  for (const int64_t begin : {1, 2, 3, 1023, 16387}) {
    const Tensor part = Normal(context, {2, 20011}, DType::kF32, {global, {1, begin}}, 0, 1);
    EXPECT_TRUE(Bits(part) == Bits(normal.Narrow(0, 1, 2).Narrow(1, begin, 20011))) << begin;
  }
}

TEST(Random, SameBitsForAnyNumberOfThreads) {
  std::vector<std::string> bits;
  for (const int threads : {1, 2, 3}) {
    ExecutionContext context(Device::Cpu(), threads);
    const RandomBox wide{{101, 4099}, {1, 17}}, narrow{{70001, 3}, {5, 1}};
    const Tensor x = RandomTensor(context, {70001, 3}, DType::kF32, 1);
    bits.push_back(Bits(Uniform(context, {97, 4001}, DType::kF32, wide, 0, 1)) +
                   Bits(Normal(context, {69001, 1}, DType::kF32, narrow, 0, 1)) +
                   Bits(ops::Dropout(context, kKey, Whole(x.shape()), x, 0.5)));
  }
  EXPECT_TRUE(bits[0] == bits[1]);
  EXPECT_TRUE(bits[0] == bits[2]);
}

TEST(Random, SeedAndStreamMatterAndScalarsHaveAValue) {
  ExecutionContext context;
  std::vector<std::string> all;
  for (const RandomKey& key :
       {RandomKey{1, 2}, RandomKey{2, 1}, RandomKey{1, 3}, RandomKey{uint64_t{1} << 32, 2}}) {
    Tensor out = Tensor::Empty(context, {7}, DType::kF32);
    ops::RandomNormal(context, key, Whole({7}), 0, 1, out);
    for (const std::string& other : all) EXPECT_NE(Bits(out), other);
    all.push_back(Bits(out));
    Tensor scalar = Tensor::Empty(context, {}, DType::kF32);
    ops::RandomNormal(context, key, Whole({}), 0, 1, scalar);
    EXPECT_EQ(Bits(scalar), Bits(out.Narrow(0, 0, 1)));
  }
}

TEST(Random, IndicesBeyond32Bits) {
  ExecutionContext context;
  const RandomBox box{{int64_t{1} << 40, 5}, {int64_t{1} << 39, 1}};
  const Tensor u = Uniform(context, {1, 3}, DType::kF64, box, 0, 1);
  for (int i = 0; i < 3; ++i) {
    const uint64_t index = (uint64_t{1} << 39) * 5 + 1 + i;
    EXPECT_EQ(Values(u)[i], UniformOf(Philox(kKey.seed, kKey.stream, index / 4).word[index % 4]));
  }
}

// ---- values -------------------------------------------------------------------------------------

TEST(Random, EveryDTypeIsTheSameValueRounded) {
  ExecutionContext context;
  const Dims shape = {1031};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto rounded = [&](const Tensor& exact) {
      return MakeTensor(context, exact.shape(), dtype, Values(exact));
    };
    EXPECT_EQ(Bits(Normal(context, shape, dtype, Whole(shape), 0.1, 0.3)),
              Bits(rounded(Normal(context, shape, DType::kF64, Whole(shape), 0.1, 0.3))));
    const auto actual = Values(Uniform(context, shape, dtype, Whole(shape), -0.3, 0.7));
    const auto expected =
        Values(rounded(Uniform(context, shape, DType::kF64, Whole(shape), -0.3, 0.7)));
    const double limit = Values(MakeTensor(context, {1}, dtype, {0.7}))[0];
    for (size_t i = 0; i < actual.size(); ++i) {
      if (expected[i] < limit) {
        EXPECT_EQ(actual[i], expected[i]);
      } else {
        EXPECT_LT(actual[i], limit) << "rounding must not reach the limit";
        EXPECT_GT(actual[i], limit - 4e-3);
      }
    }
  }
}

TEST(RandomUniform, StaysBelowItsUpperLimit) {
  ExecutionContext context;
  const Dims shape = {100003};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    double least = 2.0, most = -2.0;
    for (const auto& [low, high] :
         {std::pair{0.0, 1.0}, std::pair{-1.0, 0.0}, std::pair{-2.0, -1.0}}) {
      for (const double value : Values(Uniform(context, shape, dtype, Whole(shape), low, high))) {
        ASSERT_GE(value, low);
        ASSERT_LT(value, high);
        least = std::min(least, value - low), most = std::max(most, value - low);
      }
    }
    EXPECT_LT(least, 1e-3);
    EXPECT_GT(most, 0.99);
  }
  // Limits that are one number in this dtype.
  const Tensor same = Uniform(context, {7}, DType::kBF16, Whole({7}), 1.0, 1.0001);
  EXPECT_EQ(Values(same), std::vector<double>(7, 1.0));
}

TEST(RandomNormal, HasTheMomentsAndTailsOfANormalDistribution) {
  ExecutionContext context;
  const Dims shape = {1000003};
  const auto values = Values(Normal(context, shape, DType::kF32, Whole(shape), 0.0, 1.0));
  double mean = 0, square = 0, cube = 0, fourth = 0, neighbours = 0;
  int64_t beyond2 = 0, beyond4 = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i];
    mean += z, square += z * z, cube += z * z * z, fourth += z * z * z * z;
    if (i % 2 == 1) neighbours += z * values[i - 1];
    beyond2 += std::fabs(z) > 2, beyond4 += std::fabs(z) > 4;
  }
  const double n = values.size();
  EXPECT_NEAR(mean / n, 0.0, 4e-3);
  EXPECT_NEAR(square / n, 1.0, 6e-3);
  EXPECT_NEAR(cube / n, 0.0, 2e-2);
  EXPECT_NEAR(fourth / n, 3.0, 4e-2);
  EXPECT_NEAR(neighbours / n, 0.0, 4e-3);
  EXPECT_NEAR(beyond2 / n, 0.0455, 1e-3);
  EXPECT_NEAR(beyond4 / n, 6.3e-5, 3e-5);
}

TEST(Dropout, KeepsTheElementsWhoseUniformNumberIsNotBelowP) {
  ExecutionContext context;
  const Dims shape = {31, 67};
  const auto u = Values(Uniform(context, shape, DType::kF32, Whole(shape), 0, 1));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = RandomTensor(context, shape, dtype, 1);
    for (const double p : {0.0, 0.1, 0.5, 0.937, 1.0}) {
      const auto input = Values(x),
                 output = Values(ops::Dropout(context, kKey, Whole(shape), x, p));
      std::vector<double> expected;
      for (size_t i = 0; i < u.size(); ++i)
        expected.push_back(u[i] >= p ? input[i] / (1.0 - p) : 0.0);
      EXPECT_LT(testing::WorstRelative(output, expected), dtype == DType::kF64   ? 1e-15
                                                          : dtype == DType::kF32 ? 2e-7
                                                                                 : 4e-3)
          << p;
      const Tensor strided =
          ops::Dropout(context, kKey, Whole(shape), InMemoryOrder(context, x, {1, 0}, 1), p);
      EXPECT_EQ(Values(strided), output);
    }
  }
  // What is dropped is zero, whatever it was.
  const Tensor nan = MakeTensor(context, {3}, DType::kF32, {NAN, INFINITY, -INFINITY});
  EXPECT_EQ(Values(ops::Dropout(context, kKey, Whole({3}), nan, 1.0)), std::vector<double>(3, 0.0));
}

TEST(Random, ErrorsNameTheBox) {
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {3, 5}, DType::kF32),
         ids = Tensor::Empty(context, {3, 5}, DType::kI64);
  const auto message = [](auto fn) { return std::string(Catch(fn).message()); };
  EXPECT_EQ(message([&] {
              ops::RandomNormal(context, kKey, {{6, 5}, {4, 0}}, 0, 1, out);
            }),
            "normal: f32[3,5] at [4,0] does not lie in a global tensor of shape [6,5]");
  EXPECT_NE(message([&] { ops::RandomNormal(context, kKey, {{15}, {0}}, 0, 1, out); }), "");
  EXPECT_NE(message([&] { ops::RandomNormal(context, kKey, Whole({3, 5}), 0, -1, out); }), "");
  EXPECT_NE(message([&] { ops::RandomUniform(context, kKey, Whole({3, 5}), 1, 1, out); }), "");
  EXPECT_NE(message([&] { ops::RandomUniform(context, kKey, Whole({3, 5}), 0, 1, ids); }), "");
  EXPECT_EQ(message([&] {
              ops::Dropout(context, kKey, Whole({3, 5}), out, 1.5);
            }),
            "dropout: p must be in [0, 1], got 1.5");
}

}  // namespace
}  // namespace shardmesh
