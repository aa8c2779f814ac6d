// SPDX-License-Identifier: Apache-2.0
//
// What collectives between processes cost, beside those of MPI itself in the same run. Started by
// mpirun; the first process prints a line of JSON for each size:
//
//   bazel build --config=bench --config=mpi //comm:mpi_collectives_benchmark
//   mpirun -n 2 bazel-bin/comm/mpi_collectives_benchmark
//
// `us`: the median time of a collective of f32 shards of `elements`, on rank 0. `of_mpi`: that of
// MPI_Allgather, MPI_Reduce_scatter_block or MPI_Allreduce on as much over it; above 1 we are
// faster.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/comm/mpi_world.h"

namespace shardmesh {
namespace {

using Clock = std::chrono::steady_clock;

double MedianMicroseconds(int repetitions, const std::function<void()>& run) {
  std::vector<double> samples;
  for (int i = 0; i < repetitions + repetitions / 4; ++i) {
    const Clock::time_point begin = Clock::now();
    run();
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
    if (i >= repetitions / 4) samples.push_back(elapsed.count());
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<int64_t>(samples.size() / 2),
                   samples.end());
  return samples[samples.size() / 2];
}

struct Case {
  const char* name;
  std::function<void()> ours, mpi;
};

void Measure(Communicator& world, int64_t elements) {
  const int p = world.size();
  const auto make = [&](int64_t count) {
    const Tensor x = Tensor::Empty(world.context(), {count}, DType::kF32);
    std::fill_n(x.mutable_data<float>(), count, 1.0f);
    return x;
  };
  const Tensor shard = make(elements), whole = make(elements * p), sum = make(elements * p);
  std::vector<Tensor> parts;
  for (int m = 0; m < p; ++m) parts.push_back(whole.Narrow(0, m * elements, elements));
  float* const shard_data = shard.mutable_data<float>();
  float* const whole_data = whole.mutable_data<float>();
  float* const sum_data = sum.mutable_data<float>();
  const int count = static_cast<int>(elements);
  const std::vector<Case> cases = {
      {"all_gather",
       [&] {
         world.AllGather({{shard, parts}}).Wait();
       },
       [&] {
         MPI_Allgather(shard_data, count, MPI_FLOAT, whole_data, count, MPI_FLOAT, MPI_COMM_WORLD);
       }},
      {"reduce_scatter",
       [&] {
         world.ReduceScatter({{parts, shard}}, ReduceOp::kSum).Wait();
       },
       [&] {
         MPI_Reduce_scatter_block(whole_data, shard_data, count, MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD);
       }},
      {"all_reduce",
       [&] {
         world.AllReduce({{whole, sum}}, ReduceOp::kSum).Wait();
       },
       [&] { MPI_Allreduce(whole_data, sum_data, count * p, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
  };
  const int repetitions = elements >= (1 << 20) ? 9 : elements >= (1 << 16) ? 60 : 400;
  for (const Case& each : cases) {
    // In turn, so that what disturbs the machine disturbs both.
    double ours = 1e300, mpi = 1e300;
    for (int round = 0; round < 3; ++round) {
      world.Barrier();
      ours = std::min(ours, MedianMicroseconds(repetitions, each.ours));
      world.Barrier();
      mpi = std::min(mpi, MedianMicroseconds(repetitions, each.mpi));
    }
    if (world.rank() != 0) continue;
    std::printf(
        "{\"kind\": \"%s\", \"processes\": %d, \"elements\": %lld, \"us\": %.1f, "
        "\"mpi_us\": %.1f, \"of_mpi\": %.2f}\n",
        each.name, p, static_cast<long long>(elements), ours, mpi, mpi / ours);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  shardmesh::RunOptions options;
  options.progress_thread = argc > 1 && std::string(argv[1]) == "--progress_thread";
  const absl::Status status = shardmesh::RunMpi(
      [](shardmesh::Communicator& world) {
        for (const int64_t elements : {64, 4096, 1 << 16, 1 << 19, 1 << 22})
          shardmesh::Measure(world, elements);
      },
      options);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
