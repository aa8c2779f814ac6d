// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/staging_buffer.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace shardmesh::checkpoint::internal {
namespace {

constexpr int64_t kMargin = 64;

// Of few bytes and of many, which begin and end at any place in a cache line.
TEST(StagingBuffer, CopiesAsMemcpyAndNothingBeside) {
  for (const int64_t bytes : {0, 1, 63, 65535, 65536, 65537, 65600, 200003}) {
    for (const int64_t from : {0, 1, 8, 63}) {
      for (const int64_t to : {0, 1, 15, 16, 63}) {
        std::vector<char> source(static_cast<size_t>(bytes + kMargin));
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i % 127);
        StagingBuffer buffer;
        char* const target = buffer.Reserve(bytes + 2 * kMargin);
        std::fill(target, target + bytes + 2 * kMargin, static_cast<char>(-1));
        CopyToStaging(target + to, source.data() + from, bytes);
        for (int64_t i = 0; i < bytes + 2 * kMargin; ++i) {
          const bool is_copied = i >= to && i < to + bytes;
          const char expected =
              is_copied ? source[static_cast<size_t>(from + i - to)] : static_cast<char>(-1);
          ASSERT_EQ(target[i], expected) << bytes << " bytes from " << from << " to " << to;
        }
      }
    }
  }
}

TEST(StagingBuffer, KeepsItsMemoryForAsManyBytes) {
  StagingBuffer buffer;
  char* const memory = buffer.Reserve(3 << 20);
  EXPECT_EQ(buffer.Reserve(1 << 20), memory);
  EXPECT_EQ(buffer.Reserve(3 << 20), memory);
  buffer.Reserve(9 << 20)[(9 << 20) - 1] = 1;
}

}  // namespace
}  // namespace shardmesh::checkpoint::internal
