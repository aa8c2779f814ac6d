// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/new_failure.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace shardmesh::internal {
namespace {

std::mutex mutex;
int num_alive = 0;  // Guarded by mutex.

// Allocates nothing.
void EndProcess() {
  constexpr char kLine[] =
      "shardmesh: out of memory: operator new found none while RunRanks was running; the process "
      "ends here\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  std::abort();
}

}  // namespace

NewFailureEndsProcess::NewFailureEndsProcess() {
  const std::lock_guard lock(mutex);
  if (num_alive++ == 0 && std::get_new_handler() == nullptr) std::set_new_handler(&EndProcess);
}

NewFailureEndsProcess::~NewFailureEndsProcess() {
  const std::lock_guard lock(mutex);
  if (--num_alive == 0 && std::get_new_handler() == &EndProcess) std::set_new_handler(nullptr);
}

}  // namespace shardmesh::internal
