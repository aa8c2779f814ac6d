// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/interrupt.h"

#include <csignal>

#include <atomic>

namespace shardmesh::examples {
namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

void Remember(int /*signal*/) { interrupted = true; }

}  // namespace

void WatchInterrupt() {
  struct sigaction action = {};
  action.sa_handler = &Remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() { return interrupted; }

}  // namespace shardmesh::examples
