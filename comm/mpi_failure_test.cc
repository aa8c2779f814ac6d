// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong between processes and is agreed upon: every rank gets an error that names the
// first cause, in time, and the same processes run a healthy world afterwards. Each test runs under
// mpirun. Processes that die are in mpi_death_test.sh.
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/mpi_world.h"
#include "shardmesh/comm/testing/sample_tensors.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Matcher;

using Clock = std::chrono::steady_clock;

Tensor Numbers(Communicator& world, int64_t count, DType dtype = DType::kF32) {
  const Tensor x = Tensor::Empty(world.context(), {count}, DType::kF32);
  testing::FillWithSamples<float>(x, static_cast<uint64_t>(world.rank()));
  return dtype == DType::kF32 ? x : Tensor::Empty(world.context(), {count}, dtype);
}

Work AllReduce(Communicator& world, int64_t count, DType dtype = DType::kF32,
               std::string_view op = "sum") {
  const Tensor x = Numbers(world, count, dtype);
  return world.AllReduce({{x, x}}, ReduceOp::kSum, op);
}

// That `fn` fails on every rank with a message that fits, within `limit`, and that the processes
// are as good as new.
void ExpectFailure(absl::FunctionRef<void(Communicator&)> fn, const Matcher<std::string>& message,
                   const RunOptions& options = {},
                   std::chrono::milliseconds limit = std::chrono::milliseconds(1000)) {
  const Clock::time_point begin = Clock::now();
  const absl::Status status = RunMpi(fn, options);
  EXPECT_LT(Clock::now() - begin, limit) << status;
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), message);
  EXPECT_EQ(RunMpi([](Communicator& world) {
              for (const int64_t count : {3, 30011}) AllReduce(world, count).Wait();
              world.Barrier();
            }),
            absl::OkStatus());
}

TEST(Failure, AThrowReachesAllRanks) {
  ExpectFailure(
      [](Communicator& world) {
        if (world.rank() == 1) throw std::runtime_error("no more coffee");
        AllReduce(world, 5).Wait();
        FAIL() << "the collective lacks rank 1";
      },
      HasSubstr("rank 1: no more coffee"));
}

TEST(Failure, AThrowReachesRanksThatPostLater) {
  ExpectFailure(
      [](Communicator& world) {
        if (world.rank() == 0) throw std::runtime_error("early");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        for (int i = 0; i < 1000; ++i) AllReduce(world, 70'000).Wait();
      },
      HasSubstr("rank 0: early"));
}

TEST(Failure, AThrowAmidTransfersLeavesNothingBehind) {
  ExpectFailure(
      [](Communicator& world) {
        std::vector<Work> works;
        for (int i = 0; i < 5; ++i) works.push_back(AllReduce(world, 1 << 20));
        if (world.rank() == 1) throw std::runtime_error("amid transfers");
        for (Work& work : works) work.Wait();
        AllReduce(world, 3).Wait();
      },
      HasSubstr("rank 1: amid transfers"), {}, std::chrono::milliseconds(3000));
}

TEST(Failure, ACaughtExceptionIsNone) {
  EXPECT_EQ(
      RunMpi([](Communicator& world) {
        EXPECT_THAT(
            std::string(Catch([&] {
                          world.AllReduce({{Numbers(world, 3), Numbers(world, 4)}}, ReduceOp::kSum);
                        }).message()),
            HasSubstr("expected f32[3]"));
        AllReduce(world, 5).Wait();
      }),
      absl::OkStatus());
}

TEST(Failure, WhoReturnsEarlyIsNamed) {
  ExpectFailure(
      [](Communicator& world) {
        if (world.rank() == 1) return;
        AllReduce(world, 5, DType::kF32, "loss").Wait();
      },
      AllOf(HasSubstr("rank 1 has returned while rank"),
            HasSubstr("all_reduce sum (op \"loss\")")));
}

TEST(Failure, WhatSomeNeverPostedIsNamed) {
  ExpectFailure(
      [](Communicator& world) {
        if (world.rank() == 0) AllReduce(world, 5, DType::kF32, "forgotten");
      },
      HasSubstr("never posted"));
}

TEST(Mismatch, OfTheKind) {
  ExpectFailure(
      [](Communicator& world) {
        if (world.rank() == 1) {
          world.Barrier("mine");
        } else {
          AllReduce(world, 5).Wait();
        }
      },
      AllOf(HasSubstr("mismatch"), HasSubstr("rank 1 posted barrier (op \"mine\")"),
            HasSubstr("posted all_reduce sum (op \"sum\")")));
}

TEST(Mismatch, OfSizesLittleAndLarge) {
  for (const int64_t count : {5, 500'000}) {
    ExpectFailure([&](Communicator& world) { AllReduce(world, count + world.rank() % 2).Wait(); },
                  AllOf(HasSubstr("mismatch"), HasSubstr("f32[5"), HasSubstr("source")));
  }
}

TEST(Mismatch, OfTheDType) {
  ExpectFailure(
      [](Communicator& world) {
        AllReduce(world, 5, world.rank() == 1 ? DType::kI32 : DType::kF32).Wait();
      },
      AllOf(HasSubstr("f32[5]"), HasSubstr("i32[5]"), HasSubstr("(item 0, source)")));
}

TEST(Mismatch, OfTheReductionAndTheOwner) {
  ExpectFailure(
      [](Communicator& world) {
        const Tensor x = Numbers(world, 5);
        world.AllReduce({{x, x}}, world.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum).Wait();
      },
      AnyOf(HasSubstr("all_reduce sum against all_reduce max"),
            HasSubstr("all_reduce max against all_reduce sum")));
  ExpectFailure(
      [](Communicator& world) {
        AllReduce(world, 5, DType::kF32, world.rank() == 1 ? "grads of b" : "grads of a").Wait();
      },
      AllOf(HasSubstr("grads of a"), HasSubstr("grads of b")));
}

TEST(Mismatch, OfOnePairOfAnAllToAll) {
  ExpectFailure(
      [](Communicator& world) {
        AllToAllItem item;
        for (int m = 0; m < world.size(); ++m) {
          const bool is_wrong = world.rank() == 0 && m == 1;
          item.sends.push_back(Numbers(world, is_wrong ? 4 : 3));
          item.receives.push_back(Numbers(world, 3));
        }
        world.AllToAll({item}).Wait();
      },
      AllOf(HasSubstr("member 0 sends f32[4] to member 1"), HasSubstr("expects f32[3]")));
}

TEST(Mismatch, OfTheRootOfABroadcast) {
  ExpectFailure(
      [](Communicator& world) {
        world.Broadcast({Numbers(world, 5)}, world.rank() == 1 ? 1 : 0).Wait();
      },
      HasSubstr("root"));
}

TEST(Mismatch, OfNamesOfASplit) {
  ExpectFailure([](Communicator& world) { world.Split(0, 0, world.rank() == 1 ? "tp" : "dp"); },
                AllOf(HasSubstr("\"tp\""), HasSubstr("\"dp\"")));
}

TEST(TimeOut, NamesWhoIsMissing) {
  RunOptions options;
  options.timeout = absl::Milliseconds(500);
  ExpectFailure(
      [](Communicator& world) {
        AllReduce(world, 5).Wait();
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        } else {
          AllReduce(world, 7, DType::kF32, "lonely").Wait();
        }
      },
      AllOf(HasSubstr("waited 500ms"), HasSubstr("lonely"), HasSubstr("missing: 1")), options,
      std::chrono::milliseconds(3000));
}

TEST(TimeOut, HoldsForPollsAndForGroupsInAnotherOrder) {
  RunOptions options;
  options.timeout = absl::Milliseconds(500);
  ExpectFailure(
      [](Communicator& world) {
        const auto a = world.Split(0, world.rank(), "a"), b = world.Split(0, world.rank(), "b");
        Communicator& first = world.rank() == 1 ? *b : *a;
        Work work = AllReduce(first, 5);
        while (!work.IsDone()) std::this_thread::yield();
        work.Wait();
        AllReduce(world.rank() == 1 ? *a : *b, 5).Wait();
      },
      AnyOf(HasSubstr("of group \"a\""), HasSubstr("of group \"b\"")), options,
      std::chrono::milliseconds(3000));
}

TEST(Drop, AWorkThatOutlivesItsRunTakesNothingFromTheNext) {
  Work work;
  ExpectFailure(
      [&](Communicator& world) {
        work = AllReduce(world, 400'000);
        if (world.rank() == 0) AllReduce(world, 5, DType::kF32, "forgotten").Wait();
      },
      HasSubstr("has returned while rank 0"));
  EXPECT_EQ(RunMpi([&](Communicator& world) {
              for (int i = 0; i < 100; ++i) {
                (void)work.IsDone();
                AllReduce(world, 5 + 5000 * (i % 2)).Wait();
              }
              EXPECT_FALSE(Catch([&] { work.Wait(); }).ok());
              work = Work();
              AllReduce(world, 5).Wait();
            }),
            absl::OkStatus());
}

TEST(Drop, AWorkThatNobodyWaitsForChangesNothingForOthers) {
  EXPECT_EQ(RunMpi([](Communicator& world) {
              for (const int64_t count : {5, 300'001}) {
                const Tensor x = Tensor::Empty(world.context(), {count}, DType::kF32);
                testing::FillWithSamples<float>(x, 1);
                const Tensor sum = Tensor::Empty(world.context(), {count}, DType::kF32);
                const std::vector<float> values = x.ToVector<float>();
                // Rank 1 has dropped its work when the others post.
                if (world.rank() != 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                Work work = world.AllReduce({{x, sum}}, ReduceOp::kSum);
                if (world.rank() == 1) {
                  work = Work();
                  testing::FillWithSamples<float>(x, 99);  // Is its owner's again.
                  testing::FillWithSamples<float>(sum, 98);
                }
                work.Wait();
                world.Barrier();
                const Tensor mine = Tensor::Empty(world.context(), {count}, DType::kF32);
                testing::FillWithSamples<float>(mine, 98);
                if (world.rank() == 1) {
                  EXPECT_EQ(sum.ToVector<float>(), mine.ToVector<float>());
                } else {
                  const std::vector<float> sums = sum.ToVector<float>();
                  int64_t wrong = 0;
                  for (int64_t i = 0; i < count; ++i) {
                    float expected = values[i];  // One after the other, as ranks are added.
                    for (int m = 1; m < world.size(); ++m) expected += values[i];
                    wrong += sums[i] == expected ? 0 : 1;
                  }
                  EXPECT_EQ(wrong, 0) << count;
                }
              }
            }),
            absl::OkStatus());
}

TEST(Exhaustion, SmallCollectivesNeitherLeakNorSlowDown) {
  EXPECT_EQ(RunMpi([](Communicator& world) {
              const Tensor x = Numbers(world, 3);
              const auto run = [&](int count) {
                const Clock::time_point begin = Clock::now();
                for (int i = 0; i < count; ++i) world.AllReduce({{x, x}}, ReduceOp::kMax).Wait();
                return Clock::now() - begin;
              };
              run(2000);
              const int64_t bytes = world.context().allocator()->total().bytes;
              const auto first = run(5000);
              const auto last = run(5000);
              EXPECT_LT(last, 20 * first + std::chrono::seconds(1));  // Others use the machine too.
              EXPECT_EQ(world.context().allocator()->total().bytes, bytes);
            }),
            absl::OkStatus());
}

}  // namespace
}  // namespace shardmesh
