// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/interrupt.h"

#include <csignal>

#include <atomic>

namespace shardmesh::examples {
namespace {

std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

void Remember(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
}

}  // namespace

void WatchInterrupt() {
  struct sigaction action = {};
  action.sa_handler = &Remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int InterruptSignal() { return received; }

std::string_view SignalName(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "a signal";
  }
}

}  // namespace shardmesh::examples
