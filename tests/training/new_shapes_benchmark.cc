// SPDX-License-Identifier: Apache-2.0
//
// What shapes cost that were never seen before, when every op decides anew, and what they leave.
//
//   bazel run --config=bench //tests/training:new_shapes_benchmark
//
// `new_length_ms_per_layer` = (time of forward and backward of a Llama of two layers with a
// sequence length that is new - time of the same step again) / 2, on rank 0, median of all lengths.
// `bytes_per_shape` = (largest resident set in the second half of the shapes - in the first half) /
// shapes of a half; caches that are emptied when they are full make it rise and fall, and malloc
// spreads over its arenas for a while.
// `of_memcpy` = time of an all-to-all of all ranks / time to copy its bytes, one thread a core.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/training/llama_run.h"

namespace shardmesh::testing {
namespace {

template <typename F>
double Milliseconds(const F& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double Median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<int64_t>(samples.size() / 2),
                   samples.end());
  return samples[samples.size() / 2];
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

double ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE));
}

void BM_NewLength(benchmark::State& state) {
  const MeshShape shape =
      state.range(0) == 1 ? MeshShape{{"dp", 1}} : MeshShape{{"dp", 2}, {"tp", 2}};
  LlamaRunOptions options;
  options.config.vocab_size = 61;
  options.config.hidden_size = 56;
  options.config.intermediate_size = 77;
  options.config.num_hidden_layers = 2;
  options.config.num_attention_heads = 8;
  options.config.num_key_value_heads = 4;
  options.config.head_dim = 14;
  std::vector<double> differences;
  for (auto unused : state) {
    Require(RunRanks(static_cast<int>(shape.NumRanks()), [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, shape);
      models::Llama model(options.config);
      ParallelizeLlama(model, mesh, options);
      model.Initialize(1);
      for (int64_t length = 5; length < 69; ++length) {
        const std::vector<int64_t> ids = StridedIds(4 * length, 7, 61);
        const auto step = [&] {
          Backward(CrossEntropy(model(ShardedTokens(mesh, 4, length, ids)),
                                ShardedTokens(mesh, 4, length, ids)));
        };
        const double first = Milliseconds(step);
        const double again = Milliseconds(step);
        if (world.rank() == 0 && length > 8) differences.push_back(first - again);
      }
    }));
  }
  state.counters["new_length_ms_per_layer"] = Median(differences) / 2;
}
BENCHMARK(BM_NewLength)->ArgName("ranks")->Arg(1)->Arg(4)->Iterations(2)->UseRealTime();

void BM_NewShapes(benchmark::State& state) {
  const int64_t shapes = state.range(0);
  double bytes = 0;
  for (auto unused : state) {
    Require(RunRanks(2, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{"x", 2}});
      double largest[2] = {0, 0};
      for (int64_t i = 0; i < shapes; ++i) {
        double& of_half = largest[i >= shapes / 2 ? 1 : 0];
        if (i % 1000 == 0) of_half = std::max(of_half, ResidentBytes());
        // Without elements: what is left is of shapes, not of sizes.
        const DTensor x = Zeros(mesh, {i + 1, 0}, DType::kBool, {Shard(0)});
        LogicalNot(x);
      }
      if (world.rank() == 0) bytes = largest[1] - largest[0];
    }));
  }
  state.counters["bytes_per_shape"] = bytes / (static_cast<double>(shapes) / 2);
}
BENCHMARK(BM_NewShapes)->ArgName("shapes")->Arg(1600000)->Iterations(1)->UseRealTime();

double MillisecondsToCopy(int64_t bytes) {
  const int threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<char> from(bytes, 1), to(bytes, 2);
  const int64_t part = bytes / threads;
  std::vector<double> samples;
  for (int repeat = 0; repeat < 20; ++repeat) {
    samples.push_back(Milliseconds([&] {
      std::vector<std::thread> workers;
      for (int i = 0; i < threads; ++i)
        workers.emplace_back([&, i] { std::memcpy(&to[i * part], &from[i * part], part); });
      for (std::thread& worker : workers) worker.join();
    }));
  }
  return Median(samples);
}

void BM_AllToAll(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const int64_t extent = state.range(1);
  std::vector<double> samples;
  for (auto unused : state) {
    Require(RunRanks(ranks, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, MeshShape{{MeshAxis{"x", ranks}}});
      const DTensor x = Zeros(mesh, {extent, extent}, DType::kF32, {Shard(0)});
      for (int repeat = 0; repeat < 20; ++repeat) {
        const double ms = Milliseconds([&] { Redistribute(x, {Shard(1)}); });
        if (world.rank() == 0 && repeat > 2) samples.push_back(ms);
      }
    }));
  }
  const double bytes = 4.0 * static_cast<double>(extent * extent);
  state.counters["all_to_all_ms"] = Median(samples);
  state.counters["of_memcpy"] = Median(samples) / MillisecondsToCopy(static_cast<int64_t>(bytes));
}
BENCHMARK(BM_AllToAll)
    ->ArgNames({"ranks", "extent"})
    ->Args({2, 4096})
    ->Args({64, 1024})
    ->Args({64, 4096})
    ->Iterations(1)
    ->UseRealTime();

}  // namespace
}  // namespace shardmesh::testing
