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
//   one_thread_of_two        Load with LoadOptions::threads = 1 over that with 2
//   replicas_of_shared       Load on 4 replicas without share_reads over that with it
//   stall_of_memcpy          what an asynchronous save keeps the slowest rank, over the time of the
//                            slowest memcpy of a rank's tensors into a buffer that is there; the
//                            inverse of the others. `worst` is that of the worst iteration.
//
// Planning, without values: the arguments are ranks and tensors, and counters are milliseconds of
// one rank's processor:
//   plan_ms                  all that a rank computes before it writes, or reads
//   parse_ms, check_ms       of the index, and of a full check of all its boxes
#include <fcntl.h>
#include <time.h>
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
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/read_plan.h"
#include "shardmesh/checkpoint/internal/save_plan.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/plan_sample.h"
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

// Of the slowest rank: what a memcpy of its tensors takes into a buffer that is there, and what an
// asynchronous save keeps it.
std::pair<double, double> CopyAndStall(const std::string& folder, const MeshShape& mesh,
                                       int64_t mib) {
  std::vector<double> copies(kRanks), stalls(kRanks);
  Check(RunRanks(kRanks, [&](Communicator& world) {
    const StateDict state = StateOn(DeviceMesh::Create(world, mesh), {Shard(0)}, mib);
    std::vector<char> buffer((mib << 20) / kRanks, 1);
    const auto copy = [&] {
      char* next = buffer.data();
      for (const StateEntry& entry : state.entries()) {
        const Tensor local = std::get<DTensor>(entry.value).local();
        std::memcpy(next, local.raw_data(), static_cast<size_t>(local.Bytes()));
        next += local.Bytes();
      }
    };
    copies[world.rank()] = 1e9;
    for (int i = 0; i < 3; ++i) {
      world.Barrier();
      copies[world.rank()] = std::min(copies[world.rank()], SecondsOf(copy));
    }
    AsyncSaver saver;
    Check(saver.Save(folder + "/async-1", state, {.overwrite = true}));
    Check(saver.Save(folder + "/async-2", state, {.overwrite = true}));
    stalls[world.rank()] = saver.stall_seconds();
    Check(saver.Wait());
  }));
  return {*std::max_element(copies.begin(), copies.end()),
          *std::max_element(stalls.begin(), stalls.end())};
}

void SaveAndLoad(benchmark::State& run) {
  const int64_t mib = run.range(0);
  const std::string folder = Folder(), path = folder + "/saved";
  std::vector<std::vector<char>> data(kRanks, std::vector<char>((mib << 20) / kRanks, 1));
  double one_thread = 1e9, replicated = 1e9, shared = 1e9;
  double write = 1e9, save = 1e9, read = 1e9, load = 1e9, reshard = 1e9, copy = 1e9, stall = 1e9,
         worst = 0;
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
    one_thread = std::min(one_thread, OnRanks(rows, {Shard(0)}, mib, [&](StateDict& state) {
                            return SecondsOf([&] { Check(Load(path, state, {.threads = 1})); });
                          }));
    for (const bool share : {false, true}) {
      double& best = share ? shared : replicated;
      best = std::min(best, OnRanks(rows, {Replicate()}, mib, [&](StateDict& state) {
                        return SecondsOf([&] { Check(Load(path, state, {.share_reads = share})); });
                      }));
    }
    reshard = std::min(reshard, OnRanks(grid, {Shard(0), Shard(1)}, mib, [&](StateDict& state) {
                         return SecondsOf([&] { Check(Load(path, state)); });
                       }));
    // The second of two saves: its buffers are there, as are those of the copy.
    const auto [copy_seconds, stall_seconds] = CopyAndStall(folder, rows, mib);
    copy = std::min(copy, copy_seconds);
    stall = std::min(stall, stall_seconds);
    worst = std::max(worst, stall_seconds / copy_seconds);
  }
  run.counters["of_plain_write"] = write / save;
  run.counters["of_plain_read"] = read / load;
  run.counters["of_plain_read_resharded"] = read / reshard;
  run.counters["one_thread_of_two"] = one_thread / load;
  run.counters["replicas_of_shared"] = replicated / shared;
  run.counters["stall_of_memcpy"] = stall / copy;
  run.counters["worst_stall_of_memcpy"] = worst;
  run.counters["save_MiB_per_second"] = static_cast<double>(mib) / save;
  run.counters["load_MiB_per_second"] = static_cast<double>(mib) / load;
  run.counters["reshard_MiB_per_second"] = static_cast<double>(mib) / reshard;
  std::filesystem::remove_all(folder);
}

// ---- planning -----------------------------------------------------------------------------------

// Of this thread, so that other programs do not count.
template <typename Fn>
double CpuSecondsOf(const Fn& fn) {
  const auto now = [] {
    timespec time;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  fn();
  return now() - begin;
}

MeshShape PlannedMesh(const benchmark::State& run) {
  return {{"dp", static_cast<int>(run.range(0)) / 8}, {"tp", 8}};
}

void PlanSaveOfOneRank(benchmark::State& run) {
  const MeshShape mesh = PlannedMesh(run);
  const int ranks = static_cast<int>(run.range(0)), tensors = static_cast<int>(run.range(1));
  const std::vector<internal::TensorToSave> to_save = testing::TensorsOf(mesh, tensors, ranks / 3);
  double best = 1e9;
  for (auto _ : run) {
    best = std::min(best, CpuSecondsOf([&] {
                      const absl::StatusOr<internal::SavePlan> plan =
                          internal::PlanSave(to_save, ranks / 3, ranks, {});
                      Check(plan.status());
                      Check(plan->contents.ToJson().status());
                    }));
  }
  run.counters["plan_ms"] = best * 1e3;
}

// In the layouts that were saved, on a mesh of another shape.
void PlanLoadOfOneRank(benchmark::State& run) {
  const int ranks = static_cast<int>(run.range(0)), tensors = static_cast<int>(run.range(1));
  Contents saved = testing::SavedBy(PlannedMesh(run), tensors);
  const MeshShape mesh = {{"dp", ranks / 16}, {"tp", 16}};
  double best = 1e9;
  for (auto _ : run) {
    best = std::min(best, CpuSecondsOf([&] {
                      for (int i = 0; i < tensors; ++i) {
                        std::vector<internal::ReadPart> parts;
                        const Layout layout = testing::LayoutOf(mesh, i);
                        Check(internal::PlanRead(saved.arrays[i],
                                                 layout.LocalBox(mesh.CoordOf(ranks / 3)), parts));
                      }
                    }));
  }
  run.counters["plan_ms"] = best * 1e3;
  const absl::StatusOr<std::string> json = saved.ToJson();
  Check(json.status());
  run.counters["check_ms"] = 1e3 * CpuSecondsOf([&] { Check(saved.Check()); });
  saved = Contents();
  run.counters["index_MiB"] = static_cast<double>(json->size()) / (1 << 20);
  run.counters["parse_ms"] = 1e3 * CpuSecondsOf([&] { Check(Contents::FromJson(*json).status()); });
}

BENCHMARK(PlanSaveOfOneRank)->Args({1024, 1000})->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK(PlanLoadOfOneRank)
    ->Args({128, 1000})
    ->Args({1024, 1000})
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(SaveAndLoad)->Arg(512)->Iterations(4)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace shardmesh::checkpoint
