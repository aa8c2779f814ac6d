// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/parallel.h"

#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "shardmesh/base/error.h"

namespace shardmesh::checkpoint::internal {

absl::Status ForEachInParallel(size_t count, int threads,
                               absl::FunctionRef<absl::Status(size_t)> fn) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::mutex mutex;
  size_t first_failed = count;
  absl::Status failure;
  const auto work = [&] {
    while (!has_failed) {
      // All before `i` have begun, so the first failure is among those that run to their end.
      const size_t i = next++;
      if (i >= count) return;
      absl::Status status;
      const absl::Status thrown = Catch([&] { status = fn(i); });
      if (status.ok()) status = thrown;
      if (status.ok()) continue;
      has_failed = true;
      const std::lock_guard lock(mutex);
      if (i >= first_failed) continue;
      first_failed = i;
      failure = status;
    }
  };
  std::vector<std::thread> helpers;
  for (size_t t = 1; t < count && t < static_cast<size_t>(threads); ++t) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

}  // namespace shardmesh::checkpoint::internal
