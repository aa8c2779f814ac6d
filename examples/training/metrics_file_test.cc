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
  std::ofstream(path) << Example(0).ToJson() << "\n";
  absl::StatusOr<MetricsFile> file = MetricsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  file->KeepBefore(0);
  file->Append(Example(0));
  file->Append(Example(1));
  // While it is still open for writing.
  EXPECT_EQ(Content(path), absl::StrCat(Example(0).ToJson(), "\n", Example(1).ToJson(), "\n"));
}

// Steps 2 and 3 were trained again after the checkpoint of step 2, and were there twice.
TEST(MetricsFile, GoesOnAfterTheStepsBeforeTheFirst) {
  const std::string path = PathOf("resumed");
  const auto line = [](int64_t step) { return Example(step).ToJson() + "\n"; };
  const std::string cut = line(4).substr(0, 20);
  for (const std::string& end : {line(2) + line(3), line(2) + cut, cut, std::string("other\n")}) {
    std::ofstream(path, std::ios::trunc) << line(0) << line(1) << end;
    absl::StatusOr<MetricsFile> file = MetricsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Content(path), line(0) + line(1) + end);
    file->KeepBefore(2);
    file->Append(Example(2));
    EXPECT_EQ(Content(path), line(0) + line(1) + line(2));
  }
  // As long as there are no lines, there is nothing to keep; and none of a later step.
  std::ofstream(path, std::ios::trunc) << line(5);
  absl::StatusOr<MetricsFile> file = MetricsFile::Open(path);
  file->KeepBefore(2);
  EXPECT_EQ(Content(path), "");
}

TEST(MetricsFile, SaysWhyItCannotBeCreated) {
  const auto message = [](const std::string& path) {
    return std::string(MetricsFile::Open(path).status().message());
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
  absl::StatusOr<MetricsFile> file = MetricsFile::Open("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = Catch([&] { file->Append(Example(0)); });
  EXPECT_EQ(status.message(), "cannot write metrics file '/dev/full': No space left on device");
}

// A half line was left, without a reason.
TEST(MetricsFile, LeavesWholeLinesWhenTheDiskFillsUp) {
  const std::string path = PathOf("metrics");
  absl::StatusOr<MetricsFile> file = MetricsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  file->KeepBefore(0);
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
