// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/execution_context.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

TEST(ExecutionContext, RunsEveryTileOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ExecutionContext context(Device::Cpu(), threads);
    for (const int64_t tiles : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(tiles);
      context.ParallelFor(tiles, [&](int64_t tile) { ++runs[tile]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ExecutionContext, ThreadsShareTheWork) {
  ExecutionContext context(Device::Cpu(), 2);
  // Each of two tiles waits for the other one to have begun.
  std::atomic<int> begun = 0;
  context.ParallelFor(2, [&](int64_t) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
  EXPECT_EQ(begun, 2);
}

TEST(ExecutionContext, ManySmallJobsInARow) {
  ExecutionContext context(Device::Cpu(), 3);
  int64_t sum = 0;
  for (int job = 0; job < 2000; ++job) {
    std::atomic<int64_t> part = 0;
    context.ParallelFor(4, [&](int64_t tile) { part += tile; });
    sum += part;
    // Some jobs find the workers asleep.
    if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(sum, 2000 * 6);
}

TEST(ExecutionContext, RethrowsATilesExceptionAndGoesOn) {
  for (const int threads : {1, 3}) {
    ExecutionContext context(Device::Cpu(), threads);
    for (int round = 0; round < 100; ++round) {
      try {
        context.ParallelFor(50, [&](int64_t tile) {
          if (tile % 7 == 3) ThrowInvalid("tile ", tile);
        });
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.message().substr(0, 5), "tile ");
      }
      std::atomic<int> runs = 0;
      context.ParallelFor(50, [&](int64_t) { ++runs; });
      EXPECT_EQ(runs, 50);
    }
  }
}

TEST(ExecutionContext, RefusesNoThreads) {
  EXPECT_THROW(ExecutionContext(Device::Cpu(), 0), Error);
}

TEST(ExecutionContext, SharesAnAllocatorIfGivenOne) {
  const auto memory = Allocator::Create();
  ExecutionContext a(Device::Cpu(), 1, memory), b(Device::Cpu(), 1, memory), own;
  EXPECT_EQ(a.allocator(), b.allocator());
  EXPECT_NE(own.allocator(), nullptr);
  EXPECT_NE(own.allocator(), memory);
  EXPECT_EQ(own.default_category(), MemoryCategory::kActivations);
}

}  // namespace
}  // namespace shardmesh
