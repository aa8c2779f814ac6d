// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/run_ranks.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/inprocess/inprocess_communicator.h"
#include "shardmesh/comm/inprocess/world.h"

namespace shardmesh {
namespace {

using inprocess::Group;
using inprocess::InprocessCommunicator;
using inprocess::RankState;
using inprocess::World;

// Time-outs become points in time: far enough to be practically infinite, near enough not to
// overflow.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

absl::Status Validate(int num_ranks, const RunOptions& options) {
  if (num_ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("RunRanks: num_ranks is ", num_ranks, ", expected at least 1"));
  }
  if (options.timeout <= absl::ZeroDuration() || options.timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrCat("RunRanks: timeout is ", absl::FormatDuration(options.timeout),
                     ", expected more than 0 and at most ", absl::FormatDuration(kLongestTimeout)));
  }
  if (options.threads_per_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RunRanks: threads_per_rank is ", options.threads_per_rank, ", expected at least 0"));
  }
  return absl::OkStatus();
}

void RunRank(const std::shared_ptr<World>& world, const std::shared_ptr<Group>& everyone, int rank,
             RankState& state, absl::FunctionRef<void(Communicator&)> fn) {
  const auto fail = [&] { world->Fail(rank, StatusOf(std::current_exception())); };
  try {
    InprocessCommunicator communicator(world, everyone, rank, state);
    try {
      fn(communicator);
    } catch (...) {
      fail();
    }
    state.locals = TypeMap();  // They may refer to the communicator.
  } catch (...) {
    fail();
  }
  world->Leave(rank);
}

}  // namespace

absl::Status RunRanks(int num_ranks, absl::FunctionRef<void(Communicator& world)> fn,
                      const RunOptions& options) {
  if (absl::Status status = Validate(num_ranks, options); !status.ok()) return status;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / num_ranks);

  const auto world = std::make_shared<World>(num_ranks, options.timeout);
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = std::make_shared<Group>("world", std::move(ranks));

  // Peers read and write a rank's memory until they have all ended, so its state outlives all
  // threads.
  std::vector<std::unique_ptr<RankState>> states;
  std::vector<std::thread> rank_threads;
  try {
    for (int r = 0; r < num_ranks; ++r) {
      states.push_back(std::make_unique<RankState>(threads));
      states[r]->synchronous = options.synchronous;
    }
    for (int r = 0; r < num_ranks; ++r) {
      rank_threads.emplace_back([&, r] { RunRank(world, everyone, r, *states[r], fn); });
    }
  } catch (const std::system_error& error) {
    world->Fail(
        static_cast<int>(rank_threads.size()),
        absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what())));
  }
  for (std::thread& thread : rank_threads) thread.join();
  return world->status();
}

}  // namespace shardmesh
