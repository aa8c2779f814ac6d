// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/allocator.h"

#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

// Sanitizers end the program where the system's allocator would return null, unless told not to.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace shardmesh {
namespace {

constexpr MemoryCategory kParameters = MemoryCategory::kParameters;
constexpr MemoryCategory kGradients = MemoryCategory::kGradients;

TEST(Allocator, CountsBytesAskedForByCategory) {
  const auto memory = Allocator::Create();
  void* a = memory->Allocate(1000, kParameters);
  void* b = memory->Allocate(7, kGradients);
  void* c = memory->Allocate(13, kGradients);
  EXPECT_EQ(memory->stats(kParameters).bytes, 1000);
  EXPECT_EQ(memory->stats(kGradients).bytes, 20);
  EXPECT_EQ(memory->total().bytes, 1020);
  memory->Free(a, 1000, kParameters);
  memory->Free(c, 13, kGradients);
  EXPECT_EQ(memory->stats(kParameters).bytes, 0);
  EXPECT_EQ(memory->stats(kParameters).peak_bytes, 1000);
  EXPECT_EQ(memory->stats(kGradients).bytes, 7);
  EXPECT_EQ(memory->stats(kGradients).peak_bytes, 20);
  EXPECT_EQ(memory->stats(kGradients).allocations, 2);
  EXPECT_EQ(memory->stats(MemoryCategory::kOptimizer).allocations, 0);
  memory->Free(b, 7, kGradients);
  EXPECT_EQ(memory->total().bytes, 0);
  EXPECT_EQ(memory->total().allocations, 3);
}

TEST(Allocator, TotalPeakIsOfTheSum) {
  const auto memory = Allocator::Create();
  void* a = memory->Allocate(100, kParameters);
  memory->Free(a, 100, kParameters);
  void* b = memory->Allocate(30, kGradients);
  EXPECT_EQ(memory->total().peak_bytes, 100);  // Not 130.
  memory->ResetPeaks();
  EXPECT_EQ(memory->total().peak_bytes, 30);
  EXPECT_EQ(memory->stats(kParameters).peak_bytes, 0);
  memory->Free(b, 30, kGradients);
}

TEST(Allocator, BlocksAreAlignedDisjointAndLargeEnough) {
  const auto memory = Allocator::Create();
  std::vector<std::pair<char*, int64_t>> blocks;
  for (int round = 0; round < 2; ++round) {  // Fresh ones, then reused ones.
    for (int64_t bytes = 1; bytes < 100000; bytes += 1 + bytes / 7) {
      char* block = static_cast<char*>(memory->Allocate(bytes, kParameters));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u) << bytes;
      std::memset(block, static_cast<int>(bytes % 251), bytes);
      blocks.emplace_back(block, bytes);
    }
    for (const auto& [block, bytes] : blocks) {
      for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(block[i], static_cast<char>(bytes % 251));
      memory->Free(block, bytes, kParameters);
    }
    blocks.clear();
  }
}

TEST(Allocator, ReusesBlocksOfTheSameClass) {
  const auto memory = Allocator::Create();
  void* a = memory->Allocate(5000, kParameters);
  memory->Free(a, 5000, kParameters);
  void* b = memory->Allocate(4999, kGradients);
  EXPECT_EQ(a, b);
  void* c = memory->Allocate(4998, kGradients);
  EXPECT_NE(b, c);
  memory->Free(b, 4999, kGradients);
  memory->Free(c, 4998, kGradients);
  memory->Trim();
  EXPECT_EQ(memory->total().bytes, 0);
}

TEST(Allocator, NothingCostsNothing) {
  const auto memory = Allocator::Create();
  EXPECT_EQ(memory->Allocate(0, kParameters), nullptr);
  memory->Free(nullptr, 0, kParameters);
  EXPECT_EQ(memory->total().allocations, 0);
}

TEST(Allocator, ImpossibleSizesAreErrorsAndAreNotCounted) {
  const auto memory = Allocator::Create();
  try {
    memory->Allocate(-1, kParameters);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  }
  for (const int64_t bytes : {int64_t{1} << 55, std::numeric_limits<int64_t>::max()}) {
    try {
      memory->Allocate(bytes, kParameters);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_NE(error.message().find(std::to_string(bytes)), std::string::npos) << error.message();
    }
  }
  EXPECT_EQ(memory->total().bytes, 0);
  EXPECT_EQ(memory->total().peak_bytes, 0);
}

TEST(Allocator, ThreadsMayFreeEachOthersBlocks) {
  const auto memory = Allocator::Create();
  std::vector<void*> blocks(1000);
  for (void*& block : blocks) block = memory->Allocate(96, kParameters);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < blocks.size(); i += 4) {
        memory->Free(blocks[i], 96, kParameters);
        for (int round = 0; round < 100; ++round) {
          void* own = memory->Allocate(200, kGradients);
          std::memset(own, t, 200);
          memory->Free(own, 200, kGradients);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->total().bytes, 0);
  EXPECT_EQ(memory->total().allocations, 101000);
}

}  // namespace
}  // namespace shardmesh
