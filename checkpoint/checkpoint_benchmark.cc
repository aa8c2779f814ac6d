// SPDX-License-Identifier: Apache-2.0
//
// Saving and loading against plain writes, reads and copies of the same bytes by as many threads.
//
//   bazel run --config=bench //checkpoint:checkpoint_benchmark
//
// The argument is MiB of f32 in 64 tensors, over 4 ranks, in $TEST_TMPDIR or /tmp. Counters are the
// best time of the reference over the best time of the library, taken in turns in one run:
//   of_plain_write           Save: 4 threads write and fsync a file each
//   of_plain_read            Load in the saved layout: 4 threads read these files; page cache warm
//   of_plain_read_resharded  Load from rows over 4 ranks into columns and rows of 2 x 2
//   stall_of_memcpy          what an asynchronous save keeps the caller, over a memcpy of the bytes
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

constexpr int kRanks = 4;
constexpr int kTensors = 64;
constexpr int64_t kColumns = 1024;
constexpr int64_t kChunk = 1 << 20;

using Clock = std::chrono::steady_clock;

template <typename Fn>
double SecondsOf(const Fn& fn) {
  const auto begin = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Check(bool ok, const std::string& what) {
  if (!ok) Throw(absl::StatusCode::kInternal, "benchmark: ", what);
}
void Check(const absl::Status& status) { Check(status.ok(), std::string(status.message())); }

std::string Folder() {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/bench-", ::getpid());
  std::filesystem::create_directories(path);
  return path;
}

StateDict StateOn(const DeviceMesh& mesh, const std::vector<Placement>& placements, int64_t mib) {
  StateDict state;
  const int64_t rows = (mib << 20) / kTensors / (4 * kColumns);
  for (int i = 0; i < kTensors; ++i)
    state.Add(absl::StrCat("w", i), Full(mesh, {rows, kColumns}, DType::kF32, i + 0.5, placements));
  return state;
}

template <typename Fn>
void OnThreads(const Fn& fn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kRanks; ++t) threads.emplace_back([&fn, t] { fn(t); });
  for (std::thread& thread : threads) thread.join();
}

void PlainWrite(const std::string& path, const std::vector<std::vector<char>>& data) {
  OnThreads([&](int t) {
    const int file = ::open(absl::StrCat(path, "/plain-", t).c_str(),
                            O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    for (size_t done = 0; done < data[t].size(); done += kChunk)
      Check(::pwrite(file, data[t].data() + done, kChunk, static_cast<off_t>(done)) == kChunk,
            "pwrite");
    Check(::fsync(file) == 0, "fsync");
    ::close(file);
  });
}

void PlainRead(const std::string& path, std::vector<std::vector<char>>& data) {
  OnThreads([&](int t) {
    const int file = ::open(absl::StrCat(path, "/plain-", t).c_str(), O_RDONLY | O_CLOEXEC);
    for (size_t done = 0; done < data[t].size(); done += kChunk)
      Check(::pread(file, data[t].data() + done, kChunk, static_cast<off_t>(done)) == kChunk,
            "pread");
    ::close(file);
  });
}

// Runs fn(mesh, state) on the ranks of `shape`; the slowest rank's seconds as fn returns them.
template <typename Fn>
double OnRanks(const MeshShape& shape, const std::vector<Placement>& placements, int64_t mib,
               const Fn& fn) {
  std::vector<double> seconds(kRanks);
  Check(RunRanks(kRanks, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, shape);
    StateDict state = StateOn(mesh, placements, mib);
    world.Barrier();
    seconds[world.rank()] = fn(state);
  }));
  return *std::max_element(seconds.begin(), seconds.end());
}

void SaveAndLoad(benchmark::State& run) {
  const int64_t mib = run.range(0);
  const std::string folder = Folder(), path = folder + "/saved";
  std::vector<std::vector<char>> data(kRanks, std::vector<char>((mib << 20) / kRanks, 1));
  std::vector<std::vector<char>> copies = data;
  double write = 1e9, save = 1e9, read = 1e9, load = 1e9, reshard = 1e9, copy = 1e9, stall = 1e9;
  const MeshShape rows = {{"dp", kRanks}}, grid = {{"dp", 2}, {"tp", 2}};
  for (auto _ : run) {
    for (const char* name : {"/plain-0", "/plain-1", "/plain-2", "/plain-3"})
      std::filesystem::remove(folder + name);
    write = std::min(write, SecondsOf([&] { PlainWrite(folder, data); }));
    std::filesystem::remove_all(path);
    save = std::min(save, OnRanks(rows, {Shard(0)}, mib, [&](StateDict& state) {
                      return SecondsOf([&] { Check(Save(path, state)); });
                    }));
    read = std::min(read, SecondsOf([&] { PlainRead(folder, data); }));
    load = std::min(load, OnRanks(rows, {Shard(0)}, mib, [&](StateDict& state) {
                      return SecondsOf([&] { Check(Load(path, state)); });
                    }));
    reshard = std::min(reshard, OnRanks(grid, {Shard(0), Shard(1)}, mib, [&](StateDict& state) {
                         return SecondsOf([&] { Check(Load(path, state)); });
                       }));
    copy = std::min(
        copy, SecondsOf([&] {
          OnThreads([&](int t) { std::memcpy(copies[t].data(), data[t].data(), data[t].size()); });
        }));
    // The second of two: its buffers are there.
    stall = std::min(stall, OnRanks(rows, {Shard(0)}, mib, [&](StateDict& state) {
                       AsyncSaver saver;
                       Check(saver.Save(folder + "/async-1", state, {.overwrite = true}));
                       Check(saver.Save(folder + "/async-2", state, {.overwrite = true}));
                       const double seconds = saver.stall_seconds();
                       Check(saver.Wait());
                       return seconds;
                     }));
  }
  run.counters["of_plain_write"] = write / save;
  run.counters["of_plain_read"] = read / load;
  run.counters["of_plain_read_resharded"] = read / reshard;
  run.counters["stall_of_memcpy"] = stall / copy;
  run.counters["save_MiB_per_second"] = static_cast<double>(mib) / save;
  run.counters["load_MiB_per_second"] = static_cast<double>(mib) / load;
  run.counters["reshard_MiB_per_second"] = static_cast<double>(mib) / reshard;
  std::filesystem::remove_all(folder);
}

BENCHMARK(SaveAndLoad)->Arg(512)->Iterations(4)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace shardmesh::checkpoint
