// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/run_ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"
#include "shardmesh/comm/inprocess/inprocess_communicator.h"
#include "shardmesh/comm/inprocess/world.h"
#include "shardmesh/comm/internal/new_failure.h"

namespace shardmesh {
namespace {

using inprocess::Group;
using inprocess::InprocessCommunicator;
using inprocess::World;

// Time-outs become points in time: far enough to be practically infinite, near enough not to
// overflow.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

// More cannot be meant, and the tables of more ranks or threads would not fit into memory.
constexpr int kMostRanks = 1 << 16, kMostThreads = 1 << 12;

absl::Status Validate(int num_ranks, const RunOptions& options) {
  if (num_ranks < 1 || num_ranks > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("RunRanks: num_ranks is ", num_ranks, ", expected 1 to ", kMostRanks));
  }
  return internal::ValidateOptions("RunRanks", options);
}

void RunRank(const std::shared_ptr<World>& world, const std::shared_ptr<Group>& everyone, int rank,
             const std::shared_ptr<RankContext>& state, absl::FunctionRef<void(Communicator&)> fn) {
  const auto fail = [&] { world->Fail(rank, StatusOf(std::current_exception())); };
  try {
    state->lifetime = std::make_shared<RankLifetime>(rank);
    InprocessCommunicator communicator(world, everyone, rank, state);
    try {
      fn(communicator);
    } catch (...) {
      fail();
    }
    state->lifetime->End();
    state->locals = TypeMap();  // They may refer to the communicator.
  } catch (...) {
    fail();
  }
  world->Leave(rank);
}

std::vector<std::shared_ptr<RankContext>> MakeStates(int num_ranks, int threads,
                                                     const RunOptions& options) {
  std::vector<std::shared_ptr<RankContext>> states;
  try {
    for (int r = 0; r < num_ranks; ++r) {
      states.push_back(std::make_shared<RankContext>(threads, options.timeout));
      states[r]->synchronous = options.synchronous;
    }
  } catch (...) {
    const absl::Status status = StatusOf(std::current_exception());
    Throw(status.code(), "RunRanks: rank ", states.size(), " of ", num_ranks,
          " with threads_per_rank ", threads, ": ", status.message());
  }
  return states;
}

/// Names on stderr the ranks that still run a whole time-out after the world has failed.
void ReportStuck(World& world, const std::vector<int>& stuck, const RunOptions& options) {
  const std::string text =
      absl::StrCat("RunRanks: the world failed more than ", absl::FormatDuration(options.timeout),
                   stuck.size() == 1 ? " ago, but rank " : " ago, but ranks ", RankList(stuck),
                   stuck.size() == 1 ? " has not returned" : " have not returned",
                   world.DescribeStuck(stuck), "; ",
                   options.stuck_ranks == StuckRanks::kAbort
                       ? "the process ends here (StuckRanks::kAbort)"
                       : "waiting on (StuckRanks::kAbort would end the process)",
                   "\n");
  std::fputs(text.c_str(), stderr);
}

absl::Status RunOn(const std::shared_ptr<World>& world,
                   const std::vector<std::shared_ptr<RankContext>>& states,
                   absl::FunctionRef<void(Communicator&)> fn, const RunOptions& options) {
  const int num_ranks = world->size();
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = std::make_shared<Group>("world", std::move(ranks));
  std::vector<std::thread> threads;
  threads.reserve(num_ranks);
  try {
    for (int r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] { RunRank(world, everyone, r, states[r], fn); });
    }
  } catch (...) {
    const int failed = static_cast<int>(threads.size());
    world->Fail(failed, absl::ResourceExhaustedError(
                            absl::StrCat("cannot start the thread of this rank: ",
                                         StatusOf(std::current_exception()).message())));
    for (int r = failed; r < num_ranks; ++r) world->Leave(r);
  }
  const std::vector<int> stuck = world->AwaitRanks();
  if (!stuck.empty()) {
    ReportStuck(*world, stuck, options);
    if (options.stuck_ranks == StuckRanks::kAbort) std::abort();
  }
  for (std::thread& thread : threads) thread.join();
  return world->End();
}

}  // namespace

absl::Status internal::ValidateOptions(const char* function, const RunOptions& options) {
  if (options.timeout <= absl::ZeroDuration() || options.timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrCat(function, ": timeout is ", absl::FormatDuration(options.timeout),
                     ", expected more than 0 and at most ", absl::FormatDuration(kLongestTimeout)));
  }
  if (options.threads_per_rank < 0 || options.threads_per_rank > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": threads_per_rank is ",
                                                   options.threads_per_rank, ", expected 0 to ",
                                                   kMostThreads));
  }
  return absl::OkStatus();
}

absl::Status RunRanks(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                      const RunOptions& options) {
  if (absl::Status status = Validate(num_ranks, options); !status.ok()) return status;
  const internal::NewFailureEndsProcess new_failure_ends_process;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / num_ranks);
  try {
    const auto world = std::make_shared<World>(num_ranks, options.timeout);
    // Peers read and write a rank's memory until they have all ended, so its state outlives all
    // threads.
    const auto states = MakeStates(num_ranks, threads, options);
    return RunOn(world, states, fn, options);
  } catch (const Error& error) {
    return error.ToStatus();
  }
}

}  // namespace shardmesh
