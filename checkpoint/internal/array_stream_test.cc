// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/array_stream.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh::checkpoint::internal {
namespace {

// Elements of the box of an array whose every element is its row-major index.
std::vector<float> Indices(const Dims& shape, const Box& box) {
  std::vector<float> values;
  const Dims extents = box.Extents();
  for (int64_t i = 0; i < extents.NumElements(); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (int d = shape.size() - 1; d >= 0; --d) {
      index += (box.begin[d] + rest % extents[d]) * stride;
      rest /= extents[d];
      stride *= shape[d];
    }
    values.push_back(static_cast<float>(index));
  }
  return values;
}

// Writes each box as the array "x" of a file of its own, as PyTorch's distributed checkpoint does.
Contents OpenBoxes(const Dims& shape, const std::vector<Box>& boxes) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    SafetensorsBuilder builder;
    const Dims extents = boxes[i].Extents();
    builder.Add("x", "F32", std::vector<int64_t>(extents.begin(), extents.end()),
                BytesOf<float>(Indices(shape, boxes[i])));
    const std::string info =
        absl::StrCat(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"x\":{\"saved_offsets\":[)",
                     absl::StrJoin(boxes[i].begin, ","), R"(]}}"},)", builder.Header().substr(1));
    WriteTestFile(absl::StrCat("shard-", i, ".safetensors"),
                  SafetensorsBytes(info, builder.data()));
  }
  absl::StatusOr<Contents> contents = Contents::Open(TestFolder());
  EXPECT_TRUE(contents.ok()) << contents.status();
  return *std::move(contents);
}

TEST(ArrayStream, IsTheArrayInOrderWhateverTheBoxesAndTheBuffer) {
  const struct {
    Dims shape;
    std::vector<Box> boxes;
  } rows[] = {
      {{13}, {{{0}, {13}}}},
      {{13}, {{{5}, {13}}, {{0}, {5}}, {{13}, {13}}}},
      {{5, 7}, {{{0, 0}, {5, 3}}, {{0, 3}, {5, 7}}}},
      {{5, 7}, {{{2, 3}, {5, 7}}, {{0, 0}, {2, 7}}, {{2, 0}, {5, 3}}}},
      {{2, 3, 11}, {{{0, 0, 0}, {2, 1, 11}}, {{0, 1, 0}, {2, 3, 4}}, {{0, 1, 4}, {2, 3, 11}}}},
      {{1, 17, 1}, {{{0, 0, 0}, {1, 16, 1}}, {{0, 16, 0}, {1, 17, 1}}}},
      {{}, {{{}, {}}}},
      {{0, 4}, {{{0, 0}, {0, 4}}}},
  };
  ExecutionContext context;
  for (const auto& row : rows) {
    const Contents contents = OpenBoxes(row.shape, row.boxes);
    for (const int64_t max_elements : {1, 2, 3, 7, 11, 14, 1000}) {
      SCOPED_TRACE(absl::StrCat(row.shape.ToString(), " by ", max_elements));
      PieceFiles files(contents);
      ArrayStream stream(context, files, contents.arrays[0], DType::kF32, max_elements);
      std::vector<float> values;
      while (true) {
        const auto part = stream.Next();
        ASSERT_TRUE(part.ok()) << part.status();
        if (part->count == 0) break;
        EXPECT_EQ(part->first, static_cast<int64_t>(values.size()));
        EXPECT_LE(part->count, max_elements);
        values.resize(values.size() + part->count);
        std::memcpy(values.data() + part->first, part->data, part->count * sizeof(float));
      }
      EXPECT_EQ(values, Indices(row.shape, Box::Whole(row.shape)));
    }
    std::filesystem::remove_all(TestFolder());
    TestFolder();
  }
}

TEST(ArrayStream, ConvertsAndRefusesWhatWouldBecomeInfinite) {
  SafetensorsBuilder builder;
  builder.Add("x", "F64", {3}, BytesOf<double>({1.5, -2, 1e39}));
  WriteTestFile("model.safetensors", builder.Build());
  const auto contents = Contents::Open(TestFolder());
  ASSERT_TRUE(contents.ok()) << contents.status();
  ExecutionContext context;
  PieceFiles files(*contents);
  ArrayStream stream(context, files, contents->arrays[0], DType::kBF16, 2);
  const auto part = stream.Next();
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_EQ(part->count, 2);
  const BFloat16 expected[2] = {BFloat16(1.5f), BFloat16(-2.0f)};
  EXPECT_EQ(std::memcmp(part->data, expected, sizeof(expected)), 0);
  ExpectError(stream.Next().status(), absl::StatusCode::kOutOfRange,
              {"model.safetensors", "'x'", "element 2", "infinite in bf16"});
}

}  // namespace
}  // namespace shardmesh::checkpoint::internal
