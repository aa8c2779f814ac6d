// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/comm/testing/sample_tensors.h"

namespace shardmesh::internal {
namespace {

using testing::EmptyOf;
using testing::Form;
using testing::kForms;
using testing::Sample;
using testing::SampleTensor;

std::vector<StridedView> ViewsOf(const std::vector<Tensor>& tensors) {
  std::vector<StridedView> views;
  for (const Tensor& tensor : tensors) views.emplace_back(tensor);
  return views;
}

// Any number of sources is read in passes of a few, and any count in tiles: neither may show.
TEST(Reduce, IsInOrderForEveryNumberOfSourcesAndAcrossTiles) {
  ExecutionContext context;
  const Dims shape = {3, 1033};
  for (int num_sources = 1; num_sources <= 11; ++num_sources) {
    std::vector<Tensor> sources;
    for (int s = 0; s < num_sources; ++s) {
      sources.push_back(EmptyOf(context, kForms[s % 4], shape, DType::kF32));
      // Thirds do not add up exactly, so an order of summation shows in the bits.
      testing::ForEachMutable<float>(sources[s],
                                     [&](int64_t i, float& x) { x = Sample<float>(s, i) / 3.0f; });
    }
    const std::vector<Tensor> targets = {EmptyOf(context, Form::kContiguous, shape, DType::kF32),
                                         EmptyOf(context, Form::kTransposed, shape, DType::kF32)};
    Reduce(ReduceOp::kSum, DType::kF32, ViewsOf(sources), ViewsOf(targets), 0, 3 * 1033);
    for (const Tensor& target : targets) {
      testing::ForEach<float>(target, [&](int64_t i, float value) {
        float expected = Sample<float>(0, i) / 3.0f;
        for (int s = 1; s < num_sources; ++s) expected += Sample<float>(s, i) / 3.0f;
        EXPECT_EQ(value, expected) << num_sources << " sources, element " << i;
      });
    }
  }
}

TEST(Reduce, WritesItsRangeAlone) {
  ExecutionContext context;
  const std::vector<Tensor> sources = {
      SampleTensor<int64_t>(context, Form::kContiguous, {2500}, 1),
      SampleTensor<int64_t>(context, Form::kEverySecond, {2500}, 2)};
  const std::vector<Tensor> targets = {
      SampleTensor<int64_t>(context, Form::kEverySecond, {2500}, 3)};
  Reduce(ReduceOp::kMin, DType::kI64, ViewsOf(sources), ViewsOf(targets), 7, 1500);
  testing::ForEach<int64_t>(targets[0], [&](int64_t i, int64_t value) {
    const int64_t reduced = std::min(Sample<int64_t>(1, i), Sample<int64_t>(2, i));
    EXPECT_EQ(value, i >= 7 && i < 1507 ? reduced : Sample<int64_t>(3, i));
  });
}

TEST(Reduce, ReachesElementsPastTwoGibibytes) {
  ExecutionContext context;
  // Hardly any of this memory is touched.
  constexpr int64_t kMiddle = int64_t{1} << 29;  // At byte 2^31.
  const Tensor whole = Tensor::Empty(context, {kMiddle + 1000}, DType::kF32);
  const Tensor part = whole.Narrow(0, kMiddle - 1000, 2000);
  testing::FillWithSamples<float>(part, 1);
  const Tensor row = SampleTensor<float>(context, Form::kContiguous, {1}, 2);
  Reduce(ReduceOp::kSum, DType::kF32, ViewsOf({whole, row.Expand({kMiddle + 1000})}),
         ViewsOf({whole}), kMiddle - 1000, 2000);
  testing::ForEach<float>(part, [](int64_t i, float x) {
    EXPECT_EQ(x, Sample<float>(1, i) + Sample<float>(2, 0)) << i;
  });
}

TEST(Reduce, TargetsMayBeTheSources) {
  ExecutionContext context;
  for (const Form form : kForms) {
    std::vector<Tensor> tensors;
    for (int s = 0; s < 6; ++s) tensors.push_back(SampleTensor<double>(context, form, {41, 53}, s));
    Reduce(ReduceOp::kSum, DType::kF64, ViewsOf(tensors), ViewsOf(tensors), 0, 41 * 53);
    for (const Tensor& tensor : tensors) {
      testing::ForEach<double>(tensor, [&](int64_t i, double value) {
        double expected = Sample<double>(0, i);
        for (int s = 1; s < 6; ++s) expected += Sample<double>(s, i);
        EXPECT_EQ(value, expected);
      });
    }
  }
}

TEST(Reduce, HalvesAccumulateInF32) {
  ExecutionContext context;
  const auto reduced = [&]<typename T>(std::vector<float> values) {
    std::vector<Tensor> sources;
    for (const float value : values) {
      const T element[] = {T(value)};
      sources.push_back(Tensor::FromValues<T>(context, {1}, element));
    }
    const std::vector<Tensor> targets = {Tensor::Empty(context, {1}, kDTypeOf<T>)};
    Reduce(ReduceOp::kSum, kDTypeOf<T>, ViewsOf(sources), ViewsOf(targets), 0, 1);
    return static_cast<float>(*targets[0].data<T>());
  };
  // Rounded after each addition these would stay at 1.
  EXPECT_EQ(reduced.operator()<BFloat16>(
                {1, std::ldexp(1.0f, -9), std::ldexp(1.0f, -9), std::ldexp(1.0f, -9)}),
            1.0078125f);
  EXPECT_EQ(reduced.operator()<Float16>(
                {1, std::ldexp(1.0f, -12), std::ldexp(1.0f, -12), std::ldexp(1.0f, -12)}),
            1.0009765625f);
  // Five sources: the accumulator is carried from one pass to the next unrounded.
  EXPECT_EQ(reduced.operator()<BFloat16>({256, 0.25f, 0.25f, 0.25f, 0.5f}), 258.0f);
}

TEST(Reduce, MinAndMaxKeepNaNWhereverItIs) {
  ExecutionContext context;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (int place = 0; place < 6; ++place) {
      std::vector<Tensor> sources;
      for (int s = 0; s < 6; ++s) {
        const float values[] = {s == place ? nan : static_cast<float>(s), static_cast<float>(s)};
        sources.push_back(Tensor::FromValues<float>(context, {2}, values));
      }
      const std::vector<Tensor> targets = {Tensor::Empty(context, {2}, DType::kF32)};
      Reduce(op, DType::kF32, ViewsOf(sources), ViewsOf(targets), 0, 2);
      EXPECT_TRUE(std::isnan(targets[0].data<float>()[0])) << Name(op) << " " << place;
      EXPECT_EQ(targets[0].data<float>()[1], op == ReduceOp::kMin ? 0.0f : 5.0f);
    }
  }
}

TEST(Reduce, IntegersWrapAround) {
  ExecutionContext context;
  const int64_t max = std::numeric_limits<int64_t>::max();
  const int64_t a[] = {max, max};
  const int64_t b[] = {1, 3};
  const std::vector<Tensor> sources = {Tensor::FromValues<int64_t>(context, {2}, a),
                                       Tensor::FromValues<int64_t>(context, {2}, b)};
  const std::vector<Tensor> targets = {Tensor::Empty(context, {2}, DType::kI64)};
  Reduce(ReduceOp::kSum, DType::kI64, ViewsOf(sources), ViewsOf(targets), 0, 2);
  const int64_t min = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(targets[0].ToVector<int64_t>(), (std::vector<int64_t>{min, min + 2}));
}

}  // namespace
}  // namespace shardmesh::internal
