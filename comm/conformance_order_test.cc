// SPDX-License-Identifier: Apache-2.0
//
// What every backend must do whatever the order and the timing of calls: collectives in flight, the
// life of a Work, groups, barriers. Values are in conformance_test.cc.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/testing/conformance.h"
#include "shardmesh/comm/testing/sample_tensors.h"
#include "shardmesh/comm/testing/world_under_test.h"

namespace shardmesh {
namespace {

using testing::ExpectElements;
using testing::ExpectReduced;
using testing::Form;
using testing::Mix;
using testing::OnEveryWorld;
using testing::RunWorld;
using testing::Sample;
using testing::SampleTensor;
using testing::SeedOf;
using testing::WorldSizes;

// ---- Order and timing -----------------------------------------------------------------------

TEST(Timing, RandomDelaysChangeNothing) {
  EXPECT_EQ(
      RunWorld(4,
               [](Communicator& world) {
                 for (int step = 0; step < 40; ++step) {
                   const auto delay = [&](int salt) {
                     const uint64_t bits = Mix(1000 * step + salt, world.rank());
                     if (bits % 3 == 0)
                       std::this_thread::sleep_for(std::chrono::microseconds(bits % 500));
                   };
                   const int64_t count = static_cast<int64_t>(Mix(7, step) % 30000);
                   const Tensor x = SampleTensor<float>(world.context(), Form::kContiguous, {count},
                                                        SeedOf(world.rank(), step));
                   AllGatherItem gather = {x, {}};
                   for (int m = 0; m < 4; ++m) {
                     gather.targets.push_back(Tensor::Empty(world.context(), {count}, DType::kF32));
                   }
                   const Tensor sum = Tensor::Empty(world.context(), {count}, DType::kF32);
                   delay(1);
                   Work gathering = world.AllGather({gather}, "gather");
                   delay(2);
                   Work reducing = world.AllReduce({{x, sum}}, ReduceOp::kSum, "reduce");
                   delay(3);
                   if (world.rank() % 2 == 0) gathering.Wait();
                   reducing.Wait();
                   gathering.Wait();
                   for (int m = 0; m < 4; ++m) {
                     ExpectElements<float>(
                         gather.targets[m],
                         [&](int64_t i) { return Sample<float>(SeedOf(m, step), i); }, "gather");
                   }
                   ExpectReduced<float>(sum, world, ReduceOp::kSum, step, "sum");
                   // The contract: after Wait no peer reads the source.
                   testing::FillWithSamples<float>(x, 999);
                 }
               }),
      absl::OkStatus());
}

TEST(Timing, PostedInOppositeOrderOnTwoGroupsAndWaitedForInAnyOrder) {
  EXPECT_EQ(RunWorld(4,
                     [](Communicator& world) {
                       auto a = world.Split(0, world.rank(), "a");
                       auto b = world.Split(0, -world.rank(), "b");
                       for (int step = 0; step < 30; ++step) {
                         const Tensor x = SampleTensor<int64_t>(world.context(), Form::kContiguous,
                                                                {30011}, SeedOf(world.rank(), 1));
                         const Tensor y = SampleTensor<int64_t>(world.context(), Form::kContiguous,
                                                                {30011}, SeedOf(world.rank(), 2));
                         Work on_a, on_b;
                         if (world.rank() % 2 == 0) {
                           on_a = a->AllReduce({{x, x}}, ReduceOp::kSum, "x");
                           on_b = b->AllReduce({{y, y}}, ReduceOp::kMax, "y");
                         } else {
                           on_b = b->AllReduce({{y, y}}, ReduceOp::kMax, "y");
                           on_a = a->AllReduce({{x, x}}, ReduceOp::kSum, "x");
                         }
                         if (world.rank() < 2) {
                           on_a.Wait();
                           on_b.Wait();
                         } else {
                           on_b.Wait();
                           on_a.Wait();
                         }
                         const auto expect = [&](const Tensor& t, ReduceOp op, int item) {
                           ExpectReduced<int64_t>(t, world, op, item, "two groups");
                         };
                         expect(x, ReduceOp::kSum, 1);
                         expect(y, ReduceOp::kMax, 2);
                       }
                     }),
            absl::OkStatus());
}

TEST(Work, CanBePolledSharedAndWaitedForTwice) {
  OnEveryWorld([](Communicator& world) {
    const Tensor x =
        SampleTensor<float>(world.context(), Form::kContiguous, {50021}, SeedOf(world.rank(), 0));
    Work work = world.AllReduce({{x, x}}, ReduceOp::kSum);
    const Work copy = work;
    while (!work.IsDone()) std::this_thread::yield();
    work.Wait();
    work.Wait();
    EXPECT_TRUE(copy.IsDone());
    ExpectReduced<float>(x, world, ReduceOp::kSum, 0, "polled");
  });
}

TEST(Work, DroppedOneStillGivesPeersTheirResult) {
  OnEveryWorld([](Communicator& world) {
    const int quitter = world.size() / 2;
    for (const int64_t count : {int64_t{5}, int64_t{30011}}) {
      for (int step = 0; step < 6; ++step) {
        const Tensor x = SampleTensor<float>(world.context(), Form::kContiguous, {count},
                                             SeedOf(world.rank(), step));
        AllGatherItem gather = {x, {}};
        for (int m = 0; m < world.size(); ++m) {
          gather.targets.push_back(Tensor::Empty(world.context(), {count}, DType::kF32));
        }
        const Tensor sum = Tensor::Empty(world.context(), {count}, DType::kF32);
        Work gathering = world.AllGather({gather});
        Work reducing = world.AllReduce({{x, sum}}, ReduceOp::kSum);
        if (world.rank() == quitter) {
          gathering = Work();
          reducing = Work();
          // Even if peers have not read it yet, and even its memory may go.
          testing::FillWithSamples<float>(x, 12345);
          if (step % 2 == 0) x.storage()->Release("a test");
          continue;
        }
        gathering.Wait();
        reducing.Wait();
        for (int m = 0; m < world.size(); ++m) {
          ExpectElements<float>(
              gather.targets[m], [&](int64_t i) { return Sample<float>(SeedOf(m, step), i); },
              "gather with a dropped work");
        }
        ExpectReduced<float>(sum, world, ReduceOp::kSum, step, "sum with a dropped work");
      }
    }
  });
}

TEST(Work, KeepsItsBuffersAlive) {
  OnEveryWorld([](Communicator& world) {
    const Tensor sum = Tensor::Empty(world.context(), {40009}, DType::kF32);
    Work work;
    {
      const Tensor x =
          SampleTensor<float>(world.context(), Form::kContiguous, {40009}, SeedOf(world.rank(), 3));
      work = world.AllReduce({{x, sum}}, ReduceOp::kSum);
    }
    // Would land in the source's memory if that had been given back.
    const Tensor other = SampleTensor<float>(world.context(), Form::kContiguous, {40009}, 77);
    work.Wait();
    ExpectReduced<float>(sum, world, ReduceOp::kSum, 3, "buffers of a work");
  });
}

TEST(Work, MemoryIsHeldUntilTheOwnWaitWhateverThePeersDo) {
  EXPECT_EQ(RunWorld(3,
                     [](Communicator& world) {
                       const auto held = [&] { return world.context().allocator()->total().bytes; };
                       int64_t first = 0;  // With what a backend needs besides.
                       for (int step = 0; step < 6; ++step) {
                         const int64_t before = held();
                         Work work;
                         {
                           const Tensor x = Tensor::Empty(world.context(), {1 << 18}, DType::kI32);
                           testing::FillWithSamples<int32_t>(x, 1);
                           work = world.AllReduce({{x, x}}, ReduceOp::kSum);
                         }
                         if (world.rank() == step % 3)
                           std::this_thread::sleep_for(std::chrono::milliseconds(3));
                         if (step == 0) first = held();
                         EXPECT_EQ(held(), first);
                         EXPECT_GE(held(), before + 4 * (1 << 18));
                         EXPECT_LE(held(), before + 8 * (1 << 18));
                         work.Wait();
                         EXPECT_EQ(held(), before);
                       }
                     }),
            absl::OkStatus());
}

TEST(Work, MemoryOfADroppedOneGoesWhenItIsDone) {
  EXPECT_EQ(RunWorld(3,
                     [](Communicator& world) {
                       const Tensor x =
                           SampleTensor<float>(world.context(), Form::kContiguous, {5003}, 1);
                       const Tensor sum = Tensor::Empty(world.context(), {5003}, DType::kF32);
                       const int64_t own = world.context().allocator()->total().bytes;
                       // Most likely dropped before the peers have posted, so that it is copied.
                       if (world.rank() != 1)
                         std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       Work work = world.AllReduce({{x, sum}}, ReduceOp::kSum);
                       if (world.rank() == 1) work = Work();
                       work.Wait();
                       world.Barrier();
                       // Also while the peers keep their works.
                       EXPECT_EQ(world.context().allocator()->total().bytes, own);
                       world.Barrier();
                     }),
            absl::OkStatus());
}

// ---- Groups ---------------------------------------------------------------------------------

TEST(Split, OrdersByKeyThenRankAndLeavesOutNegativeColors) {
  OnEveryWorld([](Communicator& world) {
    // Every third rank is left out, the others fall into two colors in descending order.
    const int r = world.rank();
    const int color = r % 3 == 2 ? -1 : r % 2;
    const auto group = world.Split(color, -r, "odd_even");
    ASSERT_EQ(group == nullptr, color < 0);
    if (group == nullptr) return;
    std::vector<int> expected;
    for (int m = world.size() - 1; m >= 0; --m) {
      if (m % 3 != 2 && m % 2 == color) expected.push_back(m);
    }
    EXPECT_EQ(group->world_ranks(), expected);
    EXPECT_EQ(group->world_rank(), r);
    EXPECT_EQ(group->name(), "odd_even");
    EXPECT_EQ(group->timeout(), world.timeout());
    EXPECT_EQ(&group->context(), &world.context());
    EXPECT_EQ(&group->locals(), &world.locals());

    const Tensor x = SampleTensor<float>(world.context(), Form::kContiguous, {103}, SeedOf(r, 0));
    group->AllReduce({{x, x}}, ReduceOp::kSum).Wait();
    ExpectReduced<float>(x, *group, ReduceOp::kSum, 0, "group in descending order");
  });
}

TEST(Split, OfASplitNamesRanksOfTheWorld) {
  EXPECT_EQ(RunWorld(8,
                     [](Communicator& world) {
                       const int r = world.rank();
                       const auto half = world.Split(r / 4, -r, "half");  // {3,2,1,0}, {7,6,5,4}
                       const auto pair =
                           half->Split(half->rank() % 2, 0, "pair");  // {3,1}, {2,0}, {7,5}, {6,4}
                       EXPECT_EQ(pair->world_ranks(), (r % 4 < 2 ? std::vector<int>{r + 2, r}
                                                                 : std::vector<int>{r, r - 2}));
                       const auto alone = pair->Split(pair->rank(), 0, "alone");
                       EXPECT_EQ(alone->world_ranks(), std::vector<int>{r});
                       const auto still_alone = alone->Split(5, 0, "still");
                       EXPECT_EQ(still_alone->world_ranks(), std::vector<int>{r});
                       EXPECT_EQ(alone->Split(-1, 0, "none"), nullptr);
                       pair->Barrier();
                       still_alone->Barrier();
                     }),
            absl::OkStatus());
}

TEST(Subgroup, IsMadeByItsMembersAlone) {
  OnEveryWorld([](Communicator& world) {
    // Odd ranks in descending order, asked for when each likes; even ones do something else.
    std::vector<int> odd;
    for (int r = world.size() - 1; r >= 0; --r) {
      if (r % 2 == 1) odd.push_back(r);
    }
    const bool is_odd = world.rank() % 2 == 1;
    for (int again = 0; again < 2 && is_odd; ++again) {
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const auto group = world.Subgroup(odd, "odd");
      EXPECT_EQ(group->world_ranks(), odd);
      EXPECT_EQ(group->name(), "odd");
      EXPECT_EQ(group->world_rank(), world.rank());
      const Tensor x = SampleTensor<float>(world.context(), Form::kContiguous, {103},
                                           SeedOf(world.rank(), again));
      group->AllReduce({{x, x}}, ReduceOp::kSum).Wait();
      ExpectReduced<float>(x, *group, ReduceOp::kSum, again, "odd ranks");
      const auto alone = group->Subgroup({group->rank()}, "alone");
      EXPECT_EQ(alone->world_ranks(), std::vector<int>{world.rank()});
      alone->Barrier();
    }
    world.Barrier();
    for (const std::vector<int>& wrong :
         {std::vector<int>{world.size()}, {-1}, {world.rank(), world.rank()}, {}}) {
      EXPECT_EQ(Catch([&] { world.Subgroup(wrong, "wrong"); }).code(),
                absl::StatusCode::kInvalidArgument);
    }
  });
}

TEST(Barrier, ReturnsWhenAllHaveCalled) {
  for (const int size : WorldSizes()) {
    EXPECT_EQ(RunWorld(size,
                       [&](Communicator& world) {
                         // The clock of the machine, which threads and processes share.
                         const auto now = [] {
                           return std::chrono::steady_clock::now().time_since_epoch().count();
                         };
                         for (int round = 1; round <= 20; ++round) {
                           if (round % size == world.rank())
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                           const int64_t arrival = now();
                           world.Barrier();
                           const int64_t departure = now();
                           const Tensor last =
                               Tensor::FromValues<int64_t>(world.context(), {}, {arrival});
                           world.AllReduce({{last, last}}, ReduceOp::kMax).Wait();
                           EXPECT_GE(departure, last.IntegerItem());
                         }
                       }),
              absl::OkStatus());
  }
}

}  // namespace
}  // namespace shardmesh
