// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/tensor.h"

#include <functional>
#include <numeric>
#include <thread>
#include <type_traits>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

std::vector<float> Iota(int64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

Tensor IotaTensor(ExecutionContext& context, const Dims& shape) {
  return Tensor::FromValues<float>(context, shape, Iota(shape.NumElements()));
}

std::string ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(Tensor, EmptyIsContiguousAlignedAndCounted) {
  ExecutionContext context;
  for (const Dims& shape : {Dims{}, Dims{3, 5}, Dims{7, 1, 2}, Dims{3, 0, 5}}) {
    const Tensor x = Tensor::Empty(context, shape, DType::kF64, MemoryCategory::kOptimizer);
    EXPECT_EQ(x.shape(), shape);
    EXPECT_TRUE(x.IsContiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw_data()) % 64, 0u);
    EXPECT_EQ(context.allocator()->stats(MemoryCategory::kOptimizer).bytes,
              shape.NumElements() * 8);
    EXPECT_EQ(x.Bytes(), shape.NumElements() * 8);
  }
  EXPECT_EQ(context.allocator()->total().bytes, 0);
  context.set_default_category(MemoryCategory::kParameters);
  const Tensor x = Tensor::Empty(context, {3}, DType::kBF16);
  EXPECT_EQ(context.allocator()->stats(MemoryCategory::kParameters).bytes, 6);
}

TEST(Tensor, ImpossibleShapesAreErrors) {
  ExecutionContext context;
  EXPECT_EQ(ErrorOf([&] {
              Tensor::Empty(context, {3, -1}, DType::kF32);
            }),
            "a tensor's extents must not be negative: [3,-1]");
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(ErrorOf([&] {
              Tensor::Meta({huge, huge}, DType::kF32);
            }),
            "a tensor of shape [1099511627776,1099511627776] is too large");
  EXPECT_EQ(ErrorOf([&] {
              Tensor::Meta({huge, huge, 0}, DType::kF32);
            }),
            "a tensor of shape [1099511627776,1099511627776,0] is too large");
  EXPECT_EQ(Tensor::Meta({huge, 0, 3}, DType::kF32).NumElements(), 0);
}

TEST(Tensor, MetaHasNoElements) {
  const Tensor x = Tensor::Meta({1 << 20, 1 << 20}, DType::kF32);
  EXPECT_TRUE(x.device().IsMeta());
  EXPECT_EQ(x.Transpose(0, 1).Narrow(0, 5, 7).shape(), (Dims{7, 1 << 20}));
  EXPECT_EQ(ErrorOf([&] { x.raw_data(); }), "a tensor on the meta device has no elements");
}

TEST(Tensor, FromValuesAndToVectorAreInverse) {
  ExecutionContext context;
  EXPECT_EQ(IotaTensor(context, {3, 5}).ToVector<float>(), Iota(15));
  const Tensor flags = Tensor::FromValues(context, {3}, {true, false, true});
  EXPECT_EQ(flags.dtype(), DType::kBool);
  EXPECT_EQ(flags.ToVector<int32_t>(), (std::vector<int32_t>{1, 0, 1}));
  const Tensor half = Tensor::FromValues(context, {2}, {Float16(0.5f), Float16(-3.25f)});
  EXPECT_EQ(half.ToVector<double>(), (std::vector<double>{0.5, -3.25}));
  EXPECT_EQ(half.ToVector<int64_t>(), (std::vector<int64_t>{0, -3}));
  EXPECT_EQ(ErrorOf([&] {
              Tensor::FromValues(context, {2, 2}, {1.0f, 2.0f, 3.0f});
            }),
            "Tensor::FromValues: 3 values for shape [2,2]");
}

TEST(Tensor, ItemIsTheOnlyElement) {
  ExecutionContext context;
  EXPECT_EQ(Tensor::FromValues(context, {}, {-2.5}).Item(), -2.5);
  EXPECT_EQ(IotaTensor(context, {3, 5}).Narrow(0, 1, 1).Narrow(1, 2, 1).Item(), 7);
  EXPECT_EQ(Tensor::FromValues<bool>(context, {}, {true}).IntegerItem(), 1);
  EXPECT_EQ(Tensor::FromValues<int32_t>(context, {1}, {-7}).IntegerItem(), -7);
  for (const int64_t value : {int64_t{9007199254740993}, std::numeric_limits<int64_t>::max(),
                              -int64_t{9007199254740993}}) {
    const Tensor x = Tensor::FromValues<int64_t>(context, {1, 1}, {value});
    EXPECT_EQ(x.IntegerItem(), value);
    EXPECT_EQ(ErrorOf([&] { x.Item(); }),
              "Tensor::Item: " + std::to_string(value) + " is no double; use IntegerItem");
  }
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Tensor::FromValues<int64_t>(context, {}, {kLeast}).Item(), -0x1p63);
  EXPECT_EQ(ErrorOf([&] { IotaTensor(context, {1}).IntegerItem(); }),
            "Tensor::IntegerItem: f32[1] is not of integers");
  EXPECT_EQ(ErrorOf([&] { IotaTensor(context, {3}).Item(); }),
            "Tensor::Item: f32[3] has 3 elements, not one");
}

TEST(Tensor, DimsAndElementTypesThatAreNotThereAreErrors) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 5});
  EXPECT_EQ(x.dim(-1), 5);
  EXPECT_EQ(x.dim(-2), 3);
  for (const int dim : {2, -3, 100}) {
    EXPECT_NE(ErrorOf([&] { x.dim(dim); }).find(std::to_string(dim)), std::string::npos);
  }
  EXPECT_EQ(ErrorOf([&] { x.data<double>(); }), "the elements of f32[3,5] cannot be read as f64");
  EXPECT_EQ(x.data<float>(), x.raw_data());
}

TEST(Tensor, ViewsAlias) {
  ExecutionContext context;
  Tensor x = IotaTensor(context, {3, 5});
  const Tensor column = x.Narrow(1, 2, 1);
  x.mutable_data<float>()[7] = -1;
  EXPECT_EQ(column.ToVector<float>(), (std::vector<float>{2, -1, 12}));
  EXPECT_EQ(column.storage(), x.storage());
  EXPECT_EQ(context.allocator()->total().allocations, 1);
}

TEST(Tensor, TransposePermuteAndNegativeDims) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {2, 3, 2});
  EXPECT_EQ(x.Transpose(0, -1).ToVector<float>(),
            (std::vector<float>{0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11}));
  const int order[] = {2, 0, -2};
  const Tensor y = x.Permute(order);
  EXPECT_EQ(y.shape(), (Dims{2, 2, 3}));
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
  const int twice[] = {0, 0, 1};
  EXPECT_EQ(ErrorOf([&] { x.Permute(twice); }),
            "Permute: [0,0,1] is no permutation of the dims of f32[2,3,2]");
  const int few[] = {1, 0};
  EXPECT_NE(ErrorOf([&] { x.Permute(few); }), "no error");
  EXPECT_EQ(ErrorOf([&] { x.Transpose(0, 3); }),
            "Transpose: dim 3 is out of range for a tensor of 3 dims");
}

TEST(Tensor, NarrowChecksItsBounds) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 5});
  EXPECT_EQ(x.Narrow(-1, 1, 2).Narrow(0, 2, 1).ToVector<float>(), (std::vector<float>{11, 12}));
  EXPECT_EQ(x.Narrow(1, 5, 0).NumElements(), 0);
  for (const auto& [start, length] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {4, 2}, {0, 6}, {2, -1}, {6, 0}}) {
    EXPECT_NE(ErrorOf([&, s = start, l = length] { x.Narrow(1, s, l); }), "no error")
        << start << " " << length;
  }
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_NE(ErrorOf([&] { x.Narrow(1, huge, huge); }), "no error");
}

TEST(Tensor, ExpandRepeatsWithoutCopying) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 1});
  const Tensor y = x.Expand({2, 3, 2});
  EXPECT_EQ(y.strides(), (Dims{0, 1, 0}));
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(IotaTensor(context, {1, 1}).Expand({0, 4}).NumElements(), 0);
  EXPECT_EQ(ErrorOf([&] { x.Expand({2, 2}); }), "Expand: f32[3,1] does not expand to [2,2]");
  EXPECT_EQ(ErrorOf([&] { x.Expand({3}); }), "Expand: f32[3,1] does not expand to [3]");
  EXPECT_NE(ErrorOf([&] { x.Expand({-1, 3, 1}); }), "no error");
}

TEST(Tensor, SqueezeAndUnsqueeze) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 5}).Transpose(0, 1);
  for (const int dim : {0, 1, 2, -1, -3}) {
    const Tensor y = x.Unsqueeze(dim);
    EXPECT_EQ(y.dim(dim), 1);
    EXPECT_EQ(y.Squeeze(dim).shape(), x.shape());
    EXPECT_EQ(y.ToVector<float>(), x.ToVector<float>());
  }
  EXPECT_EQ(ErrorOf([&] { x.Squeeze(0); }), "Squeeze: dim 0 of f32[5,3] is not 1");
}

TEST(Tensor, IsContiguousByMemoryNotByShape) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 5});
  EXPECT_FALSE(x.Transpose(0, 1).IsContiguous());
  EXPECT_TRUE(x.Narrow(0, 1, 2).IsContiguous());
  EXPECT_FALSE(x.Narrow(1, 0, 4).IsContiguous());
  EXPECT_TRUE(x.Narrow(1, 0, 4).Narrow(0, 1, 1).IsContiguous());
  EXPECT_TRUE(x.Narrow(1, 0, 0).IsContiguous());
  EXPECT_FALSE(x.Narrow(0, 0, 1).Expand({2, 5}).IsContiguous());
  EXPECT_TRUE(IotaTensor(context, {3, 1}).Transpose(0, 1).IsContiguous());
}

// Every view of every permuted slice of a tensor with every shape of as many elements: where
// TryView gives one, it has the elements in order; where some strides do the same, it gives one.
class TryViewTest : public ::testing::Test {
 protected:
  // Whether the offsets of x, in row-major order, are an affine function of an index of `shape`.
  static bool HasView(const Tensor& x, const Dims& shape) {
    const std::vector<float> offsets = x.ToVector<float>();
    Dims strides = Dims::Filled(shape.size(), 0);
    int64_t step = 1;
    for (int dim = shape.size() - 1; dim >= 0; --dim) {
      if (shape[dim] > 1) strides[dim] = static_cast<int64_t>(offsets[step] - offsets[0]);
      step *= shape[dim];
    }
    for (int64_t i = 0; i < x.NumElements(); ++i) {
      int64_t rest = i, offset = 0;
      for (int dim = shape.size() - 1; dim >= 0; --dim) {
        offset += rest % shape[dim] * strides[dim];
        rest /= shape[dim];
      }
      if (offsets[0] + offset != offsets[i]) return false;
    }
    return true;
  }

  static std::vector<Dims> ShapesOf(int64_t elements, int rank) {
    if (rank == 0) return elements == 1 ? std::vector<Dims>{{}} : std::vector<Dims>{};
    std::vector<Dims> shapes;
    for (int64_t first = 1; first <= elements; ++first) {
      if (elements % first != 0) continue;
      for (Dims rest : ShapesOf(elements / first, rank - 1)) {
        rest.insert(0, first);
        shapes.push_back(rest);
      }
    }
    return shapes;
  }
};

TEST_F(TryViewTest, FindsAViewExactlyWhereThereIsOne) {
  ExecutionContext context;
  // The value of an element is its offset.
  const Tensor base = IotaTensor(context, {4, 3, 2, 2});
  int views = 0, copies = 0;
  std::vector<int> order = {0, 1, 2, 3};
  do {
    const Tensor permuted = base.Permute(order);
    for (int dim = -1; dim < 4; ++dim) {
      for (const int64_t length : {1, 2}) {
        if (dim >= 0 && permuted.dim(dim) < 1 + length) continue;
        const Tensor x = dim < 0 ? permuted : permuted.Narrow(dim, 1, length);
        for (int rank = 0; rank <= 4; ++rank) {
          for (const Dims& shape : ShapesOf(x.NumElements(), rank)) {
            const std::optional<Tensor> view = x.TryView(shape);
            ASSERT_EQ(view.has_value(), HasView(x, shape))
                << x.shape() << " strides " << x.strides() << " as " << shape;
            ++(view ? views : copies);
            if (!view) continue;
            EXPECT_EQ(view->shape(), shape);
            EXPECT_EQ(view->ToVector<float>(), x.ToVector<float>());
          }
        }
        if (dim < 0) break;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_GT(views, 1000);
  EXPECT_GT(copies, 1000);
}

TEST_F(TryViewTest, ExpandedEmptyAndScalar) {
  ExecutionContext context;
  const Tensor repeated = IotaTensor(context, {1, 5}).Expand({3, 5});
  EXPECT_FALSE(repeated.TryView({15}));
  const Tensor all_equal = IotaTensor(context, {1}).Expand({6});
  EXPECT_EQ(all_equal.TryView({2, 3})->strides(), (Dims{0, 0}));
  const Tensor empty = IotaTensor(context, {3, 0, 5}).Transpose(0, 2);
  EXPECT_EQ(empty.TryView({7, 0})->shape(), (Dims{7, 0}));
  EXPECT_EQ(IotaTensor(context, {}).TryView({1, 1})->ToVector<float>(), Iota(1));
  EXPECT_EQ(IotaTensor(context, {1, 1}).TryView({})->num_dims(), 0);
}

TEST_F(TryViewTest, ResolvesOneUnknownExtent) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 4});
  EXPECT_EQ(x.TryView({2, -1})->shape(), (Dims{2, 6}));
  EXPECT_EQ(ErrorOf([&] { x.TryView({-1, -1}); }), "Reshape: more than one -1 in [-1,-1]");
  EXPECT_EQ(ErrorOf([&] { x.TryView({5, -1}); }), "Reshape: [5,-1] does not have 12 elements");
  EXPECT_EQ(ErrorOf([&] { x.TryView({5, 2}); }), "Reshape: [5,2] does not have 12 elements");
  EXPECT_EQ(ErrorOf([&] { x.TryView({-2, 6}); }), "Reshape: negative extent in [-2,6]");
  const int64_t huge = int64_t{1} << 62;
  EXPECT_NE(ErrorOf([&] { x.TryView({huge, 4, 3}); }), "no error");
  const Tensor empty = IotaTensor(context, {0, 4});
  EXPECT_EQ(empty.TryView({-1, 3})->shape(), (Dims{0, 3}));
  EXPECT_NE(ErrorOf([&] { empty.TryView({0, huge, huge}); }), "no error");
  EXPECT_EQ(ErrorOf([&] {
              empty.TryView({-1, 0});
            }),
            "Reshape: the -1 in [-1,0] could be anything");
}

TEST(Tensor, AsStridedStaysWithinTheStorage) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {12});
  EXPECT_EQ(x.AsStrided({2, 3}, {1, 4}, 2).ToVector<float>(),
            (std::vector<float>{2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(x.AsStrided({3}, {-2}, 5).ToVector<float>(), (std::vector<float>{5, 3, 1}));
  EXPECT_EQ(x.AsStrided({0}, {1}, 12).NumElements(), 0);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  for (const auto& [shape, strides, offset] :
       std::vector<std::tuple<Dims, Dims, int64_t>>{{{2, 3}, {1, 5}, 2},
                                                    {{2}, {1}, -1},
                                                    {{3}, {-2}, 3},
                                                    {{0}, {1}, 13},
                                                    {{2}, {huge}, 1},
                                                    {{2, 3}, {1}, 0}}) {
    EXPECT_NE(ErrorOf([&, &s = shape, &t = strides, o = offset] { x.AsStrided(s, t, o); }),
              "no error")
        << shape << strides << offset;
  }
}

TEST(Tensor, OverChecksTheFit) {
  ExecutionContext context;
  const auto storage = std::make_shared<Storage>(Device::Cpu(), 40, context.allocator(),
                                                 MemoryCategory::kParameters);
  const Tensor x = Tensor::Over(storage, {2, 3}, DType::kF32, 4);
  EXPECT_EQ(static_cast<const char*>(x.raw_data()) - static_cast<const char*>(storage->data()), 16);
  EXPECT_EQ(Tensor::Over(storage, {5}, DType::kF64).NumElements(), 5);
  EXPECT_EQ(Tensor::Over(storage, {0}, DType::kF32, 10).NumElements(), 0);
  EXPECT_EQ(ErrorOf([&] {
              Tensor::Over(storage, {2, 3}, DType::kF32, 5);
            }),
            "Tensor::Over: f32[2,3] at element 5 does not fit into 40 bytes");
  EXPECT_NE(ErrorOf([&] { Tensor::Over(storage, {11}, DType::kF32); }), "no error");
  EXPECT_NE(ErrorOf([&] { Tensor::Over(storage, {1}, DType::kF32, -1); }), "no error");
  EXPECT_NE(ErrorOf([&] { Tensor::Over(nullptr, {}, DType::kF32); }), "no error");
}

TEST(Storage, ReleaseAndRefillUnderATensor) {
  ExecutionContext context;
  const Tensor x = Tensor::FromValues(context, {3}, {1.0f, 2.0f, 3.0f});
  const Tensor view = x.Narrow(0, 1, 2);
  Storage& storage = *x.storage();
  storage.BumpVersion();
  storage.Release("resharded by FullyShard unit layers.3");
  EXPECT_TRUE(storage.IsReleased());
  EXPECT_EQ(context.allocator()->total().bytes, 0);
  const std::string expected =
      "the memory of this tensor (12 bytes) was released: resharded by FullyShard unit layers.3";
  EXPECT_EQ(ErrorOf([&] { view.raw_data(); }), expected);
  EXPECT_EQ(ErrorOf([&] { x.ToVector<float>(); }), expected);
  EXPECT_EQ(view.shape(), Dims{2});  // Metadata stays.
  storage.Release("again");          // Nothing to give back; the first cause stays.
  EXPECT_EQ(ErrorOf([&] { x.Narrow(0, 0, 1).Item(); }), expected);
  storage.Refill();
  storage.Refill();
  EXPECT_EQ(context.allocator()->total().bytes, 12);
  EXPECT_EQ(storage.version(), 1);
  x.mutable_data<float>()[2] = 5;
  EXPECT_EQ(view.ToVector<float>()[1], 5);
}

TEST(Storage, MayBeDestroyedReleasedAndOnAnotherThread) {
  ExecutionContext context;
  {
    const Tensor x = Tensor::Empty(context, {3}, DType::kF32);
    x.storage()->Release("gone");
  }
  Tensor x = Tensor::Empty(context, {5}, DType::kF32);
  std::thread([y = std::move(x)]() mutable { y = Tensor(); }).join();
  EXPECT_EQ(context.allocator()->total().bytes, 0);
}

TEST(Storage, KeepsItsAllocator) {
  auto context = std::make_unique<ExecutionContext>();
  const Tensor x = IotaTensor(*context, {3});
  context.reset();
  EXPECT_EQ(x.ToVector<float>(), Iota(3));
}

TEST(Storage, CountsMutableAccessAndNoOther) {
  ExecutionContext context;
  for (const Dims& shape : {Dims{3, 5}, Dims{3, 0}}) {
    const Tensor x = Tensor::Empty(context, shape, DType::kF32);
    const Tensor view = x.Transpose(0, 1);
    Storage& storage = *x.storage();
    static_assert(std::is_same_v<decltype(x.data<float>()), const float*>);
    static_assert(std::is_same_v<decltype(x.raw_data()), const void*>);
    static_assert(std::is_same_v<decltype(storage.data()), const void*>);
    EXPECT_EQ(x.data<float>(), x.raw_data());
    EXPECT_EQ(storage.data(), x.raw_data());
    x.ToVector<float>();
    EXPECT_EQ(storage.version(), 0);
    EXPECT_EQ(x.mutable_data<float>(), x.data<float>());
    EXPECT_EQ(storage.version(), 1) << "also without elements";
    EXPECT_EQ(view.mutable_raw_data(), x.raw_data());
    EXPECT_EQ(storage.version(), 2) << "of the storage that views share";
    EXPECT_EQ(storage.mutable_data(), storage.data());
    EXPECT_EQ(storage.version(), 3);
  }
}

TEST(Storage, CountsNoAccessThatIsRefused) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3, 5});
  const Tensor meta = Tensor::Meta({3, 5}, DType::kF32);
  EXPECT_EQ(ErrorOf([&] { x.mutable_data<double>(); }),
            "the elements of f32[3,5] cannot be read as f64");
  EXPECT_EQ(ErrorOf([&] { meta.mutable_raw_data(); }),
            "a tensor on the meta device has no elements");
  x.storage()->Release("by a test");
  EXPECT_NE(ErrorOf([&] { x.mutable_data<float>(); }).find("released: by a test"),
            std::string::npos);
  EXPECT_EQ(x.storage()->version(), 0);
  EXPECT_EQ(meta.storage()->version(), 0);
}

TEST(Storage, TakesBackTheBumpsOfValuesThatWereThereBefore) {
  ExecutionContext context;
  const Tensor x = IotaTensor(context, {3});
  Storage& storage = *x.storage();
  storage.BumpVersion();
  const int64_t version = storage.version();
  x.mutable_data<float>()[0] = 0;
  storage.RestoreVersion(version);
  EXPECT_EQ(storage.version(), version);
  EXPECT_DEATH(storage.RestoreVersion(version + 1), "has not had yet");
}

}  // namespace
}  // namespace shardmesh
