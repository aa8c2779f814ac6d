// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/random.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using Numbers = std::vector<double>;
using ::testing::HasSubstr;

constexpr RandomKey kKey{.seed = 7, .stream = 3};

Numbers NumbersOf(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

// `make(mesh, placements)` has the same bits in every layout on every mesh.
Numbers SameOnAllMeshes(
    const std::function<DTensor(const DeviceMesh&, const std::vector<Placement>&)>& make) {
  Numbers expected;
  OnMesh({{"x", 1}},
         [&](const DeviceMesh& mesh) { expected = NumbersOf(make(mesh, {Replicate()})); });
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    for (const Placement& placement : {Replicate(), Shard(0)})
      EXPECT_EQ(NumbersOf(make(mesh, {placement})), expected);
  });
  OnMesh({{"x", 2}, {"y", 2}}, [&](const DeviceMesh& mesh) {
    EXPECT_EQ(NumbersOf(make(mesh, {Shard(0), Shard(0)})), expected);
  });
  return expected;
}

double MeanOf(const Numbers& numbers) {
  double sum = 0;
  for (const double x : numbers) sum += x;
  return sum / static_cast<double>(numbers.size());
}

TEST(RandomOps, HaveTheSameBitsOnAnyMesh) {
  const Dims shape = {1009, 3};
  const Numbers uniform = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return Uniform(mesh, shape, DType::kF32, placements, kKey, -1, 3);
  });
  EXPECT_NEAR(MeanOf(uniform), 1, 0.1);
  EXPECT_GE(*std::min_element(uniform.begin(), uniform.end()), -1);
  EXPECT_LT(*std::max_element(uniform.begin(), uniform.end()), 3);

  const Numbers normal = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return Normal(mesh, shape, DType::kF64, placements, kKey, 2, 0.5);
  });
  EXPECT_NEAR(MeanOf(normal), 2, 0.05);

  const Numbers truncated = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return TruncatedNormal(mesh, shape, DType::kF32, placements, kKey, 0, 1, -0.5, 2);
  });
  EXPECT_GE(*std::min_element(truncated.begin(), truncated.end()), -0.5);
  EXPECT_LE(*std::max_element(truncated.begin(), truncated.end()), 2);
  EXPECT_NEAR(MeanOf(truncated), 0.4456, 0.04);  // (phi(-0.5) - phi(2)) / (Phi(2) - Phi(-0.5)).

  const Numbers integers = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return RandomIntegers(mesh, shape, placements, kKey, -2, 3);
  });
  for (const double i : {-2, -1, 0, 1, 2})
    EXPECT_NEAR(std::count(integers.begin(), integers.end(), i), 605, 110) << i;

  const Numbers permutation = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return RandomPermutation(mesh, 101, placements, kKey);
  });
  Numbers sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], static_cast<double>(i));
  EXPECT_NE(sorted, permutation);
}

TEST(RandomOps, LikeAnotherHaveItsLayoutAndTheBitsOfThatShape) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({5, 3}, 1));
    const DTensor summands = Place(mesh, {Partial()}, Values({5, 3}, 1));
    EXPECT_EQ(NormalLike(x, kKey).layout(), x.layout());
    EXPECT_EQ(NormalLike(summands, kKey).layout().placement(0), Replicate());
    EXPECT_EQ(NumbersOf(NormalLike(x, kKey)), NumbersOf(NormalLike(summands, kKey)));
    EXPECT_EQ(NumbersOf(UniformLike(x, kKey)),
              NumbersOf(Uniform(mesh, {5, 3}, DType::kF64, {Shard(0)}, kKey)));
  });
}

TEST(RandomOps, BernoulliIsOneAsOftenAsItSays) {
  const Numbers ones = SameOnAllMeshes([&](const auto& mesh, const auto& placements) {
    return Bernoulli(Full(mesh, {2003}, DType::kBF16, 0.25, placements), kKey);
  });
  EXPECT_NEAR(MeanOf(ones), 0.25, 0.03);
  for (const double p : {0.0, 1.0}) {
    OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
      EXPECT_EQ(MeanOf(NumbersOf(Bernoulli(Full(mesh, {99}, DType::kF32, p, {Shard(0)}), kKey))),
                p);
    });
  }
}

TEST(RandomOps, RefuseWhatIsNoProbability) {
  OnMesh({{"x", 3}}, [](const DeviceMesh& mesh) {
    for (const double p : {-0.25, 1.5, std::nan("")}) {
      const DTensor x = Place(mesh, {Shard(0)}, GlobalValue{{3}, DType::kF32, {0.5, 0.5, p}});
      EXPECT_THAT(std::string(Catch([&] { Bernoulli(x, kKey); }).message()),
                  HasSubstr("bernoulli: expected probabilities in [0, 1] in f32[3] [S(0)]"));
    }
    EXPECT_THAT(std::string(Catch([&] {
                              TruncatedNormal(mesh, {3}, DType::kF32, {Shard(0)}, kKey, 0, 1, 7, 9);
                            }).message()),
                HasSubstr("truncated_normal: [7, 9] holds"));
  });
}

TEST(Multinomial, TakesIndicesAsOftenAsTheirShares) {
  const Numbers shares = {0, 1, 3, 0, 4, 0};
  for (const Placement& placement : {Replicate(), Shard(0), Shard(1)}) {
    OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
      Numbers rows = shares;
      for (int i = 0; i < 3; ++i) rows.insert(rows.end(), shares.begin(), shares.end());
      const DTensor x = Place(mesh, {placement}, GlobalValue{{4, 6}, DType::kF64, rows});
      const Numbers drawn = NumbersOf(Multinomial(x, 1000, /*replacement=*/true, kKey));
      const auto often = [&](double i) {
        return static_cast<double>(std::count(drawn.begin(), drawn.end(), i)) / 4000;
      };
      EXPECT_NEAR(often(1), 0.125, 0.02);
      EXPECT_NEAR(often(2), 0.375, 0.03);
      EXPECT_NEAR(often(4), 0.5, 0.03);
      EXPECT_EQ(often(0) + often(3) + often(5), 0);

      const Numbers different = NumbersOf(Multinomial(x, 3, /*replacement=*/false, kKey));
      for (size_t row = 0; row < 4; ++row) {
        Numbers chosen(different.begin() + 3 * static_cast<int64_t>(row),
                       different.begin() + 3 * static_cast<int64_t>(row + 1));
        std::sort(chosen.begin(), chosen.end());
        EXPECT_EQ(chosen, (Numbers{1, 2, 4}));
      }
    });
  }
}

TEST(Multinomial, RefusesWhatAreNoProbabilitiesOnAllRanks) {
  OnMesh({{"x", 2}}, [](const DeviceMesh& mesh) {
    const auto error_of = [&](Numbers values, int64_t count, bool replacement) {
      const DTensor x = Place(mesh, {Shard(0)}, GlobalValue{{2, 2}, DType::kF64, values});
      return std::string(Catch([&] { Multinomial(x, count, replacement, kKey); }).message());
    };
    EXPECT_THAT(error_of({1, 1, -1, 2}, 1, true), HasSubstr("at least 0"));
    EXPECT_THAT(error_of({1, 1, 0, 0}, 1, true), HasSubstr("not all 0"));
    EXPECT_THAT(error_of({1, 1, std::nan(""), 1}, 1, true), HasSubstr("finite"));
    EXPECT_THAT(error_of({1, 1, 0, 1}, 2, false), HasSubstr("fewer than 2"));
    EXPECT_THAT(error_of({1, 1, 0, 1}, 3, false), HasSubstr("from 0 to 2"));
    EXPECT_EQ(error_of({1, 1, 0, 1}, 0, false), "");
    EXPECT_THAT(
        std::string(Catch([&] { Uniform(mesh, {3}, DType::kI64, {Replicate()}, kKey); }).message()),
        HasSubstr("uniform: needs a floating-point dtype, got i64"));
    EXPECT_THAT(
        std::string(Catch([&] { RandomIntegers(mesh, {3}, {Replicate()}, kKey, 5, 5); }).message()),
        HasSubstr("[5, 5)"));
  });
}

}  // namespace
}  // namespace shardmesh::testing
