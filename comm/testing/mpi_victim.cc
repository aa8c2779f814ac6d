// SPDX-License-Identifier: Apache-2.0
//
// A program of several processes of which rank 1 dies, or none, for tests. Arguments: how, and
// the time-out in milliseconds. Rank 0 says when all are at work, and each rank on stderr what its
// run ended with.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {
namespace {

void Die(const std::string& how) {
  if (how == "kill") kill(getpid(), SIGKILL);
  if (how == "stop") kill(getpid(), SIGSTOP);
  if (how == "exit") _exit(3);
  if (how == "exit0") _exit(0);
  if (how == "abort") abort();  // Else nobody dies.
}

int Main(const std::string& how, int milliseconds) {
  RunOptions options;
  options.timeout = absl::Milliseconds(milliseconds);
  int rank = -1;
  const absl::Status status = RunMpi(
      [&](Communicator& world) {
        rank = world.rank();
        const Tensor x = Tensor::Empty(world.context(), {100'000}, DType::kF32);
        for (int step = 0; step < 1'000'000; ++step) {
          if (rank == 1 && step == 20) Die(how);
          if (rank == 0 && step == 20) {
            std::printf("running\n");
            std::fflush(stdout);
          }
          const Tensor y = Tensor::Empty(world.context(), {100'000}, DType::kF32);
          world.AllReduce({{x, y}}, ReduceOp::kMax, "step").Wait();
        }
      },
      options);
  std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
  std::fflush(stderr);
  usleep(300'000);  // For the others to say theirs before mpirun ends them.
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  return shardmesh::Main(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 60'000);
}
