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
using testing::FiniteDifferences;
using testing::InMemoryOrder;
using testing::MakeTensor;
using testing::RandomTensor;
using testing::Values;
using testing::WorstRelative;

constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
constexpr int64_t kIgnored = -100;

// Ids in [low, high), in a scrambled order with repeats.
std::vector<double> RandomIds(int64_t count, int64_t low, int64_t high, uint64_t seed) {
  std::vector<double> ids = testing::RandomValues(count, seed);
  for (double& id : ids) id = std::floor((id + 1.0) / 2.0 * (high - low)) + low;
  return ids;
}

// ---- embedding ----------------------------------------------------------------------------------

TEST(Embedding, PartsOfTheTableAddUpToTheWhole) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    for (const DType index : {DType::kI64, DType::kI32}) {
      const Tensor table = RandomTensor(context, {11, 7}, dtype, 1);
      const auto values = Values(table), list = RandomIds(15, 0, 11, 2);
      const Tensor ids = MakeTensor(context, {3, 5}, index, list);
      std::vector<double> expected;
      for (const double id : list) {
        for (int i = 0; i < 7; ++i) expected.push_back(values[id * 7 + i]);
      }
      for (const auto& order : {std::vector{0, 1}, std::vector{1, 0}}) {
        const Tensor strided_ids = InMemoryOrder(context, ids, order, 1);
        const Tensor strided_table = InMemoryOrder(context, table, order, 2);
        EXPECT_EQ(Values(ops::Embedding(context, strided_ids, strided_table, 0)), expected);
        if (SizeOf(dtype) == 2) {
          const Tensor wide = ops::Embedding(context, strided_ids, strided_table, 0, DType::kF32);
          EXPECT_EQ(wide.dtype(), DType::kF32);
          EXPECT_EQ(Values(wide), expected);
        }
        std::vector<double> sum(expected.size(), 0.0);
        for (const auto& [first, rows] : {std::pair{0, 4}, std::pair{4, 0}, std::pair{4, 7}}) {
          const Tensor y =
              ops::Embedding(context, strided_ids, strided_table.Narrow(0, first, rows), first);
          const auto part = Values(y);
          EXPECT_EQ(y.shape(), Dims({3, 5, 7}));
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
        }
        EXPECT_EQ(sum, expected);
      }
    }
  }
}

TEST(Embedding, BackwardAddsTheGradientsOfEachId) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const auto list = RandomIds(35, 0, 11, 2);
    const Tensor ids = MakeTensor(context, {5, 7}, DType::kI64, list),
                 grad = RandomTensor(context, {5, 7, 13}, dtype, 3);
    const Tensor before = RandomTensor(context, {6, 13}, dtype, 4);
    const int64_t first = 3;
    for (const bool accumulate : {false, true}) {
      std::vector<double> expected = accumulate ? Values(before) : std::vector<double>(6 * 13, 0.0);
      const auto g = Values(grad);
      for (int p = 0; p < 35; ++p) {
        const int64_t row = static_cast<int64_t>(list[p]) - first;
        for (int i = 0; i < 13 && 0 <= row && row < 6; ++i) expected[row * 13 + i] += g[p * 13 + i];
      }
      for (const auto& order : {std::vector{0, 1, 2}, std::vector{2, 0, 1}}) {
        Tensor dtable = InMemoryOrder(context, before,
                                      order[0] == 0 ? std::vector{0, 1} : std::vector{1, 0}, 1);
        ops::EmbeddingBackward(context, InMemoryOrder(context, grad, order, 1), ids, first,
                               accumulate, dtable);
        EXPECT_LT(WorstRelative(Values(dtable), expected), dtype == DType::kBF16  ? 8e-3
                                                           : dtype == DType::kF32 ? 1e-6
                                                                                  : 1e-15);
      }
    }
  }
}

// In bf16 the sum would stop at 1: the gradients of a repeated id add up in f32.
TEST(Embedding, BackwardOfNarrowGradientsAddsUpInF32) {
  ExecutionContext context;
  std::vector<double> g(257, 0x1p-8);
  g[0] = 1.0;
  const Tensor grad = MakeTensor(context, {257, 1}, DType::kBF16, g);
  const Tensor ids = MakeTensor(context, {257}, DType::kI32, std::vector<double>(257, 2.0));
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Tensor dtable = Tensor::Empty(context, {3, 1}, dtype);
    ops::EmbeddingBackward(context, grad, ids, 0, /*accumulate=*/false, dtable);
    EXPECT_EQ(Values(dtable), (std::vector<double>{0.0, 0.0, 2.0}));
  }
}

TEST(Embedding, EmptyIdsEmptyTablesAndMeta) {
  ExecutionContext context;
  const Tensor table = RandomTensor(context, {3, 5}, DType::kF32, 1);
  const Tensor none = Tensor::Empty(context, {0}, DType::kI64),
               some = MakeTensor(context, {2}, DType::kI64, {1, 2});
  EXPECT_EQ(ops::Embedding(context, none, table, 0).shape(), Dims({0, 5}));
  EXPECT_EQ(Values(ops::Embedding(context, some, Tensor::Empty(context, {0, 2}, DType::kF32), 3)),
            std::vector<double>(4, 0.0));
  Tensor dtable = RandomTensor(context, {3, 5}, DType::kF32, 2);
  const auto before = Values(dtable);
  const Tensor grad = Tensor::Empty(context, {0, 5}, DType::kF32);
  ops::EmbeddingBackward(context, grad, none, 0, /*accumulate=*/true, dtable);
  EXPECT_EQ(Values(dtable), before);
  ops::EmbeddingBackward(context, grad, none, 0, /*accumulate=*/false, dtable);
  EXPECT_EQ(Values(dtable), std::vector<double>(15, 0.0));
  EXPECT_EQ(ops::Embedding(context, Tensor::Meta({7, 2}, DType::kI64),
                           Tensor::Meta({3, 5}, DType::kBF16), 0)
                .ToString(),
            "bf16[7,2,5]");
}

TEST(CheckIndices, NamesTheFirstBadOne) {
  ExecutionContext context;
  const auto message = [&](const Tensor& ids, std::optional<int64_t> ignored = {}) {
    const absl::Status status =
        Catch([&] { ops::CheckIndices(context, "embedding", ids, 0, 7, ignored); });
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kOutOfRange);
    return std::string(status.message());
  };
  const Tensor ids = MakeTensor(context, {2, 3}, DType::kI64, {6, 0, 3, -100, 7, -1});
  EXPECT_EQ(message(ids), "embedding: index -100 is outside [0, 7)");
  EXPECT_EQ(message(ids, kIgnored), "embedding: index 7 is outside [0, 7)");
  EXPECT_EQ(message(ids.Transpose(0, 1).Narrow(0, 1, 2), kIgnored),
            "embedding: index 7 is outside [0, 7)");
  EXPECT_EQ(message(ids.Narrow(0, 0, 1)), "");
  EXPECT_EQ(message(Tensor::Empty(context, {0}, DType::kI32)), "");
  EXPECT_EQ(message(Tensor::Meta({3}, DType::kI32)), "");
}

// ---- cross entropy ------------------------------------------------------------------------------

// Per-row loss of logits split over `parts` of the classes, as ranks that share the vocabulary
// compute it.
struct SplitLoss {
  std::vector<double> loss;
  Tensor max, sum_exp;  // As the backward takes them.
};
SplitLoss LossOf(ExecutionContext& context, const Tensor& x, const Tensor& targets,
                 const std::vector<int64_t>& parts) {
  const int64_t rows = x.NumElements() / x.dim(-1);
  const DType dtype = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  std::vector<double> max(rows, -INFINITY), sum(rows, 0.0), picked(rows, 0.0);
  const auto logits = Values(x);
  for (size_t i = 0; i < logits.size(); ++i)
    max[i / x.dim(-1)] = std::max(max[i / x.dim(-1)], logits[i]);
  int64_t first = 0;
  for (const int64_t part : parts) {
    const auto terms = ops::CrossEntropyTerms(context, x.Narrow(-1, first, part), targets, first,
                                              MakeTensor(context, targets.shape(), dtype, max));
    for (int64_t row = 0; row < rows; ++row) {
      sum[row] += Values(terms.sum_exp)[row];
      picked[row] += Values(terms.picked)[row];
    }
    first += part;
  }
  SplitLoss result;
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_counted = Values(targets)[row] != kIgnored;
    result.loss.push_back(is_counted ? std::log(sum[row]) - picked[row] : 0.0);
  }
  result.max = MakeTensor(context, targets.shape(), dtype, max);
  result.sum_exp = MakeTensor(context, targets.shape(), dtype, sum);
  return result;
}

TEST(CrossEntropy, TermsOfPartsGiveTheLossOfTheWhole) {
  ExecutionContext context;
  for (const DType dtype : kFloating) {
    const Tensor x = RandomTensor(context, {3, 2, 41}, dtype, 1);
    const std::vector<double> classes = {0, 40, kIgnored, 17, 3, 21};
    const auto logits = Values(x);
    std::vector<double> expected;
    for (int row = 0; row < 6; ++row) {
      double sum = 0.0;
      for (int i = 0; i < 41; ++i) sum += std::exp(logits[row * 41 + i]);
      expected.push_back(
          row == 2 ? 0.0 : std::log(sum) - logits[row * 41 + static_cast<int>(classes[row])]);
    }
    for (const DType index : {DType::kI64, DType::kI32}) {
      const Tensor targets =
          InMemoryOrder(context, MakeTensor(context, {3, 2}, index, classes), {1, 0}, 1);
      for (const auto& parts : {std::vector<int64_t>{41}, {14, 14, 13}, {21, 20, 0}}) {
        for (const auto& order : {std::vector{0, 1, 2}, std::vector{2, 1, 0}}) {
          EXPECT_LT(WorstRelative(
                        LossOf(context, InMemoryOrder(context, x, order, 1), targets, parts).loss,
                        expected),
                    dtype == DType::kF64 ? 1e-14 : 2e-6);
        }
      }
    }
  }
}

TEST(CrossEntropy, BackwardIsTheGradientWhateverTheParts) {
  ExecutionContext context;
  Tensor x = RandomTensor(context, {5, 11}, DType::kF64, 1);
  const Tensor targets = MakeTensor(context, {5}, DType::kI64, {3, kIgnored, 0, 10, 3});
  const Tensor scale = RandomTensor(context, {5}, DType::kF64, 2);
  const auto expected = FiniteDifferences(
      x, [&] { return testing::Dot(LossOf(context, x, targets, {11}).loss, Values(scale)); });
  const SplitLoss sums = LossOf(context, x, targets, {11});
  EXPECT_LT(WorstRelative(Values(ops::CrossEntropyBackward(context, x, targets, 0, sums.max,
                                                           sums.sum_exp, scale, kIgnored)),
                          expected),
            1e-8);
  std::vector<double> joined(55);
  for (const auto& [first, part] : {std::pair{0, 4}, std::pair{4, 7}}) {
    const auto dx =
        Values(ops::CrossEntropyBackward(context, x.Narrow(1, first, part), targets, first,
                                         sums.max, sums.sum_exp, scale, kIgnored));
    for (int row = 0; row < 5; ++row) {
      for (int i = 0; i < part; ++i) joined[row * 11 + first + i] = dx[row * part + i];
    }
  }
  EXPECT_LT(WorstRelative(joined, expected), 1e-8);
}

// Each of four equal logits costs log 4. A log-sum-exp in f32 is rounded to 1/128 at 1e5, and to 8
// at 1e8; the loss was 0 there and the gradient 1 and 0.
TEST(CrossEntropy, KeepsDigitsOfLogitsFarFromZero) {
  ExecutionContext context;
  const Tensor targets = MakeTensor(context, {2}, DType::kI64, {1, 5});
  const Tensor scale = MakeTensor(context, {2}, DType::kF32, {1, 0.5});
  for (const double offset : {0.0, 1e5, -1e5, 1e8, 1e20, -1e20}) {
    std::vector<double> logits(14, offset);
    // Steps that f32 has at the offset.
    const double step = std::fabs(offset) < 1e6 ? 0.25 : std::fabs(offset) < 1e10 ? 8.0 : 0.0;
    for (int i = 0; i < 14; ++i) logits[i] += step * (i * 5 % 7 - 3);
    const Tensor x = MakeTensor(context, {2, 7}, DType::kF32, logits);
    const auto values = Values(x);
    std::vector<double> loss, dx;
    for (int row = 0; row < 2; ++row) {
      const int target = row == 0 ? 1 : 5;
      double max = -INFINITY, sum = 0;
      for (int i = 0; i < 7; ++i) max = std::max(max, values[row * 7 + i]);
      for (int i = 0; i < 7; ++i) sum += std::exp(values[row * 7 + i] - max);
      loss.push_back(std::log(sum) - (values[row * 7 + target] - max));
      for (int i = 0; i < 7; ++i) {
        const double probability = std::exp(values[row * 7 + i] - max) / sum;
        dx.push_back((probability - (i == target ? 1 : 0)) * (row == 0 ? 1 : 0.5));
      }
    }
    for (const auto& parts : {std::vector<int64_t>{7}, {3, 3, 1}, {4, 3, 0}}) {
      const SplitLoss actual = LossOf(context, x, targets, parts);
      EXPECT_LT(WorstRelative(actual.loss, loss), 1e-6) << offset;
      std::vector<double> joined(14);
      int64_t first = 0;
      for (const int64_t part : parts) {
        const auto local =
            Values(ops::CrossEntropyBackward(context, x.Narrow(1, first, part), targets, first,
                                             actual.max, actual.sum_exp, scale, kIgnored));
        for (int64_t i = 0; i < 2 * part; ++i) joined[i / part * 7 + first + i % part] = local[i];
        first += part;
      }
      EXPECT_LT(WorstRelative(joined, dx), 1e-6) << offset;
    }
  }
}

TEST(CrossEntropy, IgnoredRowsHaveNoGradientEvenIfTheirValuesAreNaN) {
  ExecutionContext context;
  const Tensor x = MakeTensor(context, {2, 3}, DType::kF32, {NAN, 1, 2, 0.5, 1, 2});
  const Tensor targets = MakeTensor(context, {2}, DType::kI64, {kIgnored, 1});
  const Tensor max = MakeTensor(context, {2}, DType::kF32, {NAN, 1.0}),
               sum = MakeTensor(context, {2}, DType::kF32, {NAN, std::exp(1.0)}),
               scale = MakeTensor(context, {2}, DType::kF32, {NAN, 1});
  const auto dx =
      Values(ops::CrossEntropyBackward(context, x, targets, 0, max, sum, scale, kIgnored));
  EXPECT_EQ(std::vector<double>(dx.begin(), dx.begin() + 3), std::vector<double>(3, 0.0));
  EXPECT_LT(WorstRelative({dx[3], dx[4], dx[5]}, {std::exp(-1.5), std::exp(-1.0) - 1.0, 1.0}),
            1e-6);
}

TEST(Lookup, SameBitsForAnyNumberOfThreads) {
  std::vector<std::string> bits;
  for (const int threads : {1, 2, 3}) {
    ExecutionContext context(Device::Cpu(), threads);
    const Tensor ids = MakeTensor(context, {1031}, DType::kI64, RandomIds(1031, 0, 300, 1));
    const Tensor grad = RandomTensor(context, {1031, 67}, DType::kF32, 2);
    Tensor dtable = RandomTensor(context, {257, 67}, DType::kF32, 3);
    ops::EmbeddingBackward(context, grad, ids, 17, /*accumulate=*/true, dtable);
    const Tensor targets = MakeTensor(context, {1031}, DType::kI64, RandomIds(1031, 0, 67, 1));
    const Tensor ones = MakeTensor(context, {1031}, DType::kF32, std::vector<double>(1031, 1.0));
    const auto terms = ops::CrossEntropyTerms(context, grad, targets, 0, ones);
    bits.push_back(Bits(dtable) + Bits(ops::Embedding(context, ids, dtable, 17)) +
                   Bits(terms.sum_exp) + Bits(terms.picked) +
                   Bits(ops::CrossEntropyBackward(context, grad, targets, 0, ones, terms.sum_exp,
                                                  ones, kIgnored)));
  }
  EXPECT_TRUE(bits[0] == bits[1]);
  EXPECT_TRUE(bits[0] == bits[2]);
}

TEST(Lookup, ErrorsNameTheOp) {
  ExecutionContext context;
  const Tensor table = RandomTensor(context, {3, 5}, DType::kF32, 1),
               ids = MakeTensor(context, {2}, DType::kI64, {0, 1});
  const auto message = [](auto fn) { return std::string(Catch(fn).message()); };
  EXPECT_EQ(message([&] { ops::Embedding(context, table, table, 0); }),
            "embedding: indices are i64 or i32, got f32[3,5]");
  EXPECT_EQ(
      message([&] { ops::Embedding(context, ids, RandomTensor(context, {3}, DType::kF32, 1), 0); }),
      "embedding: the table needs two dims, got f32[3]");
  EXPECT_EQ(message([&] {
              ops::CrossEntropyTerms(context, table, ids, 0,
                                     RandomTensor(context, {3}, DType::kF32, 1));
            }),
            "cross_entropy: targets must have the shape [3], got i64[2]");
  Tensor narrow = Tensor::Empty(context, {3, 5}, DType::kBF16);
  EXPECT_EQ(message([&] {
              ops::EmbeddingBackward(context, RandomTensor(context, {2, 5}, DType::kF32, 1), ids, 0,
                                     false, narrow);
            }),
            "embedding backward: dtable must have the dtype f32, got bf16[3,5]");
}

}  // namespace
}  // namespace shardmesh
