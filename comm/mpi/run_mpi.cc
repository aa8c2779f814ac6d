// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/internal/new_failure.h"
#include "shardmesh/comm/mpi/mpi_communicator.h"
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {
namespace {

using mpi::GroupIdentity;
using mpi::MpiCommunicator;
using mpi::Process;
using mpi::ProcessWorld;
using mpi::Transport;

// Processes of one kernel and one namespace of process numbers see each other.
std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char pids[PATH_MAX] = {};
  if (readlink("/proc/self/ns/pid", pids, sizeof(pids) - 1) < 0) pids[0] = '\0';
  return absl::StrCat(name, " ", boot, " ", pids);
}

// What a process says of itself, as "number start host", and reads of others.
std::string Describe() {
  return absl::StrCat(getpid(), " ", mpi::StartTimeOf(getpid()), " ", HostName());
}

Process ParseProcess(const std::string& text) {
  Process process;
  const size_t first = text.find(' '), second = text.find(' ', first + 1);
  if (second == std::string::npos || !absl::SimpleAtoi(text.substr(0, first), &process.pid) ||
      !absl::SimpleAtoi(text.substr(first + 1, second - first - 1), &process.start_time)) {
    Throw(absl::StatusCode::kInternal, "a process describes itself as \"", text, "\"");
  }
  process.host = text.substr(second + 1);
  return process;
}

const std::vector<Process>& Processes() {
  static const auto* const processes = [] {
    auto* const all = new std::vector<Process>;
    for (const std::string& text : Transport::Get().Exchange(Describe()))
      all->push_back(ParseProcess(text));
    return all;
  }();
  return *processes;
}

int ThreadsPerRank(const std::vector<Process>& processes, int rank, const RunOptions& options) {
  if (options.threads_per_rank > 0) return options.threads_per_rank;
  const auto here = std::count_if(processes.begin(), processes.end(),
                                  [&](const Process& p) { return p.host == processes[rank].host; });
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, cores / static_cast<int>(here));
}

absl::Status Run(absl::FunctionRef<void(Communicator&)> fn, const RunOptions& options) {
  Transport& transport = Transport::Get();
  const std::vector<Process>& processes = Processes();
  const int rank = transport.rank();
  static int64_t runs = 0;
  const auto world = std::make_shared<ProcessWorld>(transport, runs++, processes, options.timeout,
                                                    options.progress_thread);
  auto everyone = std::make_shared<GroupIdentity>();
  everyone->id = 0;
  everyone->name = "world";
  everyone->world_ranks.resize(static_cast<size_t>(transport.size()));
  std::iota(everyone->world_ranks.begin(), everyone->world_ranks.end(), 0);
  const auto context =
      std::make_shared<RankContext>(ThreadsPerRank(processes, rank, options), options.timeout);
  context->synchronous = options.synchronous;
  context->lifetime = std::make_shared<RankLifetime>(rank);
  try {
    MpiCommunicator communicator(world, everyone, rank, context);
    try {
      fn(communicator);
    } catch (...) {
      world->Fail(StatusOf(std::current_exception()));
    }
    context->lifetime->End();
    context->locals = TypeMap();  // They may refer to the communicator.
  } catch (...) {
    world->Fail(StatusOf(std::current_exception()));
  }
  bool is_whole = false;
  absl::Status status = world->End(is_whole);
  // MPI_Finalize would wait for a process that is gone. One that only was late may be back.
  transport.AllowFinalize(is_whole);
  return status;
}

}  // namespace

absl::Status RunMpi(absl::FunctionRef<void(Communicator& world)> fn, const RunOptions& options) {
  if (absl::Status status = internal::ValidateOptions("RunMpi", options); !status.ok())
    return status;
  const internal::NewFailureEndsProcess new_failure_ends_process;
  try {
    return Run(fn, options);
  } catch (const Error& error) {
    return error.ToStatus();
  }
}

}  // namespace shardmesh
