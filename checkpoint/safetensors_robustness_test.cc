// SPDX-License-Identifier: Apache-2.0
//
// Thousands of damaged files. Whatever is in one, the reader must give a Status or what a plain
// reading of the bytes gives; it must not crash, and under the sanitizers it must do nothing
// undefined.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "shardmesh/base/quoted.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  /// From 0 to `limit` - 1.
  size_t Below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(engine_);
  }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

 private:
  std::mt19937 engine_;
};

// A file before its length, header and data are joined.
struct Parts {
  std::string header;
  std::string data;
};

std::vector<Parts> ValidFiles() {
  SafetensorsBuilder all, plain, empty;
  all.Add("f32", "F32", {2, 3}, BytesOf<float>({1, -2, 3.5f, 1e30f, 0, -0.5f}));
  all.Add("f64", "F64", {2}, BytesOf<double>({1e300, -7}));
  all.Add("none", "BF16", {5, 0, 3}, "");
  all.Add("bf16", "BF16", {3}, std::string("\x80\x3f\x00\xc0\x80\x7f", 6));
  all.Add("i64", "I64", {}, BytesOf<int64_t>({-9'000'000'000}));
  all.Add("i32", "I32", {1, 1, 2}, BytesOf<int32_t>({1, -1}));
  all.Add("f16", "F16", {1}, std::string("\x00\x3c", 2));
  all.Add("bool", "BOOL", {4}, std::string("\1\0\0\1", 4));
  all.Add("u8", "U8", {3}, "abc").Add("f4", "F4", {2, 2}, "xy");
  plain.Add("model.weight", "F32", {7, 11}, std::string(7 * 11 * 4, '\x3f'));
  std::string with_metadata = plain.Header();
  with_metadata.insert(1, R"("__metadata__":{"format":"pt","a\u00e9":"\\\""},)");
  return {{all.Header(), all.data()}, {with_metadata + "   ", plain.data()}, {empty.Header(), ""}};
}

// Pieces of headers, numbers at the edges of types, and bytes that parsers stumble over.
const std::vector<std::string>& Tokens() {
  static const auto* tokens = new std::vector<std::string>{
      "0",
      "1",
      "2",
      "3",
      "4",
      "8",
      "24",
      "-1",
      "-0",
      "1.0",
      "1e3",
      "1e999",
      "2147483648",
      "4294967296",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "18446744073709551616",
      "2305843009213693952",
      "null",
      "true",
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "\"",
      "{}",
      "[]",
      "\"F32\"",
      "\"F64\"",
      "\"BOOL\"",
      "\"F4\"",
      "\"U8\"",
      "\"I64\"",
      "\"shape\"",
      "\"dtype\"",
      "\"data_offsets\"",
      "\"__metadata__\"",
      "\"f32\"",
      "\\u0000",
      "\\ud800",
      "\xff",
      "\xc3",
      std::string(1, '\0'),
      " ",
      "\n",
      std::string(40, '['),
      std::string(70, '0'),
      ",\"f32\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"};
  return *tokens;
}

// The place of a number or quoted word: the interesting damage replaces one whole.
std::pair<size_t, size_t> SomeWord(const std::string& text, Random& random) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '"';
  };
  size_t begin = random.Below(text.size());
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  size_t end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  return {begin, std::max(end, begin + 1) - begin};
}

void DamageText(std::string& text, Random& random) {
  if (text.empty()) {
    text = random.Of(Tokens());
    return;
  }
  const size_t at = random.Below(text.size());
  const size_t length = std::min<size_t>(1 + random.Below(20), text.size() - at);
  switch (random.Below(7)) {
    case 0:
      text[at] = static_cast<char>(random.Below(256));
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(random.Below(text.size()), text.substr(at, length));
      break;
    case 3:
      text.insert(at, random.Of(Tokens()));
      break;
    case 4:
      std::swap(text[at], text[random.Below(text.size())]);
      break;
    default: {
      const auto [begin, count] = SomeWord(text, random);
      text.replace(begin, count, random.Of(Tokens()));
    }
  }
}

std::string DamagedFile(const Parts& valid, Random& random) {
  Parts parts = valid;
  const size_t damages = 1 + random.Below(2);
  for (size_t i = 0; i < damages; ++i) {
    DamageText(random.Below(5) == 0 ? parts.data : parts.header, random);
  }
  std::string bytes = SafetensorsBytes(parts.header, parts.data);
  switch (random.Below(12)) {
    case 0:
      bytes.resize(random.Below(bytes.size() + 1));
      break;
    case 1:
      bytes[random.Below(8)] = static_cast<char>(random.Below(256));
      break;
    case 2:
      bytes += std::string(1 + random.Below(9), '\0');
      break;
    default:
      break;
  }
  return bytes;
}

// Reads `stored` whole and a box of it, as `dtype`; compares with `bytes`, the whole file.
void CheckTensor(const SafetensorsFile& file, const StoredTensor& stored, const std::string& bytes,
                 DType dtype, Random& random) {
  ExecutionContext context;
  if (stored.shape.size() > Dims::kMaxRank) {
    Tensor out = Tensor::Empty(context, {1}, dtype);
    EXPECT_EQ(file.Read(stored.name, out).code(), absl::StatusCode::kUnimplemented);
    return;
  }
  const Dims shape(stored.shape);
  Tensor out = Tensor::Empty(context, shape, dtype);
  const absl::Status status = file.Read(stored.name, out, {.allow_cast = true});
  EXPECT_EQ(status.code() == absl::StatusCode::kUnimplemented, !stored.dtype.has_value()) << status;
  if (!stored.dtype) return;
  const bool is_exact = dtype == *stored.dtype && dtype != DType::kBool;
  EXPECT_TRUE(status.ok() || (!is_exact && status.code() == absl::StatusCode::kOutOfRange))
      << status;
  if (is_exact && stored.Bytes() > 0) {
    EXPECT_EQ(std::memcmp(out.raw_data(), bytes.data() + stored.begin, stored.Bytes()), 0);
  }
  Box box = Box::Whole(shape);
  for (int d = 0; d < shape.size(); ++d) {
    box.begin[d] = static_cast<int64_t>(random.Below(shape[d] + 1));
    box.end[d] = box.begin[d] + static_cast<int64_t>(random.Below(shape[d] - box.begin[d] + 1));
  }
  Tensor part = Tensor::Empty(context, box.Extents(), dtype);
  const absl::Status box_status = file.ReadBox(stored.name, box, part, {.allow_cast = true});
  EXPECT_TRUE(box_status.ok() || !status.ok()) << box_status;
}

// What the reader lists, against the header as nlohmann's document model has it.
void CheckList(const SafetensorsFile& file, const std::string& bytes) {
  uint64_t length;
  ASSERT_GE(bytes.size(), 8u);
  std::memcpy(&length, bytes.data(), 8);
  const nlohmann::json header =
      nlohmann::json::parse(bytes.substr(8, length), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(header.is_object());
  EXPECT_EQ(file.tensors().size(), header.size() - header.count("__metadata__"));
  int64_t position = static_cast<int64_t>(8 + length);
  for (const StoredTensor& stored : file.tensors()) {
    const nlohmann::json& entry = header.at(stored.name);
    EXPECT_EQ(stored.file_dtype, entry.at("dtype").get<std::string>());
    EXPECT_EQ(stored.shape, entry.at("shape").get<std::vector<int64_t>>());
    EXPECT_EQ(stored.begin - static_cast<int64_t>(8 + length), entry.at("data_offsets").at(0));
    EXPECT_EQ(stored.end - static_cast<int64_t>(8 + length), entry.at("data_offsets").at(1));
    EXPECT_EQ(stored.begin, position);
    position = stored.end;
    EXPECT_EQ(file.Find(stored.name), &stored);
  }
  EXPECT_EQ(position, static_cast<int64_t>(bytes.size()));
}

TEST(SafetensorsRobustness, DamagedFilesGiveAStatusOrTheirOwnContent) {
  constexpr int kFiles = 12'000;
  const std::vector<Parts> valid = ValidFiles();
  const std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                     DType::kI32, DType::kI64, DType::kBool};
  Random random(/*seed=*/20261129);
  int opened = 0;
  for (int i = 0; i < kFiles; ++i) {
    // The first three are whole.
    const Parts& parts = valid[i % valid.size()];
    const bool is_whole = i < static_cast<int>(valid.size());
    const std::string bytes =
        is_whole ? SafetensorsBytes(parts.header, parts.data) : DamagedFile(parts, random);
    const std::string path = WriteTestFile("x.safetensors", bytes);
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok() || !is_whole) << file.status();
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(file.status().message()), ::testing::StartsWith(Quoted(path)));
      continue;
    }
    ++opened;
    CheckList(*file, bytes);
    for (const StoredTensor& stored : file->tensors()) {
      CheckTensor(*file, stored, bytes, random.Of(dtypes), random);
      if (stored.dtype) CheckTensor(*file, stored, bytes, *stored.dtype, random);
    }
    if (HasFailure()) FAIL() << "file " << i << ": " << ::testing::PrintToString(bytes);
  }
  // Damage to data, names and metadata leaves a valid file: both outcomes are well covered.
  EXPECT_GT(opened, kFiles / 30);
  EXPECT_LT(opened, kFiles / 2);
}

TEST(SafetensorsRobustness, DamagedIndexesGiveAStatusOrAReader) {
  constexpr int kIndexes = 4'000;
  const std::vector<Parts> files = ValidFiles();
  WriteTestFile("1.safetensors", SafetensorsBytes(files[0].header, files[0].data));
  WriteTestFile("sub/2.safetensors", SafetensorsBytes(files[1].header, files[1].data));
  const std::string index =
      R"({"metadata":{"total_size":400},"weight_map":{"f32":"1.safetensors","f64":"1.safetensors",)"
      R"("model.weight":"sub/2.safetensors"}})";
  Random random(/*seed=*/7);
  int opened = 0;
  for (int i = 0; i < kIndexes; ++i) {
    std::string bytes = index;
    if (i > 0) DamageText(bytes, random);
    WriteTestFile("model.safetensors.index.json", bytes);
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(TestFolder());
    EXPECT_TRUE(i > 0 || reader.ok()) << reader.status();
    if (!reader.ok()) continue;
    ++opened;
    for (const std::string& name : reader->Names()) EXPECT_NE(reader->Find(name), nullptr);
    for (const SafetensorsFile& file : reader->files()) {
      EXPECT_THAT(file.path(), ::testing::StartsWith(TestFolder() + "/"));
    }
    if (HasFailure()) FAIL() << "index " << i << ": " << ::testing::PrintToString(bytes);
  }
  EXPECT_GT(opened, kIndexes / 50);
  EXPECT_LT(opened, kIndexes / 2);
}

}  // namespace
}  // namespace shardmesh
