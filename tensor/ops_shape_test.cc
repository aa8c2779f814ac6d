// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <limits>

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

constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                          DType::kI32, DType::kI64, DType::kBool};

std::string ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(KernelTable, EveryDeviceOfThisBuildHasEveryKernel) {
  for (const Device device : {Device::Cpu(), Device::Meta()}) {
    const KernelTable& table = KernelsFor(device);
    const auto* entries = reinterpret_cast<void* const*>(&table);
    for (size_t i = 0; i < sizeof(table) / sizeof(void*); ++i) {
      EXPECT_NE(entries[i], nullptr) << device << " kernel " << i;
    }
  }
  try {
    KernelsFor({DeviceKind::kCuda, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(error.message(), "device cuda:1: built without CUDA; rebuild with --config=cuda");
  }
}

TEST(Full, EveryDType) {
  ExecutionContext context;
  for (const DType dtype : kAll) {
    EXPECT_EQ(Values(ops::Full(context, {3, 7}, dtype, 1.0)), std::vector<double>(21, 1.0));
    EXPECT_EQ(Values(ops::Zeros(context, {5}, dtype)), std::vector<double>(5, 0.0));
  }
  EXPECT_EQ(ops::Full(context, {}, DType::kI32, -7.0).Item(), -7);
  EXPECT_EQ(ErrorOf([&] { ops::Full(context, {}, DType::kBool, 2.0); }),
            "full: 2 is not a value of dtype bool");
  EXPECT_NE(ErrorOf([&] { ops::Full(context, {}, DType::kI64, 1e19); }), "no error");
}

TEST(Fill, WritesTheViewAlone) {
  ExecutionContext context;
  Tensor x = ops::Zeros(context, {3, 5}, DType::kF32);
  Tensor column = x.Transpose(0, 1).Narrow(0, 2, 1);
  ops::Fill(context, column, 4.0);
  EXPECT_EQ(Values(x), (std::vector<double>{0, 0, 4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 4, 0, 0}));
  EXPECT_EQ(x.storage()->version(), 1);
}

TEST(Cast, EveryPairOfDTypes) {
  ExecutionContext context;
  const std::vector<double> numbers = {0,     1,      -1,  2.5,     -2.5, 0.1,
                                       100.7, 1000.3, -77, 0x1p-24, 65504};
  for (const DType from : kAll) {
    const Tensor x = MakeTensor(context, {11}, from, numbers);
    const std::vector<double> before = Values(x);
    for (const DType to : kAll) {
      const Tensor y = ops::Cast(context, x, to);
      EXPECT_EQ(y.dtype(), to);
      const std::vector<double> after = Values(y);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const double expected = VisitDType(
            to, [&]<typename T>() { return ConvertTo<double>(ConvertTo<T>(before[i])); });
        EXPECT_EQ(after[i], expected) << from << " " << before[i] << " as " << to;
      }
      // Transposed, and from a slice.
      const Tensor square = x.Narrow(0, 1, 10).TryView({2, 5})->Transpose(0, 1);
      EXPECT_EQ(Bits(ops::Cast(context, square, to)),
                Bits(y.Narrow(0, 1, 10).TryView({2, 5})->Transpose(0, 1)));
    }
  }
}

TEST(Cast, ToTheSameDTypeIsTheSameTensor) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 1).Transpose(0, 1);
  EXPECT_EQ(ops::Cast(context, x, DType::kF32).storage(), x.storage());
}

TEST(Cast, LongRunsConvertLikeSingleElements) {
  ExecutionContext context(Device::Cpu(), 2);
  std::vector<double> values = testing::RandomValues(40001, 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= std::exp2(static_cast<int>(i % 60) - 30);
  values[777] = std::nan("");
  values[778] = std::numeric_limits<double>::infinity();
  const Tensor x = MakeTensor(context, {40001}, DType::kF32, values);
  const std::vector<float> floats = x.ToVector<float>();
  const Tensor bf16 = ops::Cast(context, x, DType::kBF16), f16 = ops::Cast(context, x, DType::kF16);
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(bf16.data<BFloat16>()[i].bits, BFloat16(floats[i]).bits) << floats[i];
    ASSERT_EQ(f16.data<Float16>()[i].bits, Float16(floats[i]).bits) << floats[i];
  }
  EXPECT_EQ(Values(ops::Cast(context, f16, DType::kF32)).back(), Values(f16).back());
}

TEST(Copy, BetweenAnyStrides) {
  ExecutionContext context(Device::Cpu(), 2);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Dims& shape : {Dims{3, 5, 7}, Dims{7, 131, 67}}) {
      const Tensor x = RandomTensor(context, shape, dtype, 3);
      const std::string expected = Bits(x);
      std::vector<int> order = {0, 1, 2};
      do {
        const Tensor from = InMemoryOrder(context, x, order, /*gap=*/1);
        EXPECT_EQ(Bits(ops::Clone(context, from)), expected) << from.strides();
        Tensor to = InMemoryOrder(context, ops::Zeros(context, shape, dtype),
                                  {order[2], order[0], order[1]}, /*gap=*/2);
        ops::Copy(context, from, to);
        EXPECT_EQ(Bits(to), expected) << from.strides() << to.strides();
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(Copy, ChecksAndCounts) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 4);
  Tensor y = ops::Zeros(context, {3, 5}, DType::kF64);
  ops::Copy(context, x, y);
  EXPECT_EQ(Values(y), Values(x));
  EXPECT_EQ(y.storage()->version(), 1);
  Tensor wrong = ops::Zeros(context, {5, 3}, DType::kF32);
  EXPECT_EQ(ErrorOf([&] { ops::Copy(context, x, wrong); }),
            "copy: the source must have the shape [5,3], got f32[3,5]");
  Tensor expanded = ops::Zeros(context, {1, 5}, DType::kF32).Expand({3, 5});
  EXPECT_NE(ErrorOf([&] { ops::Copy(context, x, expanded); }), "no error");
  // Onto itself, transposed and shifted.
  Tensor square = MakeTensor(context, {2, 2}, DType::kF32, {1, 2, 3, 4});
  ops::Copy(context, square.Transpose(0, 1), square);
  EXPECT_EQ(Values(square), (std::vector<double>{1, 3, 2, 4}));
}

TEST(Contiguous, CopiesOnlyIfItMust) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 5);
  EXPECT_EQ(ops::Contiguous(context, x).storage(), x.storage());
  EXPECT_NE(ops::Clone(context, x).storage(), x.storage());
  const Tensor transposed = ops::Contiguous(context, x.Transpose(0, 1));
  EXPECT_TRUE(transposed.IsContiguous());
  EXPECT_EQ(Bits(transposed), Bits(x.Transpose(0, 1)));
}

TEST(Reshape, AliasesWhereItCan) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {4, 3, 5}, DType::kF32, 6);
  const Tensor view = ops::Reshape(context, x.Transpose(0, 1), {3, 2, 2, 5});
  EXPECT_EQ(view.storage(), x.storage());
  EXPECT_EQ(Bits(view), Bits(x.Transpose(0, 1)));
  const Tensor copy = ops::Reshape(context, x.Transpose(0, 1), {-1, 5});
  EXPECT_NE(copy.storage(), x.storage());
  EXPECT_EQ(Bits(copy), Bits(x.Transpose(0, 1)));
  EXPECT_EQ(ErrorOf([&] {
              ops::Reshape(context, x, {7, -1});
            }),
            "Reshape: [7,-1] does not have 60 elements");
}

TEST(Concat, JoinsAndSplitTakesApart) {
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kBool}) {
    for (int dim = 0; dim < 3; ++dim) {
      const Tensor x = RandomTensor(context, {4, 6, 5}, dtype, 7);
      const int64_t rest = x.dim(dim) - 3;
      const std::vector<int64_t> sizes = {3, 0, rest};
      const std::vector<Tensor> parts = ops::Split(x, sizes, dim - 3);
      ASSERT_EQ(parts.size(), 3u);
      EXPECT_EQ(parts[1].dim(dim), 0);
      EXPECT_EQ(parts[2].storage(), x.storage());
      const Tensor joined = ops::Concat(context, parts, dim - 3);
      EXPECT_NE(joined.storage(), x.storage());
      EXPECT_EQ(joined.shape(), x.shape());
      EXPECT_EQ(Bits(joined), Bits(x));
    }
  }
}

TEST(Concat, MistakesAreNamed) {
  ExecutionContext context;
  const Tensor a = ops::Zeros(context, {3, 5}, DType::kF32);
  const auto concat = [&](const std::vector<Tensor>& parts, int dim) {
    return ErrorOf([&] { ops::Concat(context, parts, dim); });
  };
  EXPECT_EQ(concat({}, 0), "concat: no tensors");
  EXPECT_EQ(concat({a, ops::Zeros(context, {3, 5}, DType::kF64)}, 0),
            "concat: f32[3,5] and f64[3,5] differ in dtype; cast one of them");
  EXPECT_EQ(concat({a, ops::Zeros(context, {4, 5}, DType::kF32)}, 1),
            "concat: f32[3,5] and f32[4,5] differ in more than dim 1");
  EXPECT_NE(concat({a, ops::Zeros(context, {3}, DType::kF32)}, 0), "no error");
  EXPECT_NE(concat({a, a}, 2), "no error");
  const std::vector<int64_t> sizes = {3, 3};
  EXPECT_EQ(ErrorOf([&] { ops::Split(a, sizes, 1); }),
            "split: sizes add up to 6, dim 1 of f32[3,5] does not");
  const std::vector<int64_t> negative = {6, -1};
  EXPECT_NE(ErrorOf([&] { ops::Split(a, negative, 1); }), "no error");
}

TEST(Shape, MetaGivesMeta) {
  ExecutionContext context;
  const Tensor x = Tensor::Meta({4, 6}, DType::kF32);
  EXPECT_TRUE(ops::Reshape(context, x.Transpose(0, 1), {-1}).device().IsMeta());
  EXPECT_TRUE(ops::Cast(context, x, DType::kBF16).device().IsMeta());
  const std::vector<Tensor> parts = {x, x};
  EXPECT_EQ(ops::Concat(context, parts, 1).ToString(), "f32[4,12]");
  EXPECT_EQ(context.allocator()->total().allocations, 0);
  ExecutionContext meta(Device::Meta());
  EXPECT_TRUE(ops::Full(meta, {3}, DType::kF32, 1.0).device().IsMeta());
}

// Their sum overflowed, and was the extent of the dim.
TEST(Split, SizesWhoseSumOverflowsAreRefused) {
  ExecutionContext context;
  const Tensor x = RandomTensor(context, {3, 5}, DType::kF32, 1);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> sizes = {kMost, kMost, 7};
  EXPECT_EQ(Catch([&] { ops::Split(x, sizes, 1); }).message(),
            "split: size 9223372036854775807 is more than dim 1 of f32[3,5] has");
}

}  // namespace
}  // namespace shardmesh
