// SPDX-License-Identifier: Apache-2.0
//
// Indexes that lie, and thousands that are damaged: an error, and nothing worse.
#include "shardmesh/checkpoint/contents.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/internal/checksum.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::HasSubstr;

// Two files; a matrix in three boxes, a vector, a scalar, plain values.
Contents Sample() {
  Contents contents;
  contents.files = {{"a.safetensors", 4000, 1}, {"b.safetensors", 4000, {}}};
  StoredArray matrix;
  matrix.name = "w";
  matrix.aliases = {"tied"};
  matrix.file_dtype = "F32";
  matrix.dtype = DType::kF32;
  matrix.shape = {5, 4};
  matrix.layout = "[5,4] [S(0)] @ [dp=3]";
  matrix.pieces = {{0, {{0, 0}, {2, 4}}, 1000, 32, 7},
                   {1, {{2, 0}, {5, 3}}, 1000, 36, 8},
                   {1, {{2, 3}, {5, 4}}, 1036, 12, 9}};
  StoredArray vector;
  vector.name = "v";
  vector.file_dtype = "BOOL";
  vector.dtype = DType::kBool;
  vector.shape = {3};
  vector.pieces = {{0, {{0}, {3}}, 1032, 3, {}}};
  StoredArray scalar;
  scalar.name = "s";
  scalar.file_dtype = "F64";
  scalar.dtype = DType::kF64;
  scalar.pieces = {{0, {{}, {}}, 1040, 8, {}}};
  contents.arrays = {matrix, vector, scalar};
  contents.values = {{"step", int64_t{-3}},
                     {"rate", 0.1},
                     {"list", StateList{{true, std::string("x"), Tensor(), StateList{}}}}};
  return contents;
}

std::string JsonOf(const Contents& contents) {
  const absl::StatusOr<std::string> json = contents.ToJson();
  EXPECT_TRUE(json.ok()) << json.status();
  return json.value_or("");
}

absl::Status Parse(const std::string& json) {
  absl::StatusOr<Contents> contents = Contents::FromJson(json);
  return contents.ok() ? contents->Check() : contents.status();
}

TEST(Contents, AreTheSameAfterTheirText) {
  const std::string json = JsonOf(Sample());
  absl::StatusOr<Contents> contents = Contents::FromJson(json);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(JsonOf(*contents), json);
  EXPECT_EQ(contents->Check(), absl::OkStatus());
}

TEST(Contents, ThatLieAreRefusedByName) {
  struct Lie {
    std::string from, to, message;
  };
  const std::vector<Lie> lies = {
      {"\"begin\":[2,3]", "\"begin\":[2,2]", "array 'w': piece: expected the bytes of F32"},
      {"\"end\":[5,4],\"file\":1", "\"end\":[5,5],\"file\":1", "a box within [5,4]"},
      {"\"shape\":[5,4]", "\"shape\":[6,4]", "no file has box [5:6, 0:3]"},
      {"\"shape\":[5,4]", "\"shape\":[5,4,1]", "a box within [5,4,1]"},
      {"\"shape\":[3]", "\"shape\":[9223372036854775807]", "no file has box"},
      {"\"shape\":[5,4]", "\"shape\":[4611686018427387904,4]", "a size that 64 bits hold"},
      {"\"shape\":[3]", "\"shape\":[-3]", "'v'.shape: expected a count"},
      {"\"at\":1036", "\"at\":3990", "bytes within the 4000 of 'b.safetensors'"},
      {"\"at\":1036", "\"at\":9223372036854775807", "bytes within the 4000"},
      {"\"at\":1036", "\"at\":18446744073709551615", "a count below 2^63"},
      {"\"file\":1", "\"file\":2", "a file below 2, not 2"},
      {"\"a.safetensors\"", "\"../a.safetensors\"",
       "a name in the directory, not '../a.safetensors'"},
      {"\"a.safetensors\"", "\"/etc/passwd\"", "a name in the directory"},
      {"\"a.safetensors\"", "\"..\"", "a name in the directory"},
      {"\"F32\"", "\"F8_E4M3\"", "'w'.dtype: expected a dtype, not 'F8_E4M3'"},
      {"\"version\":1", "\"version\":2", "version 2 of the format"},
      {"shardmesh checkpoint", "another", "not 'another'"},
      {"\"i64\":\"-3\"", "\"i64\":\"-3x\"", "'step': expected i64"},
      {"\"i64\":\"-3\"", "\"i64\":\"99999999999999999999\"", "'step': expected i64"},
      {"\"name\":\"v\"", "\"name\":\"w\"", "array 'w' twice"},
      {"\"tied\"", "\"v\"", "array 'v' twice"},
      {"\"tied\"", "\"w\"", "array 'w' twice"},
      {"\"name\":\"rate\"", "\"name\":\"step\"", "value 'step' twice"},
      {"\"name\":\"rate\"", "\"name\":\"tied\"", "value 'tied' twice"},
      {"0000000000000007", "000000000000000g", "16 hexadecimal digits"}};
  const std::string json = JsonOf(Sample());
  for (const Lie& lie : lies) {
    const std::string text = absl::StrReplaceAll(json, {{lie.from, lie.to}});
    ASSERT_NE(text, json) << lie.from;
    EXPECT_THAT(std::string(Parse(text).message()), HasSubstr(lie.message)) << lie.to;
  }
}

TEST(Coverage, FindsGapsAndOverlaps) {
  const auto piece = [](const Dims& begin, const Dims& end) {
    StoredPiece piece;
    piece.box = {begin, end};
    return piece;
  };
  EXPECT_EQ(CheckCoverage({}, {piece({}, {})}), absl::OkStatus());
  EXPECT_FALSE(CheckCoverage({}, {}).ok());
  EXPECT_FALSE(CheckCoverage({}, {piece({}, {}), piece({}, {})}).ok());
  EXPECT_EQ(CheckCoverage({0, 3}, {}), absl::OkStatus());
  EXPECT_EQ(CheckCoverage({5}, {piece({0}, {2}), piece({2}, {2}), piece({2}, {5})}),
            absl::OkStatus());
  EXPECT_THAT(std::string(CheckCoverage({5}, {piece({0}, {2}), piece({3}, {5})}).message()),
              HasSubstr("[2:3]"));
  // As many elements as the array, once too often and once not at all.
  EXPECT_THAT(std::string(CheckCoverage({4}, {piece({0}, {2}), piece({1}, {3})}).message()),
              HasSubstr("[1:3] overlaps"));
  // Like bricks: no row or column of boxes is whole.
  const std::vector<StoredPiece> pinwheel = {piece({0, 0}, {1, 2}), piece({0, 2}, {2, 3}),
                                             piece({2, 1}, {3, 3}), piece({1, 0}, {3, 1}),
                                             piece({1, 1}, {2, 2})};
  EXPECT_EQ(CheckCoverage({3, 3}, pinwheel), absl::OkStatus());
}

TEST(Coverage, OfAThousandTensorsOnAThousandRanksIsFast) {
  std::vector<StoredPiece> pieces;
  for (int64_t i = 0; i < 1024; ++i) {
    StoredPiece piece;
    piece.box = {{i / 32 * 4, i % 32 * 5}, {i / 32 * 4 + 4, i % 32 * 5 + 5}};
    pieces.push_back(piece);
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(CheckCoverage({128, 160}, pieces), absl::OkStatus());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::cout << "coverage of 1,024,000 boxes: " << seconds.count() << " s\n";
}

// Bytes, digits, brackets and whole members are changed, dropped, doubled or swapped; the checksum
// is right each time.
TEST(Contents, DamagedInAnyWayAreAnErrorOrContents) {
  const char* const count = std::getenv("SHARDMESH_INDEX_CASES");
  const int64_t cases = count == nullptr ? 20000 : std::atoll(count);
  const std::string json = JsonOf(Sample());
  const std::string path = TestFolder();
  const std::vector<std::string> tokens = {
      "9223372036854775807",  "-1",   "{}",      "[]", "null", "1e999", "\"\"",
      "18446744073709551616", "[[[[", "\\u0000", "4"};
  std::mt19937_64 random(5);
  int64_t accepted = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::string text = json;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % text.size(), length = random() % 12;
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), length));
          break;
        default:
          text.replace(at, length, tokens[random() % tokens.size()]);
          break;
      }
      if (text.empty()) text = "{";
    }
    accepted += Parse(text).ok() ? 1 : 0;
    if (i % 100 != 0 || text[0] != '{') continue;
    std::ofstream(absl::StrCat(path, "/", kIndexName), std::ios::binary)
        << internal::WithChecksum(text);
    EXPECT_EQ(Contents::Open(path).ok(), Parse(internal::WithChecksum(text)).ok());
  }
  std::cout << cases << " damaged indexes, " << accepted << " of them still whole\n";
  EXPECT_LT(accepted, cases / 2);
}

}  // namespace
}  // namespace shardmesh::checkpoint
