// SPDX-License-Identifier: Apache-2.0
//
// Reading from a safetensors file once it is open: boxes, conversions, files that change.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <random>
#include <thread>

#include "shardmesh/base/quoted.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/internal/input_file.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

constexpr ReadOptions kCast = {.allow_cast = true};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SafetensorsFile OpenOrDie(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) ADD_FAILURE() << file.status();
  return *std::move(file);
}

// ---- files that change while they are open ------------------------------------------------------

TEST(SafetensorsRead, AFileThatBecomesShorterIsDataLossWhenRead) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  const std::string path = WriteTestFile("x.safetensors", builder.Build());
  const SafetensorsFile file = OpenOrDie(path);
  std::filesystem::resize_file(path, builder.Build().size() - 1);
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ExpectError(file.Read("a", out), Code::kDataLoss, {path, "'a'"});
}

TEST(SafetensorsRead, AFileThatIsWrittenToInPlaceIsDataLossWhenRead) {
  SafetensorsBuilder builder, other;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  other.Add("a", "F32", {2}, BytesOf<float>({3, 4}));
  const std::string path = WriteTestFile("x.safetensors", builder.Build());
  const timespec long_ago[2] = {{.tv_sec = 1'000'000'000, .tv_nsec = 0}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  const SafetensorsFile file = OpenOrDie(path);
  std::ofstream(path, std::ios::binary | std::ios::in) << other.Build();
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ExpectError(file.Read("a", out), Code::kDataLoss, {path, "'a'", "written to"});
}

TEST(SafetensorsRead, AFileThatGrowsIsDataLossWhenReadEvenWithItsTimePutBack) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  const std::string path = WriteTestFile("x.safetensors", builder.Build());
  const auto time = std::filesystem::last_write_time(path);
  const SafetensorsFile file = OpenOrDie(path);
  std::ofstream(path, std::ios::binary | std::ios::app) << "more";
  std::filesystem::last_write_time(path, time);
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ExpectError(file.Read("a", out), Code::kDataLoss, {path, "'a'", "written to"});
}

TEST(SafetensorsRead, AFileThatIsReplacedWhileOpenStaysReadable) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  const std::string path = WriteTestFile("x.safetensors", builder.Build());
  const SafetensorsFile file = OpenOrDie(path);
  std::filesystem::rename(WriteTestFile("new", SafetensorsBytes("{}", "")), path);
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ASSERT_TRUE(file.Read("a", out).ok());
  EXPECT_THAT(out.ToVector<float>(), ElementsAre(1, 2));
}

// Opens enough other files for `file` to be closed.
void CloseByOpeningOthers() {
  const std::string path = WriteTestFile("other", SafetensorsBytes("{}", ""));
  std::vector<SafetensorsFile> others;
  for (size_t i = 0; i < internal::kMaxOpenFiles; ++i) others.push_back(OpenOrDie(path));
}

TEST(SafetensorsRead, AFileThatWasClosedIsOpenedAgainWhereverTheProgramIsThen) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  WriteTestFile("x.safetensors", builder.Build());
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(TestFolder());
  const SafetensorsFile file = OpenOrDie("x.safetensors");
  std::filesystem::current_path(before);
  CloseByOpeningOthers();
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ASSERT_TRUE(file.Read("a", out).ok());
  EXPECT_THAT(out.ToVector<float>(), ElementsAre(1, 2));
}

TEST(SafetensorsRead, AFileThatIsReplacedOrRemovedAfterItWasClosedIsNotReadAsThatFile) {
  SafetensorsBuilder builder;
  builder.Add("a", "F32", {2}, BytesOf<float>({1, 2}));
  const std::string path = WriteTestFile("x.safetensors", builder.Build());
  const SafetensorsFile file = OpenOrDie(path);
  CloseByOpeningOthers();
  std::filesystem::rename(WriteTestFile("new", builder.Build()), path);
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {2}, DType::kF32);
  ExpectError(file.Read("a", out), Code::kDataLoss, {path, "'a'", "was replaced"});
  std::filesystem::remove(path);
  ExpectError(file.Read("a", out), Code::kNotFound, {path, "'a'", "No such file"});
}

// ---- boxes --------------------------------------------------------------------------------------

// Calls fn(box) for every box in `shape`, empty ones too.
template <typename Fn>
void ForEachBox(const Dims& shape, const Fn& fn, Box box = {}) {
  const int d = box.num_dims();
  if (d == shape.size()) return fn(box);
  for (int64_t begin = 0; begin <= shape[d]; ++begin) {
    for (int64_t end = begin; end <= shape[d]; ++end) {
      Box longer = box;
      longer.begin.push_back(begin);
      longer.end.push_back(end);
      ForEachBox(shape, fn, longer);
    }
  }
}

// Row-major indices of the elements of `box`, by the definition.
std::vector<int64_t> ElementsOf(const Dims& shape, const Box& box) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    bool inside = true;
    int64_t rest = i;
    for (int d = shape.size() - 1; d >= 0; --d) {
      const int64_t at = rest % shape[d];
      rest /= shape[d];
      inside = inside && box.begin[d] <= at && at < box.end[d];
    }
    if (inside) elements.push_back(i);
  }
  return elements;
}

std::vector<float> RandomFloats(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

TEST(SafetensorsRead, EveryBoxOfATensorHasTheElementsOfTheWhole) {
  const Dims shape = {3, 4, 5};
  const std::vector<float> values = RandomFloats(shape.NumElements());
  SafetensorsBuilder builder;
  builder.Add("odd", "BOOL", {1}, "\1").Add("x", "F32", {3, 4, 5}, BytesOf(values));
  builder.Add("after", "F32", {1}, BytesOf<float>({99}));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  int boxes = 0;
  ForEachBox(shape, [&](const Box& box) {
    ++boxes;
    std::vector<float> expected;
    for (const int64_t i : ElementsOf(shape, box)) expected.push_back(values[i]);
    Tensor same = Tensor::Empty(context, box.Extents(), DType::kF32);
    Tensor wide = Tensor::Empty(context, box.Extents(), DType::kF64);
    const int64_t before = file.bytes_read();
    const absl::Status status = file.ReadBox("x", box, same);
    ASSERT_TRUE(status.ok()) << status;
    // All lies within a page: one read from the first to the last element.
    const std::vector<int64_t> elements = ElementsOf(shape, box);
    ASSERT_EQ(file.bytes_read() - before,
              elements.empty() ? 0 : 4 * (elements.back() - elements.front() + 1))
        << box;
    ASSERT_TRUE(file.ReadBox("x", box, wide, kCast).ok());
    ASSERT_EQ(same.ToVector<float>(), expected) << box;
    ASSERT_EQ(wide.ToVector<float>(), expected) << box;
  });
  EXPECT_EQ(boxes, 10 * 15 * 21);
}

// What one read must bring, by the definition: the elements' bytes, gaps shorter than a page
// filled, but none between runs of a page or more that need no conversion.
int64_t ExpectedBytes(const std::vector<int64_t>& elements, bool converts) {
  int64_t bytes = 0;
  for (size_t i = 0; i < elements.size();) {
    size_t end = i + 1;
    while (end < elements.size() && elements[end] == elements[end - 1] + 1) ++end;
    const int64_t run = 4 * static_cast<int64_t>(end - i);
    const int64_t gap =
        end < elements.size() ? 4 * (elements[end] - elements[end - 1] - 1) : int64_t{1} << 40;
    bytes += run;
    if (gap < 4096 && (converts || run < 4096)) bytes += gap;
    i = end;
  }
  return bytes;
}

TEST(SafetensorsRead, ReadsNoPageThatTheBoxDoesNotNeed) {
  const Dims shape = {2, 3, 2500};
  const std::vector<float> values = RandomFloats(shape.NumElements());
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {2, 3, 2500}, BytesOf(values));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  const struct {
    Box box;
    int64_t bytes;  // As f32.
  } rows[] = {
      {{{0, 0, 0}, {2, 3, 2500}}, 60000},    {{{1, 0, 0}, {2, 3, 2500}}, 30000},
      {{{0, 1, 0}, {2, 2, 2500}}, 20000},    {{{0, 1, 0}, {2, 3, 2500}}, 40000},
      {{{0, 0, 0}, {2, 3, 1250}}, 30000},    {{{0, 0, 1250}, {2, 3, 2500}}, 30000},
      {{{0, 0, 7}, {2, 3, 8}}, 24},          {{{0, 0, 100}, {2, 3, 1123}}, 24552},
      {{{0, 0, 1}, {2, 3, 2500}}, 6 * 9996},  // Long runs go straight to the target, gaps or not.
      {{{1, 2, 2499}, {2, 3, 2500}}, 4},     {{{1, 1, 3}, {1, 2, 2500}}, 0},
      {{{0, 0, 1900}, {2, 2, 2400}}, 8000},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.box.ToString());
    const std::vector<int64_t> elements = ElementsOf(shape, row.box);
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      Tensor out = Tensor::Empty(context, row.box.Extents(), dtype);
      const int64_t before = file.bytes_read();
      ASSERT_TRUE(file.ReadBox("x", row.box, out, kCast).ok());
      const bool converts = dtype != DType::kF32;
      EXPECT_EQ(file.bytes_read() - before, ExpectedBytes(elements, converts));
      if (!converts) {
        EXPECT_EQ(file.bytes_read() - before, row.bytes);
      }
      const std::vector<float> found = out.ToVector<float>();
      ASSERT_EQ(found.size(), elements.size());
      for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], values[elements[i]]) << i;
    }
  }
}

TEST(SafetensorsRead, ReadsTensorsLongerThanItsBuffer) {
  const std::vector<float> values = RandomFloats(7 * 30011);
  SafetensorsBuilder builder;
  builder.Add("odd", "BOOL", {1}, "\1").Add("x", "F32", {7, 30011}, BytesOf(values));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Tensor whole = Tensor::Empty(context, {7, 30011}, dtype);
    ASSERT_TRUE(file.Read("x", whole, kCast).ok());
    EXPECT_EQ(whole.ToVector<float>(), values);
    // Columns next to each other, and one alone.
    for (const auto& [begin, end] : {std::pair{1, 30010}, std::pair{29990, 30011}}) {
      Tensor part = Tensor::Empty(context, {7, end - begin}, dtype);
      ASSERT_TRUE(file.ReadBox("x", {{0, begin}, {7, end}}, part, kCast).ok());
      const std::vector<float> found = part.ToVector<float>();
      for (int64_t i = 0; i < part.NumElements(); ++i) {
        const int64_t width = end - begin;
        ASSERT_EQ(found[i], values[i / width * 30011 + begin + i % width]) << i;
      }
    }
  }
}

TEST(SafetensorsRead, RanksMayReadOneFileAtATime) {
  const std::vector<float> values = RandomFloats(64 * 97);
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {64, 97}, BytesOf(values));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  std::vector<std::thread> ranks;
  std::vector<int> wrong(4, 0);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      ExecutionContext context;
      for (int64_t i = 0; i < 200; ++i) {
        const int64_t column = (i * 7 + rank * 13) % 97;
        Tensor out = Tensor::Empty(context, {64, 1}, DType::kF64);
        if (!file.ReadBox("x", {{0, column}, {64, column + 1}}, out, kCast).ok()) ++wrong[rank];
        for (int64_t row = 0; row < 64; ++row) {
          wrong[rank] += out.data<double>()[row] != values[row * 97 + column];
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(SafetensorsRead, SaysWhatDoesNotFitWhenBoxOrTensorIsWrong) {
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {3, 5}, std::string(60, '\0'));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor whole = Tensor::Empty(context, {3, 5}, DType::kF32);
  Tensor transposed = Tensor::Empty(context, {5, 3}, DType::kF32).Transpose(0, 1);
  Tensor flat = Tensor::Empty(context, {15}, DType::kF32);
  Tensor meta = Tensor::Meta({3, 5}, DType::kF32);
  Tensor none;
  Tensor released = Tensor::Empty(context, {3, 5}, DType::kF32);
  released.storage()->Release("by the test");

  const std::string where = Quoted(file.path()) + ": tensor 'x' (f32[3,5]): ";
  ExpectError(file.Read("y", whole), Code::kNotFound, {file.path(), "'y'"});
  ExpectError(file.Read("x", transposed), Code::kInvalidArgument,
              {where, "not contiguous", "[1,3]"});
  ExpectError(file.Read("x", flat), Code::kInvalidArgument, {where, "[3,5]", "f32[15]"});
  ExpectError(file.Read("x", meta), Code::kInvalidArgument, {where, "is on meta"});
  ExpectError(file.Read("x", none), Code::kInvalidArgument, {where, "undefined"});
  ExpectError(file.Read("x", released), Code::kFailedPrecondition, {where, "released"});
  const Box wrong[] = {{{0, 0}, {3, 6}}, {{-1, 0}, {3, 5}}, {{2, 0}, {1, 5}},
                       {{0, 6}, {3, 6}}, {{0}, {3}},        {{0, 0, 0}, {3, 5, 1}},
                       {{0, 0}, {3}},    {{0}, {3, 5}},     {{}, {}}};
  for (const Box& box : wrong) {
    ExpectError(file.ReadBox("x", box, whole), Code::kInvalidArgument,
                {where, box.begin.ToString(), box.end.ToString(), "[3,5]"});
  }
  EXPECT_EQ(whole.storage()->version(), 0);
  EXPECT_TRUE(file.Read("x", whole).ok());
  EXPECT_EQ(whole.storage()->version(), 1);  // An in-place write that autograd must see.
}

TEST(SafetensorsRead, WritesAViewOfATensorAndNothingAround) {
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {2, 2}, BytesOf<float>({1, 2, 3, 4}));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor buffer = Tensor::FromValues<float>(context, {4, 2}, std::vector<float>(8, -1));
  Tensor view = buffer.Narrow(0, 1, 2);
  ASSERT_TRUE(file.Read("x", view).ok());
  EXPECT_THAT(buffer.ToVector<float>(), ElementsAre(-1, -1, 1, 2, 3, 4, -1, -1));
}

// ---- conversion ---------------------------------------------------------------------------------

// Reads `values` of the file's dtype as `to`, all as doubles.
absl::StatusOr<std::vector<double>> ReadAs(const std::string& file_dtype, const std::string& bytes,
                                           int64_t count, DType to) {
  SafetensorsBuilder builder;
  builder.Add("odd", "BOOL", {1}, "\1").Add("x", file_dtype, {count}, bytes);
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {count}, to);
  const absl::Status status = file.Read("x", out, kCast);
  if (!status.ok()) return status;
  return out.ToVector<double>();
}

template <typename T>
void ExpectConverted(const std::string& file_dtype, const std::vector<T>& values, DType to,
                     const std::vector<double>& expected) {
  SCOPED_TRACE(absl::StrCat(file_dtype, " to ", std::string(Name(to))));
  const auto found = ReadAs(file_dtype, BytesOf(values), static_cast<int64_t>(values.size()), to);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), expected));
}

TEST(SafetensorsConversion, ToFloatingRoundsToNearestEven) {
  ExpectConverted<float>("F32", {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, -0.0f, kInfinity, kNan, 3.38e38f},
                         DType::kBF16, {1, 1 + 0x1p-6, -0.0, kInfinity, kNan, 0x1.fcp127});
  ExpectConverted<float>("F32", {1.0f + 0x1p-11f, 65504, 65519, -kInfinity, 0x1p-24f, 0x1p-26f},
                         DType::kF16, {1, 65504, 65504, -kInfinity, 0x1p-24, 0});
  ExpectConverted<double>("F64", {1 + 0x1p-24, 1 + 0x3p-24, -kInfinity, 0x1p-150}, DType::kF32,
                          {1, 1 + 0x1p-22, -kInfinity, 0});
  ExpectConverted<int64_t>("I64", {(1 << 24) + 1, -5}, DType::kF32, {1 << 24, -5});
  ExpectConverted<int64_t>("I64", {(int64_t{1} << 53) + 1}, DType::kF64, {0x1p53});
  ExpectConverted<int32_t>("I32", {257, -3}, DType::kBF16, {256, -3});
  ExpectConverted<uint8_t>("BOOL", {0, 1}, DType::kF16, {0, 1});
  ExpectConverted<uint16_t>("BF16", {0x3f80, 0xc040, 0x7f80}, DType::kF64, {1, -3, kInfinity});
  ExpectConverted<uint16_t>("F16", {0x3c00, 0xc200, 0x0001}, DType::kF32, {1, -3, 0x1p-24});
}

TEST(SafetensorsConversion, SameDTypeKeepsEveryBit) {
  const std::vector<uint32_t> bits = {0x7fc00123, 0xff800001, 0x80000000, 0x00000001};
  SafetensorsBuilder builder;
  builder.Add("odd", "BOOL", {1}, "\1").Add("x", "F32", {4}, BytesOf(bits));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor out = Tensor::Empty(context, {4}, DType::kF32);
  ASSERT_TRUE(file.Read("x", out).ok());
  EXPECT_EQ(std::memcmp(out.raw_data(), bits.data(), 16), 0);
}

TEST(SafetensorsConversion, ToIntegersAndBoolTakesWhatStaysTheSame) {
  ExpectConverted<float>("F32", {-0.0f, 5, -0x1p31f}, DType::kI32, {0, 5, -0x1p31});
  ExpectConverted<double>("F64", {0x1p62, -0x1p63}, DType::kI64, {0x1p62, -0x1p63});
  ExpectConverted<int64_t>("I64", {2147483647, -2147483648}, DType::kI32,
                           {2147483647, -2147483648.0});
  ExpectConverted<int32_t>("I32", {-1, 7}, DType::kI64, {-1, 7});
  ExpectConverted<int64_t>("I64", {0, 1}, DType::kBool, {0, 1});
  ExpectConverted<uint16_t>("BF16", {0x0000, 0x3f80}, DType::kBool, {0, 1});
  ExpectConverted<uint8_t>("BOOL", {1, 0, 1}, DType::kBool, {1, 0, 1});
  ExpectConverted<uint8_t>("BOOL", {1, 0}, DType::kI64, {1, 0});
}

TEST(SafetensorsConversion, ChecksEveryByteOfALongBool) {
  std::vector<uint8_t> values(300'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 7 < 3;
  EXPECT_TRUE(ReadAs("BOOL", BytesOf(values), 300'000, DType::kBool).ok());
  values[290'003] = 128;
  ExpectError(ReadAs("BOOL", BytesOf(values), 300'000, DType::kBool).status(), Code::kOutOfRange,
              {"element 290003 (row-major) is 128, which is not a valid bool"});
}

TEST(SafetensorsConversion, NamesTheElementThatDoesNotFit) {
  const struct {
    std::string dtype;
    std::string bytes;
    int64_t count;
    DType to;
    std::string message;
  } rows[] = {
      {"F32", BytesOf<float>({1, 0.5f}), 2, DType::kI32,
       "element 1 (row-major) is 0.5, which is not a valid i32"},
      {"F32", BytesOf<float>({1, 2, 0x1p31f}), 3, DType::kI32,
       "element 2 (row-major) is 2147483648,"},
      {"F32", BytesOf<float>({kNan}), 1, DType::kI64, "is nan, which is not a valid i64"},
      {"F32", BytesOf<float>({-kInfinity}), 1, DType::kI64, "is -inf, which is not a valid i64"},
      {"F64", BytesOf<double>({0x1p63}), 1, DType::kI64, "is 9.2233720368547758e+18,"},
      {"F64", BytesOf<double>({-2147483649.0}), 1, DType::kI32, "is -2147483649,"},
      {"I64", BytesOf<int64_t>({2147483648}), 1, DType::kI32,
       "is 2147483648, which is not a valid i32"},
      {"I64", BytesOf<int64_t>({-2147483649}), 1, DType::kI32, "is -2147483649,"},
      {"I64", BytesOf<int64_t>({1, 2}), 2, DType::kBool,
       "element 1 (row-major) is 2, which is not a valid bool"},
      {"I32", BytesOf<int32_t>({-1}), 1, DType::kBool, "is -1, which is not a valid bool"},
      {"F64", BytesOf<double>({0.5}), 1, DType::kBool, "is 0.5, which is not a valid bool"},
      {"BOOL", BytesOf<uint8_t>({1, 2}), 2, DType::kBool,
       "element 1 (row-major) is 2, which is not a valid bool"},
      {"BOOL", BytesOf<uint8_t>({255}), 1, DType::kF32, "is 255, which is not a valid bool"},
  };
  for (const auto& row : rows) {
    ExpectError(ReadAs(row.dtype, row.bytes, row.count, row.to).status(), Code::kOutOfRange,
                {TestFolder(), "tensor 'x'", row.message});
  }
}

// Such values were read as infinities without a word.
TEST(SafetensorsConversion, RefusesAFiniteValueThatWouldBecomeInfinite) {
  const struct {
    std::string dtype;
    std::string bytes;
    DType to;
    std::string message;
  } rows[] = {
      {"F64", BytesOf<double>({-1, 1e300}), DType::kF32, "1.0000000000000001e+300, which would"},
      {"F64", BytesOf<double>({kInfinity, -1e300}), DType::kBF16, "e+300, which would become"},
      {"F32", BytesOf<float>({2, 1e10f}), DType::kF16, "is 10000000000, which would become"},
      {"F32", BytesOf<float>({65519, 65520}), DType::kF16, "is 65520, which would become"},
      {"F32", BytesOf<float>({kInfinity, 3.4e38f}), DType::kBF16, "would become infinite in bf16"},
      {"BF16", BytesOf<uint16_t>({0x3f80, 0x7f7f}), DType::kF16, "would become infinite in f16"},
      {"I64", BytesOf<int64_t>({-65504, 65520}), DType::kF16, "is 65520, which would become"},
      {"I32", BytesOf<int32_t>({7, -2147483647}), DType::kF16, "is -2147483647, which would"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dtype);
    ExpectError(ReadAs(row.dtype, row.bytes, 2, row.to).status(), Code::kOutOfRange,
                {TestFolder(), "tensor 'x'", "element 1 (row-major) is ", row.message});
  }
}

// 16777217 was read into an f32 as 16777216.
TEST(SafetensorsConversion, IsDoneOnlyWhereItIsAskedFor) {
  const std::vector<std::pair<std::string, DType>> dtypes = {
      {"F32", DType::kF32}, {"F64", DType::kF64}, {"BF16", DType::kBF16}, {"F16", DType::kF16},
      {"I32", DType::kI32}, {"I64", DType::kI64}, {"BOOL", DType::kBool}};
  ExecutionContext context;
  for (const auto& [stored, stored_dtype] : dtypes) {
    const size_t bytes = static_cast<size_t>(SizeOf(stored_dtype));
    SafetensorsBuilder builder;
    builder.Add("x", stored, {2}, std::string(2 * bytes, '\0'));
    const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
    const auto reader = CheckpointReader::Open(file.path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const auto& [unused, dtype] : dtypes) {
      Tensor out = Tensor::Empty(context, {2}, dtype);
      Tensor nothing = Tensor::Empty(context, {0}, dtype);
      EXPECT_TRUE(file.Read("x", out, kCast).ok());
      EXPECT_TRUE(reader->Read("x", out, kCast).ok());
      EXPECT_TRUE(reader->ReadBox("x", {{1}, {1}}, nothing, kCast).ok());
      // All ranks fail alike, also the one whose box is empty.
      for (const absl::Status& status :
           {file.Read("x", out), file.ReadBox("x", {{1}, {1}}, nothing), reader->Read("x", out),
            reader->ReadBox("x", {{0}, {2}}, out)}) {
        if (dtype == stored_dtype) {
          EXPECT_TRUE(status.ok()) << status;
          continue;
        }
        ExpectError(status, Code::kInvalidArgument,
                    {file.path(), "tensor 'x'",
                     absl::StrCat("the stored dtype is ", std::string(Name(stored_dtype)),
                                  ", but `out` has ", std::string(Name(dtype))),
                     "ReadOptions::allow_cast"});
      }
    }
  }
}

TEST(SafetensorsRead, CountsAWriteAlsoOfABoxWithoutElements) {
  // Seen here: after a load, ranks with an empty shard did not know that parameters had changed.
  SafetensorsBuilder builder;
  builder.Add("x", "F32", {2, 2}, BytesOf<float>({1, 2, 3, 4}));
  const SafetensorsFile file = OpenOrDie(WriteTestFile("x.safetensors", builder.Build()));
  ExecutionContext context;
  Tensor row = Tensor::Empty(context, {1, 2}, DType::kF32);
  Tensor nothing = Tensor::Empty(context, {0, 2}, DType::kF32);
  EXPECT_TRUE(file.ReadBox("x", {{1, 0}, {2, 2}}, row).ok());
  EXPECT_TRUE(file.ReadBox("x", {{2, 0}, {2, 2}}, nothing).ok());
  EXPECT_EQ(row.storage()->version(), 1);
  EXPECT_EQ(nothing.storage()->version(), 1);
}

}  // namespace
}  // namespace shardmesh
