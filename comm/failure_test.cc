// SPDX-License-Identifier: Apache-2.0
//
// Nothing waits for ever: what happens on every rank when one of them fails, in whatever way.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/comm/testing/sample_tensors.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

// How soon every rank must have the error, whatever the time-out. Sanitizers slow everything down.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::milliseconds kPrompt(2000);
#else
constexpr std::chrono::milliseconds kPrompt(200);
#endif
constexpr absl::Duration kLongTimeout = absl::Minutes(2);

Tensor Vector(Communicator& world, int64_t count, DType dtype = DType::kF32) {
  const Tensor x = Tensor::Empty(world.context(), {count}, dtype);
  if (count > 0) std::memset(x.mutable_raw_data(), 0, x.Bytes());
  return x;
}

void Sum(Communicator& group, int64_t count = 3, std::string_view op = "sum") {
  const Tensor x = Vector(group, count);
  group.AllReduce({{x, x}}, ReduceOp::kSum, op).Wait();
}

AllGatherItem GatherOf(Communicator& group, std::span<const int64_t> counts) {
  AllGatherItem item;
  for (const int64_t count : counts) item.targets.push_back(Vector(group, count));
  item.source = Vector(group, counts[group.rank()]);
  return item;
}

// How the ranks of a run ended.
struct Ending {
  absl::Status status;                // Of RunRanks.
  std::vector<std::string> messages;  // What left fn on each rank; "" if nothing did.
  std::vector<absl::StatusCode> codes;
  std::vector<Clock::duration> delays;  // From the cause, as marked, or the start.
};

using Body = absl::FunctionRef<void(Communicator& world, const std::function<void()>& mark_cause)>;

Ending RunToEnd(int ranks, const RunOptions& options, Body body) {
  Ending ending;
  ending.messages.resize(ranks);
  ending.codes.resize(ranks);
  std::vector<Clock::time_point> ends(ranks);
  std::mutex mutex;
  Clock::time_point cause = Clock::now();
  const auto mark_cause = [&] {
    const std::lock_guard lock(mutex);
    cause = Clock::now();
  };
  ending.status = RunRanks(
      ranks,
      [&](Communicator& world) {
        const int r = world.rank();
        try {
          body(world, mark_cause);
        } catch (...) {
          const absl::Status status = StatusOf(std::current_exception());
          ending.messages[r] = std::string(status.message());
          ending.codes[r] = status.code();
          ends[r] = Clock::now();
          throw;
        }
        ends[r] = Clock::now();
      },
      options);
  for (const Clock::time_point end : ends) ending.delays.push_back(end - cause);
  return ending;
}

// ---- A rank that throws ---------------------------------------------------------------------

TEST(ThrowingRank, EndsEveryRankPromptlyWithTheFirstCause) {
  const Ending ending =
      RunToEnd(4, {.timeout = kLongTimeout}, [](Communicator& world, const auto& mark_cause) {
        for (int step = 0; step < 3; ++step) Sum(world);
        if (world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // The others are asleep.
          mark_cause();
          Throw(absl::StatusCode::kDataLoss, "boom");
        }
        Sum(world, 3, "gradients");
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(ending.status.message()), StartsWith("rank 2: boom"));
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(ending.messages[r],
                AllOf(StartsWith("rank 2: boom"),
                      HasSubstr("collective 3 of group \"world\" (ranks 0, 1, 2, 3)"),
                      HasSubstr("all_reduce sum (op \"gradients\")"), HasSubstr("missing: 2")));
    EXPECT_EQ(ending.codes[r], absl::StatusCode::kDataLoss);
    EXPECT_LT(ending.delays[r], kPrompt);
  }
  EXPECT_THAT(std::string(ending.status.message()), HasSubstr("op \"gradients\""));
}

TEST(ThrowingRank, EndsRanksOfOtherGroupsAndThoseThatPostLater) {
  const Ending ending =
      RunToEnd(5, {.timeout = kLongTimeout}, [](Communicator& world, const auto& mark_cause) {
        const auto pair = world.Split(world.rank() / 2, 0, "pair");
        if (world.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          mark_cause();
          throw std::runtime_error("boom");
        }
        // Rank 1 waits for rank 0; 2 and 3 go on together; 4 is alone in its group.
        while (true) {
          Sum(*pair);
          if (pair->size() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kInternal);
  for (int r = 1; r < 5; ++r) {
    EXPECT_THAT(ending.messages[r], StartsWith("rank 0: boom")) << r;
    EXPECT_LT(ending.delays[r], kPrompt) << r;
  }
}

TEST(ThrowingRank, MayThrowWhatIsNoException) {
  EXPECT_EQ(RunRanks(2,
                     [](Communicator& world) {
                       if (world.rank() == 1) throw 42;
                       Sum(world);
                     })
                .code(),
            absl::StatusCode::kInternal);
}

TEST(ThrowingRank, LeavesNoThreadInAPeersMemory) {
  // Large collectives under way while a rank goes; address and thread sanitizer look on.
  for (int round = 0; round < 20; ++round) {
    const absl::Status status = RunRanks(4, [&](Communicator& world) {
      for (int step = 0;; ++step) {
        const std::vector<int64_t> counts(4, 20011);
        Work gather = world.AllGather({GatherOf(world, counts)});
        if (world.rank() == round % 4 && step == round / 2) throw std::runtime_error("boom");
        const Tensor x = Vector(world, 50021);
        Work sum = world.AllReduce({{x, x}}, ReduceOp::kSum);
        gather.Wait();
        sum.Wait();
      }
    });
    EXPECT_THAT(std::string(status.message()),
                StartsWith(absl::StrCat("rank ", round % 4, ": boom")));
  }
}

TEST(FailedWorld, RefusesEveryLaterCollectiveAtOnce) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    const auto alone = world.Split(world.rank(), 0, "alone");
    if (world.rank() == 1) throw std::runtime_error("boom");
    EXPECT_THROW(Sum(world), Error);
    for (int i = 0; i < 3; ++i) {
      const absl::Status later = Catch([&] { Sum(world, 3, "later"); });
      EXPECT_THAT(std::string(later.message()),
                  AllOf(StartsWith("rank 1: boom"), HasSubstr("op \"later\"")));
    }
    EXPECT_THROW(Sum(*alone), Error);
    EXPECT_THROW(world.Barrier(), Error);
    EXPECT_THROW(world.Split(0, 0, "x"), Error);
  });
  EXPECT_THAT(std::string(status.message()), StartsWith("rank 1: boom"));
}

TEST(FailedWorld, CanBeFailedByARankThatGoesOn) {
  const Ending ending =
      RunToEnd(3, {.timeout = kLongTimeout}, [](Communicator& world, const auto&) {
        if (world.rank() == 0) world.Fail(absl::CancelledError("interrupted"));
        Sum(world);
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kCancelled);
  for (int r = 0; r < 3; ++r) EXPECT_THAT(ending.messages[r], StartsWith("rank 0: interrupted"));
}

// ---- Collectives that do not match ----------------------------------------------------------

struct MismatchCase {
  std::string name;
  std::function<void(Communicator&)> on_rank_0, on_others;
  std::string expected;
};

std::vector<MismatchCase> MismatchCases() {
  const auto gather = [](std::vector<int64_t> counts, int items = 1) {
    return [counts, items](Communicator& world) {
      world.AllGather(std::vector<AllGatherItem>(items, GatherOf(world, counts)), "g").Wait();
    };
  };
  const auto reduce = [](int64_t count, DType dtype, ReduceOp op) {
    return [=](Communicator& world) {
      const Tensor x = Vector(world, count, dtype);
      world.AllReduce({{x, x}}, op, "r").Wait();
    };
  };
  const auto broadcast = [](int root, int64_t count) {
    return [=](Communicator& world) { world.Broadcast({Vector(world, count)}, root, "b").Wait(); };
  };
  const auto exchange = [](int64_t sent_to_1, DType dtype = DType::kF32) {
    return [=](Communicator& world) {
      AllToAllItem item;
      for (int m = 0; m < 3; ++m) {
        item.sends.push_back(Vector(world, world.rank() == 0 && m == 1 ? sent_to_1 : 2, dtype));
        item.receives.push_back(Vector(world, 2, dtype));
      }
      world.AllToAll({item}, "x").Wait();
    };
  };
  const auto scatter = [](int64_t third) {
    return [=](Communicator& world) {
      ReduceScatterItem item = {{Vector(world, 1), Vector(world, 2), Vector(world, third)},
                                Tensor()};
      item.target = Vector(world, item.sources[world.rank()].NumElements());
      world.ReduceScatter({item}, ReduceOp::kSum, "s").Wait();
    };
  };
  const auto sum = reduce(3, DType::kF32, ReduceOp::kSum);
  return {
      {"kind", gather({1, 2, 3}), sum, "all_gather (op \"g\")"},
      {"barrier", [](Communicator& world) { world.Barrier(); }, sum, "barrier"},
      {"split", [](Communicator& world) { world.Split(0, 0, "s"); }, sum, "split"},
      {"counts", sum, reduce(6, DType::kF32, ReduceOp::kSum), "f32[6]"},
      {"dtype", sum, reduce(3, DType::kBF16, ReduceOp::kSum), "bf16[3]"},
      {"reduction", sum, reduce(3, DType::kF32, ReduceOp::kMax), "all_reduce max"},
      // Each rank's own part agrees with itself: only the whole vector of counts shows the fault.
      {"count vector of a gather", gather({1, 2, 3}), gather({1, 2, 4}), "targets[2]"},
      {"count vector of a scatter", scatter(3), scatter(4), "sources[2]"},
      {"batch", gather({1, 2, 3}, 1), gather({1, 2, 3}, 2), "a batch of"},
      {"root", broadcast(0, 3), broadcast(1, 3), "root"},
      {"broadcast count", broadcast(0, 3), broadcast(0, 5), "f32[5]"},
      {"pair of an all-to-all", exchange(5), exchange(2),
       "member 0 sends f32[5] to member 1, which expects f32[2]"},
      {"all-to-all dtype", exchange(2, DType::kI32), exchange(2), "i32[2]"},
      {"names of a split", [](Communicator& world) { world.Split(0, 0, "tp"); },
       [](Communicator& world) { world.Split(0, 0, "dp"); }, "\"tp\""},
  };
}

TEST(Mismatch, EndsEveryRankPromptlyAndSaysWhatDiffers) {
  for (const MismatchCase& mismatch : MismatchCases()) {
    const Ending ending =
        RunToEnd(3, {.timeout = kLongTimeout}, [&](Communicator& world, const auto&) {
          Sum(world);
          (world.rank() == 0 ? mismatch.on_rank_0 : mismatch.on_others)(world);
        });
    EXPECT_EQ(ending.status.code(), absl::StatusCode::kInvalidArgument) << mismatch.name;
    for (int r = 0; r < 3; ++r) {
      EXPECT_THAT(ending.messages[r],
                  AllOf(StartsWith("mismatch: "), HasSubstr(mismatch.expected),
                        HasSubstr("collective 1 of group \"world\" (ranks 0, 1, 2)"),
                        HasSubstr("last posted")))
          << mismatch.name;
      EXPECT_EQ(ending.codes[r], absl::StatusCode::kInvalidArgument);
      EXPECT_LT(ending.delays[r], kPrompt) << mismatch.name;
    }
  }
}

TEST(Mismatch, DiffersInTheOwnerThatTheOpNames) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    Sum(world, 3, world.rank() == 0 ? "reduce of a" : "reduce of b");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("op \"reduce of a\""), HasSubstr("op \"reduce of b\"")));
}

TEST(Mismatch, DiffersInOpNameAloneIsNone) {
  EXPECT_EQ(
      RunRanks(3, [](Communicator& world) { Sum(world, 3, absl::StrCat("rank ", world.rank())); }),
      absl::OkStatus());
}

// ---- A rank that is not there ---------------------------------------------------------------

TEST(MissingRank, ThatReturnedIsNoticedPromptly) {
  const Ending ending =
      RunToEnd(4, {.timeout = kLongTimeout}, [](Communicator& world, const auto& mark_cause) {
        if (world.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          mark_cause();
          return;
        }
        Sum(world, 3, "lost");
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kAborted);
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(ending.messages[r], AllOf(StartsWith("rank 3 has returned while rank "),
                                          HasSubstr("op \"lost\""), HasSubstr("missing: 3")));
    EXPECT_LT(ending.delays[r], kPrompt);
  }
}

TEST(MissingRank, ThatReturnedLongBeforeIsNoticedPromptly) {
  const Ending ending =
      RunToEnd(2, {.timeout = kLongTimeout}, [](Communicator& world, const auto& mark_cause) {
        if (world.rank() == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        mark_cause();
        Sum(world);
      });
  EXPECT_THAT(std::string(ending.status.message()),
              StartsWith("rank 0 has returned while rank 1 waits in collective 0"));
  EXPECT_LT(ending.delays[1], kPrompt);
}

TEST(MissingRank, ThatSleepsEndsTheOthersWithinTwiceTheTimeOut) {
  std::atomic<bool> sleep_on = true;
  std::atomic<int> ended = 0;
  const absl::Duration timeout = absl::Milliseconds(800);
  const Clock::time_point start = Clock::now();
  const Ending ending = RunToEnd(4, {.timeout = timeout}, [&](Communicator& world, const auto&) {
    Sum(world, 3, "before");
    if (world.rank() == 1) {
      while (sleep_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Sum(world, 3, "late");
    }
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Clock::time_point begin = Clock::now();
    try {
      Sum(world, 3, "awaited");
    } catch (const Error&) {
      const auto waited = Clock::now() - begin;
      EXPECT_LT(waited, absl::ToChronoMilliseconds(2 * timeout));
      if (++ended == 3) sleep_on = false;  // RunRanks waits for every thread.
      throw;
    }
  });
  EXPECT_GE(Clock::now() - start, absl::ToChronoMilliseconds(timeout));  // And not before.
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kDeadlineExceeded);
  for (int r = 0; r < 4; ++r) {
    EXPECT_THAT(ending.messages[r],
                AllOf(HasSubstr("waited 800ms in collective 1 of group \"world\" (ranks 0, 1, 2, "
                                "3): all_reduce sum"),
                      HasSubstr("op \"awaited\""), HasSubstr("arrived: 0, 2, 3; missing: 1"),
                      HasSubstr("rank 1: 0 of \"world\" all_reduce sum (op \"before\")")))
        << r;
  }
}

// Elsewhere the groups of a mesh had a time-out of their own and blocked for its half hour.
TEST(MissingRank, TimesOutInAGroupAsInTheWorld) {
  std::atomic<bool> sleep_on = true;
  const Ending ending =
      RunToEnd(4, {.timeout = absl::Milliseconds(800)}, [&](Communicator& world, const auto&) {
        const auto dp = world.Split(world.rank() % 2, 0, "dp");
        const auto tp = world.Split(world.rank() / 2, 0, "tp");
        EXPECT_EQ(tp->timeout(), absl::Milliseconds(800));
        if (world.rank() == 3) {
          while (sleep_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        if (world.rank() != 2) {  // Wait for the failure itself.
          while (true) Sum(*tp);
        }
        const Clock::time_point begin = Clock::now();
        const absl::Status status = Catch([&] { Sum(*tp); });
        EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(1600));
        EXPECT_THAT(std::string(status.message()), HasSubstr("group \"tp\" (ranks 2, 3)"));
        sleep_on = false;
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kDeadlineExceeded);
}

// ---- Diverging order ------------------------------------------------------------------------

TEST(Deadlock, OfTwoGroupsInOppositeOrderIsReportedAtOnceWithBothSequences) {
  for (const bool synchronous : {false, true}) {
    const RunOptions options = {.timeout = kLongTimeout, .synchronous = synchronous};
    const Ending ending = RunToEnd(2, options, [&](Communicator& world, const auto&) {
      const auto fsdp = world.Split(0, 0, "fsdp");
      const auto tp = world.Split(0, 0, "tp");
      Communicator& first = world.rank() == 0 ? *fsdp : *tp;
      Communicator& second = world.rank() == 0 ? *tp : *fsdp;
      const Tensor x = Vector(world, 3);
      const Tensor y = Vector(world, 3);
      Work one = first.AllReduce({{x, x}}, ReduceOp::kSum, "one");
      if (!synchronous) one.Wait();
      second.AllReduce({{y, y}}, ReduceOp::kSum, "two").Wait();
    });
    EXPECT_EQ(ending.status.code(), absl::StatusCode::kAborted);
    for (int r = 0; r < 2; ++r) {
      EXPECT_THAT(
          ending.messages[r],
          AllOf(StartsWith("deadlock"), HasSubstr("collective 0 of group \"fsdp\" (ranks 0, 1)"),
                HasSubstr("collective 0 of group \"tp\" (ranks 0, 1)"),
                HasSubstr("last posted: rank 0: 0 of \"world\" split"),
                HasSubstr("0 of \"fsdp\" all_reduce sum (op \"one\"); rank 1:")));
      EXPECT_LT(ending.delays[r], kPrompt);
    }
  }
}

TEST(Deadlock, OfARingOfGroupsIsReportedWhileAnotherRankIsBusy) {
  std::atomic<bool> is_busy = true;
  const Ending ending =
      RunToEnd(4, {.timeout = kLongTimeout}, [&](Communicator& world, const auto& mark_cause) {
        const int r = world.rank();
        // Pairs {0,1}, {1,2}, {2,0}; each rank begins with the one to its right.
        std::unique_ptr<Communicator> pairs[3];
        for (int i = 0; i < 3; ++i)
          pairs[i] = world.Split(r == i || r == (i + 1) % 3 ? 0 : -1, 0, absl::StrCat("pair", i));
        if (r == 3) {
          while (is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        mark_cause();
        try {
          Sum(*pairs[r]);
          Sum(*pairs[(r + 2) % 3]);
        } catch (const Error&) {
          is_busy = false;
          throw;
        }
      });
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kAborted);
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(ending.messages[r], AllOf(StartsWith("deadlock"), HasSubstr("pair0"),
                                          HasSubstr("pair1"), HasSubstr("pair2")));
    EXPECT_LT(ending.delays[r], kPrompt);
  }
}

// ---- Going on -------------------------------------------------------------------------------

TEST(CaughtException, OnAllRanksAtTheSamePointEndsNothing) {
  EXPECT_EQ(RunRanks(4,
                     [](Communicator& world) {
                       for (int step = 0; step < 8; ++step) {
                         try {
                           const std::vector<int64_t> counts(4, 30011);
                           // Posted everywhere before any rank unwinds, or posted by some after
                           // others have dropped it.
                           Work gather = world.AllGather({GatherOf(world, counts)});
                           if (world.rank() == step % 4)
                             std::this_thread::sleep_for(std::chrono::milliseconds(2));
                           const Tensor x = Vector(world, 5);
                           Work sum = world.AllReduce({{x, x}}, ReduceOp::kSum);
                           throw std::runtime_error("bad batch");
                         } catch (const std::runtime_error&) {
                         }
                         const float values[] = {1.0f + world.rank()};
                         const Tensor x = Tensor::FromValues<float>(world.context(), {1}, values);
                         world.AllReduce({{x, x}}, ReduceOp::kSum).Wait();
                         EXPECT_EQ(x.Item(), 10.0);
                       }
                       // Nothing is left behind.
                       world.Barrier();
                       EXPECT_EQ(world.context().allocator()->total().bytes, 0);
                     }),
            absl::OkStatus());
}

TEST(CaughtException, OfBadOperandsIsThrownBeforeAnythingIsPosted) {
  EXPECT_EQ(RunRanks(2,
                     [](Communicator& world) {
                       EXPECT_THROW(
                           world.AllReduce({{Vector(world, 3), Vector(world, 4)}}, ReduceOp::kSum),
                           Error);
                       if (world.rank() == 0) {
                         EXPECT_THROW(world.Broadcast({Vector(world, 1)}, 2), Error);
                       }
                       Sum(world);
                     }),
            absl::OkStatus());
}

// ---- RunRanks itself ------------------------------------------------------------------------

TEST(RunRanks, RefusesOptionsThatMakeNoSense) {
  const auto nothing = [](Communicator&) { FAIL(); };
  EXPECT_EQ(RunRanks(0, nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunRanks(-3, nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunRanks(std::numeric_limits<int>::max(), nothing).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunRanks(1, nothing, {.timeout = absl::ZeroDuration()}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunRanks(1, nothing, {.timeout = absl::InfiniteDuration()}).code(),
            absl::StatusCode::kInvalidArgument);
  for (const int threads : {-1, 4097, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(RunRanks(1, nothing, {.threads_per_rank = threads}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(RunRanks, GivesEachRankItsContextAndShareOfTheCores) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const int ranks : {1, 2, 3, 8}) {
    std::vector<ExecutionContext*> contexts(ranks);
    EXPECT_EQ(RunRanks(ranks,
                       [&](Communicator& world) {
                         contexts[world.rank()] = &world.context();
                         EXPECT_EQ(world.context().threads(), std::max(1, cores / ranks));
                         EXPECT_EQ(world.size(), ranks);
                         EXPECT_EQ(world.name(), "world");
                         world.Barrier();
                       }),
              absl::OkStatus());
    std::sort(contexts.begin(), contexts.end());
    EXPECT_EQ(std::unique(contexts.begin(), contexts.end()), contexts.end());
  }
  EXPECT_EQ(RunRanks(2, [](Communicator& world) { EXPECT_EQ(world.context().threads(), 3); },
                     {.threads_per_rank = 3}),
            absl::OkStatus());
}

TEST(RunRanks, DestroysLocalsWhileTheCommunicatorLives) {
  struct UsesCommunicator {
    Communicator* world = nullptr;
    ~UsesCommunicator() {
      if (world == nullptr) return;
      EXPECT_EQ(world->name(), "world");
    }
  };
  EXPECT_EQ(
      RunRanks(2,
               [](Communicator& world) { world.locals().Get<UsesCommunicator>().world = &world; }),
      absl::OkStatus());
}

TEST(RunRanks, ManyWorldsThatFailAtRandomAllEnd) {
  for (int round = 0; round < 60; ++round) {
    const int ranks = 2 + round % 6;
    const absl::Status status =
        RunRanks(ranks,
                 [&](Communicator& world) {
                   const auto group = world.Split(world.rank() % 2, 0, "group");
                   for (int step = 0; step < 40; ++step) {
                     const uint64_t bits = testing::Mix(round, 64 * step + world.rank());
                     if (bits % 61 == 0) Throw(absl::StatusCode::kDataLoss, "unlucky");
                     if (bits % 67 == 1) return;
                     if (bits % 7 == 0)
                       std::this_thread::sleep_for(std::chrono::microseconds(bits % 300));
                     Work work;
                     const Tensor x = Vector(world, bits % 5 == 0 && step % 9 == 0 ? 9 : 8);
                     work = (step % 3 == 0 ? world : *group).AllReduce({{x, x}}, ReduceOp::kSum);
                     if (bits % 3 != 0) work.Wait();
                   }
                 },
                 {.timeout = kLongTimeout});
    EXPECT_THAT(status.code(),
                AnyOf(absl::StatusCode::kOk, absl::StatusCode::kDataLoss,
                      absl::StatusCode::kAborted, absl::StatusCode::kInvalidArgument))
        << status;
  }
}

}  // namespace
}  // namespace shardmesh
