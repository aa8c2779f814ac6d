// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/strided_view.h"

#include <algorithm>
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

const Dims kShapes[] = {{}, {1}, {13}, {3, 5, 7}, {1, 11, 1}, {2, 1, 3, 1, 5}, {4, 0, 3}};

TEST(StridedView, IsContiguousWhereRowsFollowOneAnother) {
  ExecutionContext context;
  const Tensor x = Tensor::Empty(context, {4, 6, 5}, DType::kF32);
  EXPECT_TRUE(StridedView(x).IsContiguous());
  EXPECT_TRUE(StridedView(x.Narrow(0, 1, 2)).IsContiguous());
  EXPECT_FALSE(StridedView(x.Narrow(1, 1, 2)).IsContiguous());
  EXPECT_TRUE(StridedView(x.Narrow(0, 1, 1).Narrow(1, 1, 2)).IsContiguous());
  EXPECT_FALSE(StridedView(x.Transpose(0, 1)).IsContiguous());
  EXPECT_FALSE(StridedView(x.Narrow(2, 0, 1)).IsContiguous());
}

template <typename T>
void TestEveryRange(ExecutionContext& context, Form from_form, Form to_form, const Dims& shape) {
  const Tensor from = SampleTensor<T>(context, from_form, shape, 1);
  const StridedView view(from);
  const int64_t n = view.elements();
  for (int64_t begin = 0; begin <= n; ++begin) {
    for (const int64_t end : {begin, std::min(begin + 1, n), std::min(begin + 4, n), n}) {
      const Tensor to = SampleTensor<T>(context, to_form, shape, 2);
      StridedView::Copy(view, StridedView(to), begin, end - begin);
      testing::ForEach<T>(to, [&](int64_t i, T value) {
        EXPECT_EQ(value, Sample<T>(i >= begin && i < end ? 1 : 2, i))
            << shape << " [" << begin << ", " << end << ")";
      });
      std::vector<T> packed(end - begin);
      view.Pack(begin, end - begin, packed.data());
      for (int64_t i = begin; i < end; ++i) EXPECT_EQ(packed[i - begin], Sample<T>(1, i));
      const Tensor unpacked = SampleTensor<T>(context, to_form, shape, 2);
      StridedView(unpacked).Unpack(packed.data(), begin, end - begin);
      testing::ForEach<T>(unpacked, [&](int64_t i, T value) {
        EXPECT_EQ(value, Sample<T>(i >= begin && i < end ? 1 : 2, i))
            << shape << " [" << begin << ", " << end << ")";
      });
    }
  }
}

TEST(StridedView, MovesEveryRangeBetweenAllForms) {
  ExecutionContext context;
  for (const Form from : kForms) {
    for (const Form to : kForms) {
      for (const Dims& shape : kShapes) {
        TestEveryRange<float>(context, from, to, shape);
        TestEveryRange<double>(context, from, to, shape);
        TestEveryRange<int32_t>(context, from, to, shape);
      }
    }
  }
}

TEST(StridedView, MovesElementsOfOneAndTwoBytes) {
  ExecutionContext context;
  for (const Form form : kForms) {
    const Tensor flags = SampleTensor<bool>(context, form, {7, 9}, 3);
    const Tensor flags_copy = EmptyOf(context, Form::kTransposed, {7, 9}, DType::kBool);
    StridedView::Copy(StridedView(flags), StridedView(flags_copy), 0, 63);
    EXPECT_EQ(flags_copy.ToVector<bool>(), testing::Samples<bool>(3, 63));

    const Tensor halves = SampleTensor<BFloat16>(context, form, {7, 9}, 3);
    const Tensor halves_copy = EmptyOf(context, Form::kColumns, {7, 9}, DType::kBF16);
    StridedView::Copy(StridedView(halves), StridedView(halves_copy), 0, 63);
    testing::ForEach<BFloat16>(halves_copy, [&](int64_t i, BFloat16 value) {
      EXPECT_EQ(value.bits, Sample<BFloat16>(3, i).bits);
    });
  }
}

TEST(StridedView, CopiesMoreThanATileBetweenStridedTensors) {
  ExecutionContext context;
  const Dims shape = {97, 131};
  const Tensor from = SampleTensor<double>(context, Form::kTransposed, shape, 5);
  const Tensor to = EmptyOf(context, Form::kEverySecond, shape, DType::kF64);
  StridedView::Copy(StridedView(from), StridedView(to), 0, from.NumElements());
  EXPECT_EQ(to.ToVector<double>(), testing::Samples<double>(5, from.NumElements()));
}

TEST(StridedView, ReachesElementsPastTwoGibibytes) {
  ExecutionContext context;
  // Hardly any of this memory is touched.
  constexpr int64_t kMiddle = int64_t{1} << 29;  // At byte 2^31.
  const Tensor whole = Tensor::Empty(context, {kMiddle + 64}, DType::kF32);
  const Tensor part = whole.Narrow(0, kMiddle - 32, 96);
  testing::FillWithSamples<float>(part, 1);
  std::vector<float> packed(96);
  StridedView(whole).Pack(kMiddle - 32, 96, packed.data());
  EXPECT_EQ(packed, testing::Samples<float>(1, 96));

  // Every second element from the second on.
  const Tensor odd = whole.TryView({kMiddle / 2 + 32, 2})->Narrow(1, 1, 1);
  const std::vector<float> other = testing::Samples<float>(2, 48);
  StridedView(odd).Unpack(other.data(), kMiddle / 2 - 16, 48);
  testing::ForEach<float>(part, [](int64_t i, float x) {
    EXPECT_EQ(x, i % 2 == 1 ? Sample<float>(2, i / 2) : Sample<float>(1, i)) << i;
  });

  // More elements than an int counts.
  const Tensor row = SampleTensor<float>(context, Form::kContiguous, {1, 7}, 3);
  const StridedView rows(row.Expand({int64_t{1} << 32, 7}));
  EXPECT_EQ(rows.elements(), 7 * (int64_t{1} << 32));
  rows.Pack(7 * ((int64_t{1} << 31) + 1) + 3, 96, packed.data());
  for (int64_t i = 0; i < 96; ++i) EXPECT_EQ(packed[i], Sample<float>(3, (i + 3) % 7));
}

}  // namespace
}  // namespace shardmesh::internal
