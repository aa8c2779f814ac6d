// SPDX-License-Identifier: Apache-2.0
//
// Tensors that are larger than the memory that the tool takes. The files are sparse.
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/tools/checkpoint/testing/sample_checkpoints.h"

namespace shardmesh::checkpoint::tool {
namespace {

using ::testing::HasSubstr;
using testing::InFolder;
using testing::Tool;
using testing::ToolResult;

constexpr int64_t kMiB = int64_t{1} << 20;
// 4 buffers of 4 MiB, those of reading and writing, and what a sanitizer adds.
constexpr int64_t kMaxBytes = 48 * kMiB;

int64_t PeakBytes() {
  rusage usage;
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_maxrss * 1024;
}

// A tensor "x" f32[rows, 1 MiB / 4] of zeros.
std::string WriteZeros(const std::string& name, int64_t rows) {
  const std::string header = absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", rows, ",", kMiB / 4,
                                          R"(],"data_offsets":[0,)", rows * kMiB, "]}}");
  const std::string path = WriteTestFile(name, SafetensorsBytes(header, ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + rows * kMiB);
  return path;
}

TEST(Memory, OfVerifyAndDiffDoesNotGrowWithTheTensor) {
  const std::string a = WriteZeros("a.safetensors", 1024);
  const std::string b = WriteZeros("b.safetensors", 1024);
  ASSERT_EQ(Tool({"verify", WriteZeros("small.safetensors", 1)}).code, kExitOk);
  const int64_t before = PeakBytes();
  ToolResult result = Tool({"verify", a});
  EXPECT_EQ(result.code, kExitOk) << result.out;
  EXPECT_THAT(result.out, HasSubstr("no fault in 1 tensor, 1 file, 1.0 GiB"));
  result = Tool({"diff", a, b});
  EXPECT_EQ(result.code, kExitOk) << result.out << result.err;
  EXPECT_EQ(result.out, "no difference; 1 tensor compared, 1.0 GiB\n");
  EXPECT_LT(PeakBytes() - before, kMaxBytes);
}

TEST(Memory, OfConvertDoesNotGrowWithTheTensor) {
  const std::string a = WriteZeros("a.safetensors", 256);
  const int64_t before = PeakBytes();
  const ToolResult result = Tool({"convert", a, InFolder("run"), "--dtype=bf16"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 tensor in 1 file, 128.0 MiB"));
  EXPECT_LT(PeakBytes() - before, kMaxBytes);
  std::filesystem::remove_all(InFolder("run"));
}

}  // namespace
}  // namespace shardmesh::checkpoint::tool
