// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/metrics_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"

namespace shardmesh::examples {
namespace {

StepMetrics Example(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.peak_bytes = {1000, 1001, 7};
  return metrics;
}

std::string PathOf(const std::string& name) { return absl::StrCat(testing::TempDir(), "/", name); }

std::string Content(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(MetricsFile, HasOneLinePerStepAndReplacesAnOlderFile) {
  const std::string path = PathOf("metrics");
  std::ofstream(path) << "older\n";
  absl::StatusOr<MetricsFile> file = MetricsFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  file->Append(Example(0));
  file->Append(Example(1));
  // While it is still open for writing.
  EXPECT_EQ(Content(path), absl::StrCat(Example(0).ToJson(), "\n", Example(1).ToJson(), "\n"));
}

TEST(MetricsFile, SaysWhyItCannotBeCreated) {
  const auto message = [](const std::string& path) {
    return std::string(MetricsFile::Create(path).status().message());
  };
  EXPECT_EQ(message("/none/metrics"),
            "cannot write metrics file '/none/metrics': No such file or directory");
  EXPECT_EQ(message("/tmp"), "cannot write metrics file '/tmp': Is a directory");
  EXPECT_TRUE(absl::StrContains(message("/none/\x1b[2J\n"), R"('/none/\x1b[2J\n')"));
  const std::string pipe = PathOf("pipe");
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(absl::StrContains(message(pipe), "nobody reads this pipe"));  // Does not wait.
}

TEST(MetricsFile, SaysWhyALineCannotBeWritten) {
  absl::StatusOr<MetricsFile> file = MetricsFile::Create("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = Catch([&] { file->Append(Example(0)); });
  EXPECT_EQ(status.message(), "cannot write metrics file '/dev/full': No space left on device");
}

// A half line was left, without a reason.
TEST(MetricsFile, LeavesWholeLinesWhenTheDiskFillsUp) {
  const std::string path = PathOf("metrics");
  absl::StatusOr<MetricsFile> file = MetricsFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string line = Example(0).ToJson() + "\n";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = 2 * line.size() + 5;  // The third line is written in part.
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  file->Append(Example(0));
  file->Append(Example(1));
  const absl::Status status = Catch([&] { file->Append(Example(2)); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.message(),
            absl::StrCat("cannot write metrics file '", path, "': File too large"));
  EXPECT_EQ(Content(path), absl::StrCat(Example(0).ToJson(), "\n", Example(1).ToJson(), "\n"));
}

}  // namespace
}  // namespace shardmesh::examples
