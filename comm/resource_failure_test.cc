// SPDX-License-Identifier: Apache-2.0
//
// What happens when the system has no more threads or memory.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/comm/testing/failing_system.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<float> Ramp(int64_t count, int rank) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = 0.25f * i - 3 * rank;
  return values;
}

void SumOnce(Communicator& world, int64_t count) {
  const std::vector<float> ramp = Ramp(count, world.rank());
  const Tensor x = Tensor::FromValues<float>(world.context(), {count}, ramp);
  world.AllReduce({{x, x}}, ReduceOp::kSum, "sum").Wait();
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A kernel thread that could not be created ended in std::terminate.
TEST(Threads, ThatCannotBeCreatedAreOneClearError) {
  constexpr int kRanks = 3, kThreadsPerRank = 4;
  constexpr int kKernelThreads = kRanks * (kThreadsPerRank - 1);
  for (int left = 0; left <= kKernelThreads + kRanks; ++left) {
    testing::threads_left = left;
    const absl::Status status = RunRanks(kRanks, [](Communicator& world) { SumOnce(world, 11); },
                                         {.threads_per_rank = kThreadsPerRank});
    testing::threads_left = -1;
    if (left == kKernelThreads + kRanks) {
      EXPECT_EQ(status, absl::OkStatus());
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    if (left < kKernelThreads) {
      const int rank = left / (kThreadsPerRank - 1), thread = left % (kThreadsPerRank - 1) + 1;
      EXPECT_THAT(Message(status),
                  AllOf(StartsWith(absl::StrCat("RunRanks: rank ", rank,
                                                " of 3 with threads_per_rank 4: cannot start "
                                                "kernel thread ",
                                                thread, " of 3: ")),
                        HasSubstr("Resource temporarily unavailable")));
    } else {
      EXPECT_THAT(Message(status),
                  AllOf(StartsWith(absl::StrCat("rank ", left - kKernelThreads,
                                                ": cannot start the thread of this rank: ")),
                        HasSubstr("Resource temporarily unavailable")));
    }
  }
  EXPECT_EQ(RunRanks(kRanks, [](Communicator& world) { SumOnce(world, 11); }), absl::OkStatus());
}

TEST(TensorMemory, ThatIsMissingIsAnErrorOnEveryRank) {
  for (const int left : {0, 1, 3}) {
    const absl::Status status = RunRanks(2, [&](Communicator& world) {
      world.Barrier();
      if (world.rank() == 0) testing::blocks_left = left;
      world.Barrier();
      for (int i = 0; i < 5; ++i) SumOnce(world, 1000 << i);
    });
    testing::blocks_left = -1;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("out of memory: cannot allocate"),
                                       AnyOf(StartsWith("rank 0: "), StartsWith("rank 1: "))));
  }
}

// Runs `body` in a child process whose stderr becomes `text`; returns how it ended.
template <typename Body>
int InChild(const Body& body, std::string& text) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    body();
    _exit(0);
  }
  close(ends[1]);
  text.clear();
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, got);
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(SmallAllocation, ThatFailsEndsTheProcessWithOneLine) {
  bool has_survived = false;
  for (int left = 0; !has_survived && left < 500; left += 1 + left / 8) {
    std::string text;
    const int end = InChild(
        [&] {
          const absl::Status status = RunRanks(2, [&](Communicator& world) {
            if (world.rank() == 0) testing::news_left = left;
            const auto group = world.Split(0, 0, "a group whose name needs memory of its own");
            SumOnce(*group, 7);
            world.Barrier();
          });
          testing::news_left = -1;
          if (!status.ok()) _exit(2);
        },
        text);
    has_survived = WIFEXITED(end) && WEXITSTATUS(end) == 0;
    if (has_survived) continue;  // The run allocates less often than that.
    EXPECT_TRUE(WIFSIGNALED(end) && WTERMSIG(end) == SIGABRT) << left << ": " << end;
    // Both ranks may meet it.
    EXPECT_THAT(text, StartsWith("shardmesh: out of memory: operator new found none while RunRanks "
                                 "was running; the process ends here\n"));
  }
  EXPECT_TRUE(has_survived);
}

TEST(SmallAllocation, LeavesAHandlerOfTheProgramAlone) {
  EXPECT_EQ(std::get_new_handler(), nullptr);
  EXPECT_EQ(RunRanks(1, [](Communicator&) { EXPECT_NE(std::get_new_handler(), nullptr); }),
            absl::OkStatus());
  EXPECT_EQ(std::get_new_handler(), nullptr);
  const std::new_handler own = [] { throw std::bad_alloc(); };
  std::set_new_handler(own);
  const absl::Status status = RunRanks(1, [&](Communicator&) {
    EXPECT_EQ(std::get_new_handler(), own);
    throw std::bad_alloc();
  });
  EXPECT_EQ(std::get_new_handler(), own);
  std::set_new_handler(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), StartsWith("rank 0: out of memory"));
}

}  // namespace
}  // namespace shardmesh
