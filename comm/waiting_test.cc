// SPDX-License-Identifier: Apache-2.0
//
// Waiting ends: polling, stopped processes, collectives that are left open, ranks that never come
// back, and works that outlive the run.
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr absl::Duration kLongTimeout = absl::Minutes(2);

void SleepFor(milliseconds time) { std::this_thread::sleep_for(time); }

Tensor Ramp(Communicator& world, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = 1.5f * i - 2 * world.world_rank();
  return Tensor::FromValues<float>(world.context(), {count}, values);
}

Work PostSum(Communicator& group, std::string_view op, int64_t count = 3) {
  const Tensor x = Ramp(group, count);
  return group.AllReduce({{x, x}}, ReduceOp::kSum, op);
}

// Asks until IsDone says yes; false if that takes longer than `limit`.
bool PollUntilDone(const Work& work, milliseconds limit, milliseconds pause = milliseconds(1)) {
  const Clock::time_point end = Clock::now() + limit;
  while (!work.IsDone()) {
    if (Clock::now() > end) return false;
    SleepFor(pause);
  }
  return true;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- Polling ---------------------------------------------------------------------------------

TEST(Polling, EndsPromptlyWhenAMemberHasReturned) {
  for (const bool returns_before : {false, true}) {
    const absl::Status status = RunRanks(3,
                                         [&](Communicator& world) {
                                           if (world.rank() == 1) {
                                             if (!returns_before) SleepFor(milliseconds(60));
                                             return;
                                           }
                                           if (returns_before) SleepFor(milliseconds(60));
                                           Work work = PostSum(world, "polled");
                                           EXPECT_TRUE(PollUntilDone(work, milliseconds(2000)));
                                           work.Wait();
                                         },
                                         {.timeout = kLongTimeout});
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Message(status),
                AllOf(StartsWith("rank 1 has returned while rank "), HasSubstr("op \"polled\""),
                      ContainsRegex("missing: (0, )?1[;, ]")));
  }
}

TEST(Polling, OfARankThatIsOutsideTheGroupGoesOn) {
  // That rank 2 has left concerns nobody else.
  EXPECT_EQ(RunRanks(3,
                     [](Communicator& world) {
                       const auto pair = world.Split(world.rank() / 2, 0, "pair");
                       if (world.rank() == 2) return;
                       if (world.rank() == 1) SleepFor(milliseconds(60));
                       Work work = PostSum(*pair, "pair");
                       EXPECT_TRUE(PollUntilDone(work, milliseconds(2000)));
                       work.Wait();
                     }),
            absl::OkStatus());
}

TEST(Polling, EndsAtTheTimeOutWhateverThePauses) {
  for (const int pause : {0, 1, 60}) {
    std::atomic<bool> is_late = true;
    const Clock::time_point start = Clock::now();
    const absl::Status status =
        RunRanks(2,
                 [&](Communicator& world) {
                   if (world.rank() == 0) {
                     while (is_late) SleepFor(milliseconds(1));
                     return;
                   }
                   Work work = PostSum(world, "polled");
                   EXPECT_TRUE(PollUntilDone(work, milliseconds(20000), milliseconds(pause)));
                   is_late = false;
                   work.Wait();
                 },
                 {.timeout = absl::Milliseconds(400)});
    EXPECT_GE(Clock::now() - start, milliseconds(400));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Message(status), AllOf(StartsWith("rank 1 waited 400ms in collective 0 of group "
                                                  "\"world\" (ranks 0, 1): all_reduce sum"),
                                       HasSubstr("arrived: 1; missing: 0")));
  }
}

TEST(Polling, EndsInAFailedWorld) {
  const absl::Status status =
      RunRanks(3,
               [](Communicator& world) {
                 if (world.rank() == 0) throw std::runtime_error("boom");
                 Work work = world.rank() == 1 ? PostSum(world, "polled") : Work();
                 EXPECT_TRUE(PollUntilDone(work, milliseconds(2000)));
                 const absl::Status end = Catch([&] { work.Wait(); });
                 EXPECT_THAT(Message(end), StartsWith(world.rank() == 1 ? "rank 0: boom" : ""));
               },
               {.timeout = kLongTimeout});
  EXPECT_THAT(Message(status), StartsWith("rank 0: boom"));
}

TEST(Polling, FindsWhatALateMemberBrings) {
  EXPECT_EQ(RunRanks(2,
                     [](Communicator& world) {
                       if (world.rank() == 0) SleepFor(milliseconds(80));
                       const Tensor x = Ramp(world, 3);
                       Work work = world.AllReduce({{x, x}}, ReduceOp::kSum, "late");
                       EXPECT_TRUE(PollUntilDone(work, milliseconds(5000)));
                       work.Wait();
                       EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{-2, 1, 4}));
                     },
                     {.timeout = absl::Seconds(10)}),
            absl::OkStatus());
}

// ---- A process that is stopped ---------------------------------------------------------------

// Rank 1 arrives after about 300 ms in which the process runs; the time-out is 500 ms.
absl::Status RunWithALateRank(bool polls, const std::function<void()>& started) {
  return RunRanks(2,
                  [&](Communicator& world) {
                    if (world.rank() == 1) {
                      started();
                      for (int i = 0; i < 150; ++i) SleepFor(milliseconds(2));
                    }
                    Work work = PostSum(world, "late");
                    if (polls) {
                      while (!work.IsDone()) SleepFor(milliseconds(1));
                    }
                    work.Wait();
                  },
                  {.timeout = absl::Milliseconds(500)});
}

TEST(StoppedProcess, GoesOnAfterMoreThanTheTimeOut) {
  for (const bool polls : {false, true}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const absl::Status status = RunWithALateRank(polls, [&] {
        if (write(pipe_ends[1], "x", 1) != 1) _exit(3);
      });
      if (!status.ok()) std::cerr << status << "\n";
      _exit(status.ok() ? 0 : 2);
    }
    char byte;
    ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
    SleepFor(milliseconds(60));
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    SleepFor(milliseconds(1200));
    ASSERT_EQ(kill(child, SIGCONT), 0);
    int end = 0;
    ASSERT_EQ(waitpid(child, &end, 0), child);
    EXPECT_TRUE(WIFEXITED(end) && WEXITSTATUS(end) == 0) << "polls: " << polls << ", end " << end;
    close(pipe_ends[0]);
    close(pipe_ends[1]);
  }
}

// ---- Collectives that some ranks never post --------------------------------------------------

TEST(LeftOpen, ACollectiveThatIsDroppedByItsOnlyPosterIsAnError) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    if (world.rank() == 1) PostSum(world, "forgotten");  // Dropped.
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(status),
              AllOf(StartsWith("all ranks have returned, but some never posted collective 0 of "
                               "group \"world\" (ranks 0, 1, 2): all_reduce sum (op "
                               "\"forgotten\"); arrived: 1; missing: 0, 2"),
                    HasSubstr("rank 1: 0 of \"world\" all_reduce sum (op \"forgotten\"), then "
                              "returned")));
}

TEST(LeftOpen, InAGroupThatIsGoneIsAnErrorToo) {
  const absl::Status status = RunRanks(4, [](Communicator& world) {
    for (int round = 0; round < 100; ++round) {  // The world forgets groups that are complete.
      const auto group = world.Split(world.rank() % 2, 0, absl::StrCat("group", round));
      PostSum(*group, "all", 5).Wait();
      if (round == 37 && world.rank() == 3) PostSum(*group, "one");
    }
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(status), HasSubstr("collective 1 of group \"group37\" (ranks 1, 3): "
                                         "all_reduce sum (op \"one\"); arrived: 3; missing: 1"));
}

TEST(LeftOpen, DroppedByAllIsComplete) {
  EXPECT_EQ(RunRanks(3,
                     [](Communicator& world) {
                       PostSum(world, "dropped", 3);
                       PostSum(world, "dropped", 30011);
                     }),
            absl::OkStatus());
}

TEST(LeftOpen, DoesNotHideTheFirstCause) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    if (world.rank() == 1) throw std::runtime_error("boom");
    PostSum(world, "dropped");
  });
  EXPECT_THAT(Message(status), StartsWith("rank 1: boom"));
}

// ---- Buffers that are taken away -------------------------------------------------------------

// The exception of the rank that moved the data left the others without an end.
TEST(ReleasedBuffer, InFlightIsAnErrorOnEveryRank) {
  for (const int64_t count : {3, 300007}) {  // In one part and in several.
    std::vector<std::string> messages(3);
    std::atomic<bool> is_released = false;
    const absl::Status status =
        RunRanks(3,
                 [&](Communicator& world) {
                   const Tensor x = Ramp(world, count);
                   Work work;
                   if (world.rank() == 1) {
                     work = world.AllReduce({{x, x}}, ReduceOp::kSum, "sum");
                     x.storage()->Release("too early");
                     is_released = true;
                   }
                   while (!is_released) SleepFor(milliseconds(1));
                   const absl::Status end = Catch([&] {
                     if (world.rank() != 1) work = world.AllReduce({{x, x}}, ReduceOp::kSum, "sum");
                     work.Wait();
                   });
                   messages[world.rank()] = Message(end);
                   ThrowIfError(end);
                 },
                 {.timeout = kLongTimeout});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    for (const std::string& message : messages) {
      EXPECT_THAT(message, AllOf(StartsWith("moving the data of collective 0 of group \"world\""),
                                 HasSubstr("op \"sum\""), HasSubstr("too early")));
    }
  }
}

// ---- Errors that were called OK --------------------------------------------------------------

TEST(OkError, FailsTheWorldWithItsText) {
  absl::Status status = RunRanks(2, [](Communicator& world) {
    if (world.rank() == 1) throw Error(absl::StatusCode::kOk, "lost");
    PostSum(world, "sum").Wait();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(Message(status), StartsWith("rank 1: lost"));
  status = RunRanks(1, [](Communicator& world) { world.Fail(absl::OkStatus()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(Message(status), StartsWith("rank 0: failed the world with the status OK"));
}

// ---- Ranks that never come back --------------------------------------------------------------

// Rank 1 fails once rank 2 has begun to look at no collective until `is_stuck` is false.
absl::Status RunWithAStuckRank(const std::atomic<bool>& is_stuck, StuckRanks stuck_ranks) {
  std::atomic<bool> has_begun = false;
  return RunRanks(3,
                  [&](Communicator& world) {
                    PostSum(world, "before").Wait();
                    while (world.rank() == 1 && !has_begun) SleepFor(milliseconds(1));
                    if (world.rank() == 1) throw std::runtime_error("boom");
                    if (world.rank() == 2) has_begun = true;
                    while (world.rank() == 2 && is_stuck) SleepFor(milliseconds(1));
                    PostSum(world, "after").Wait();
                  },
                  {.timeout = absl::Milliseconds(200), .stuck_ranks = stuck_ranks});
}

// What is written to stderr while it lives; `on_line` is called once, at the end of the first line.
class StderrLine {
 public:
  explicit StderrLine(std::function<void()> on_line) : stderr_(dup(STDERR_FILENO)) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reader_ = std::thread([this, from = ends[0], on_line = std::move(on_line)] {
      char c = 0;
      while (text_.find('\n') == std::string::npos && read(from, &c, 1) == 1) text_ += c;
      on_line();
      while (read(from, &c, 1) == 1) text_ += c;
      close(from);
    });
  }
  std::string End() {
    dup2(stderr_, STDERR_FILENO);  // Closes the only end that is written.
    close(stderr_);
    reader_.join();
    return text_;
  }

 private:
  int stderr_;
  std::string text_;
  std::thread reader_;
};

TEST(StuckRank, IsNamedWithTheFirstFailureAfterTheTimeOut) {
  std::atomic<bool> is_stuck = true;
  StderrLine report([&] { is_stuck = false; });
  const absl::Status status = RunWithAStuckRank(is_stuck, StuckRanks::kWait);
  const std::string text = report.End();
  EXPECT_THAT(text, AllOf(StartsWith("RunRanks: the world failed more than 200ms ago, but rank 2 "
                                     "has not returned"),
                          HasSubstr("rank 2: 0 of \"world\" all_reduce sum (op \"before\")"),
                          HasSubstr("the first failure: rank 1: boom"), HasSubstr("kAbort")));
  EXPECT_THAT(Message(status), StartsWith("rank 1: boom"));
}

TEST(StuckRank, EndsTheProcessIfAsked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::atomic<bool> is_stuck = true;
  EXPECT_DEATH((void)RunWithAStuckRank(is_stuck, StuckRanks::kAbort),
               "rank 2 has not returned.*the first failure: rank 1: boom.*the process ends here");
}

TEST(StuckRank, ThatNobodyWaitsForIsLeftAlone) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunRanks(2,
                     [](Communicator& world) {
                       if (world.rank() == 1) SleepFor(milliseconds(500));
                     },
                     {.timeout = absl::Milliseconds(100)}),
            absl::OkStatus());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// ---- After the run ---------------------------------------------------------------------------

TEST(AfterTheRun, WorksAndGroupsThrow) {
  std::vector<Work> works(2);
  std::vector<std::unique_ptr<Communicator>> groups(2);
  EXPECT_EQ(RunRanks(2,
                     [&](Communicator& world) {
                       const int r = world.rank();
                       groups[r] = world.Split(0, 0, "kept");
                       works[r] = PostSum(*groups[r], "kept", 40009);
                     }),
            absl::OkStatus());
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(PollUntilDone(works[r], milliseconds(2000)));
    EXPECT_THAT(Message(Catch([&] { works[r].Wait(); })), StartsWith("RunRanks has returned"));
    EXPECT_THAT(Message(Catch([&] { PostSum(*groups[r], "late"); })),
                AllOf(StartsWith("RunRanks has returned"), HasSubstr("op \"late\"")));
    EXPECT_THAT(Message(Catch([&] { groups[r]->Barrier(); })), StartsWith("RunRanks has returned"));
    EXPECT_EQ(groups[r]->context().threads() > 0, true);
  }
}

TEST(AfterTheRun, WorksMayBeDropped) {
  std::vector<Work> works;
  EXPECT_EQ(RunRanks(2,
                     [&](Communicator& world) {
                       if (world.rank() == 1) works.push_back(PostSum(world, "open"));
                     })
                .code(),
            absl::StatusCode::kAborted);
  works.clear();
}

// ---- Messages of large worlds ----------------------------------------------------------------

TEST(Messages, NameAtMostSixteenRanks) {
  const auto note = [&](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 4000u) << status;
    EXPECT_THAT(Message(status), HasSubstr(" more"));
  };
  constexpr int kRanks = 150;
  const RunOptions options = {.timeout = kLongTimeout, .threads_per_rank = 1};
  note(RunRanks(
      kRanks,
      [](Communicator& world) {
        if (world.rank() != kRanks - 1) PostSum(world, "sum").Wait();
      },
      options));
  note(RunRanks(
      kRanks,
      [](Communicator& world) {
        if (world.rank() == 3) PostSum(world, "sum");
      },
      options));
  const absl::Status thrown = RunRanks(
      kRanks,
      [](Communicator& world) {
        if (world.rank() == kRanks - 2) throw std::runtime_error("boom");
        PostSum(world, "sum").Wait();
      },
      options);
  EXPECT_THAT(Message(thrown), StartsWith("rank 148: boom"));
  note(thrown);
}

TEST(Messages, OfALargeWorldSayWhatTheMissingRankDidLast) {
  const absl::Status status =
      RunRanks(40,
               [](Communicator& world) {
                 PostSum(world, "first").Wait();
                 if (world.rank() == 37)
                   return SleepFor(milliseconds(200));  // The others are waiting.
                 PostSum(world, "second").Wait();
               },
               {.timeout = kLongTimeout, .threads_per_rank = 1});
  EXPECT_THAT(Message(status),
              HasSubstr("; last posted: rank 37: 0 of \"world\" all_reduce sum (op \"first\"), "
                        "then returned; rank 0: 0 of"));
}

}  // namespace
}  // namespace shardmesh
