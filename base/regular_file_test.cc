// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace shardmesh {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + name;
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void ExpectRefused(const std::string& path, Code code, const std::string& reason) {
  const absl::Status status = RegularFile::Open(path).status();
  EXPECT_EQ(status.code(), code) << path << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(reason)) << path;
}

TEST(RegularFile, ReadsBytesAtAnyOffset) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(WriteFile("five", "vwxyz"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 5);
  EXPECT_EQ(file->ReadAll(5).value(), "vwxyz");
  char two[2];
  EXPECT_TRUE(file->ReadAt(2, two, 2).ok());
  EXPECT_EQ(std::string(two, 2), "xy");
  EXPECT_TRUE(file->ReadAt(5, two, 0).ok());
  EXPECT_EQ(file->ReadAt(4, two, 2).code(), Code::kDataLoss);
}

TEST(RegularFile, RefusesAtOnceWhatMayWaitOrNeverEnd) {
  const std::string pipe = ::testing::TempDir() + "pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused(pipe, Code::kInvalidArgument, "not a regular file");  // A plain open() waits.
  ExpectRefused("/dev/zero", Code::kInvalidArgument, "not a regular file");
  ExpectRefused(::testing::TempDir(), Code::kInvalidArgument, "a directory");
}

TEST(RegularFile, SaysWhyAFileCannotBeOpened) {
  ExpectRefused(::testing::TempDir() + "none", Code::kNotFound, "No such file or directory");
  ExpectRefused(::testing::TempDir() + std::string(300, 'x'), Code::kInvalidArgument,
                "File name too long");
  ExpectRefused(std::string("/dev/null\0.json", 15), Code::kInvalidArgument, "NUL byte");
}

TEST(RegularFile, RefusesToHoldMoreThanTheLimit) {
  const std::string path = WriteFile("sparse", "a");
  std::filesystem::resize_file(path, int64_t{1} << 40);  // One block on the disk.
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->ReadAll(1000).status().message(),
            "1099511627776 bytes, more than the limit of 1000");
}

TEST(RegularFile, TellsOneVersionFromAnother) {
  const std::string path = WriteFile("version", "one");
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->CurrentIdentity().value(), file->identity());
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_NE(file->CurrentIdentity().value(), file->identity());
  EXPECT_EQ(file->ReadAll(100).value(), "one");
  std::filesystem::rename(WriteFile("other", "one"), path);
  EXPECT_NE(RegularFile::Open(path)->identity(), file->identity());
}

TEST(RegularFile, Moves) {
  RegularFile a = *RegularFile::Open(WriteFile("a", "aa"));
  RegularFile b = *RegularFile::Open(WriteFile("b", "bbb"));
  a = std::move(b);
  const RegularFile c = std::move(a);
  EXPECT_EQ(c.ReadAll(9).value(), "bbb");
}

}  // namespace
}  // namespace shardmesh
