// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/byte_text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/examples/training/counter_hash.h"

namespace shardmesh::examples {
namespace {

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string MakePipe(const std::string& name) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove(path);
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

std::string MakeSparseFile(const std::string& name, int64_t bytes) {
  const std::string path = WriteFile(name, "");
  std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
  return path;
}

// SplitMix64's published outputs for the seed 1234567; the rest follows from its definition.
TEST(CounterHash, HasKnownAnswers) {
  EXPECT_EQ(SplitMix(1234567), 6457827717110365317u);
  EXPECT_EQ(SplitMix(1234567 + 0x9e3779b97f4a7c15u), 3203168211198807973u);
  EXPECT_EQ(CounterHash(1, 2, 3), SplitMix(SplitMix(SplitMix(1) + 2) + 3));
  EXPECT_EQ(UnitInterval(0), 0);
  EXPECT_LT(UnitInterval(~uint64_t{0}), 1);
}

TEST(ByteText, HoldsAnyBytesOfAFile) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const absl::StatusOr<ByteText> text = ByteText::Open(WriteFile("all_bytes", bytes));
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(text->size(), 256);
  for (int i = 0; i < 256; ++i) EXPECT_EQ((*text)[i], i);
}

TEST(ByteText, SaysWhatIsWrongWithAFile) {
  const struct {
    std::string path;
    absl::StatusCode code;
    const char* message;
  } kCases[] = {
      {absl::StrCat(testing::TempDir(), "/none"), absl::StatusCode::kNotFound, "No such file"},
      {testing::TempDir(), absl::StatusCode::kInvalidArgument, "a directory"},
      {WriteFile("empty", ""), absl::StatusCode::kInvalidArgument, "is empty"},
      // Was read without end, until memory ran out.
      {"/dev/zero", absl::StatusCode::kInvalidArgument, "not a regular file"},
      // Opening it waited for a writer.
      {MakePipe("pipe"), absl::StatusCode::kInvalidArgument, "not a regular file"},
      {MakeSparseFile("huge", int64_t{1} << 40), absl::StatusCode::kInvalidArgument,
       "1099511627776 bytes, more than the limit"},
      {"/proc/self/mem", absl::StatusCode::kInvalidArgument, "is empty"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = ByteText::Open(c.path).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.path)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
  }
}

TEST(ByteText, NeedsOneByteMoreThanASequence) {
  const ByteText text("12345678");
  EXPECT_TRUE(text.CheckHolds(7).ok());
  const absl::Status status = text.CheckHolds(8);
  EXPECT_EQ(status.message(),
            "the text has 8 bytes; a sequence of 8 and its next byte need at least 9");
}

TEST(ByteText, WindowsStartEverywhereWhereTheyFit) {
  const ByteText text("0123456789");
  std::set<int64_t> starts;
  for (int64_t step = 0; step < 20; ++step) {
    for (int64_t row = 0; row < 5; ++row) starts.insert(text.WindowStart(1, step, row, 7));
  }
  EXPECT_EQ(starts, (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(text.WindowStart(5, 3, 1, 9), 0);
}

// What a run trains on may not change by accident.
TEST(ByteText, WindowsDependOnSeedStepAndRowAlone) {
  const ByteText text(std::string(4404412, 'x'));
  const auto start = [&](uint64_t seed, int64_t step, int64_t row) {
    return text.WindowStart(seed, step, row, 128);
  };
  const double unit = static_cast<double>(CounterHash(1, 0, 0)) * 0x1p-64;
  EXPECT_EQ(start(1, 0, 0), static_cast<int64_t>(unit * (4404412 - 128)));
  std::set<int64_t> different;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (int64_t step = 0; step < 3; ++step) {
      for (int64_t row = 0; row < 3; ++row) different.insert(start(seed, step, row));
    }
  }
  EXPECT_EQ(different.size(), 27u);
}

}  // namespace
}  // namespace shardmesh::examples
