// SPDX-License-Identifier: Apache-2.0
//
// The memory that saving, loading and exporting need beside the state.
#include <fstream>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/export.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

constexpr int64_t kMiB = 1 << 20;
// A tensor of 192 MiB.
constexpr int64_t kRows = 6 * 1024, kColumns = 8 * 1024;

int64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::stoll(line.substr(field.size())) * 1024;
  }
  return 0;
}

// By how much the process grows while `fn` runs, at most; -1 where the system does not say.
int64_t GrowthDuring(const std::function<void()>& fn) {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;  // The peak is what is there now.
  if (!clear) return -1;
  const int64_t before = StatusBytes("VmRSS:");
  fn();
  return StatusBytes("VmHWM:") - before;
}

// On one rank, so that nothing else allocates meanwhile.
void OnOneRank(const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(1,
                     [&](Communicator& world) {
                       fn(DeviceMesh::Create(world, {{"dp", 1}}));
                     }),
            absl::OkStatus());
}

TEST(Memory, SavingLoadingAndExportingNeedAFewMegabytes) {
  const std::string folder = TestFolder();
  OnOneRank([&](const DeviceMesh& mesh) {
    StateDict state;
    state.Add("w", Full(mesh, {kRows, kColumns}, DType::kF32, 1.5, {Shard(0)}));
    const int64_t save = GrowthDuring(
        [&] { EXPECT_EQ(Save(folder + "/saved", state, {.sync = false}), absl::OkStatus()); });
    if (save < 0) GTEST_SKIP() << "/proc/self/clear_refs cannot be written";
    EXPECT_LT(save, 8 * kMiB);
    EXPECT_LT(GrowthDuring([&] {
                EXPECT_EQ(ExportHuggingFace(folder + "/same", state, {.save = {.sync = false}}),
                          absl::OkStatus());
              }),
              8 * kMiB);
    // The tensor was converted whole: 96 MiB.
    EXPECT_LT(GrowthDuring([&] {
                EXPECT_EQ(ExportHuggingFace(folder + "/bf16", state,
                                            {.dtype = DType::kBF16, .save = {.sync = false}}),
                          absl::OkStatus());
              }),
              8 * kMiB);
    // 5 MiB per thread.
    EXPECT_LT(GrowthDuring([&] {
                EXPECT_EQ(Load(folder + "/saved", state, {.threads = 2}), absl::OkStatus());
              }),
              16 * kMiB);
    EXPECT_LT(GrowthDuring([&] {
                EXPECT_EQ(Load(folder + "/bf16", state, {.allow_cast = true, .threads = 2}),
                          absl::OkStatus());
              }),
              16 * kMiB);
    EXPECT_LT(GrowthDuring([&] { EXPECT_EQ(Verify(folder + "/saved"), absl::OkStatus()); }),
              8 * kMiB);
  });
}

// Boxes that are no runs of the file go through a buffer.
TEST(Memory, ColumnsAreReadThroughABuffer) {
  const std::string path = TestFolder() + "/saved";
  OnOneRank([&](const DeviceMesh& mesh) {
    StateDict state;
    const DTensor x = Full(mesh, {kRows, kColumns}, DType::kF32, 1.5, {Shard(0)});
    state.Add("w", x);
    const StateDict parts =
        SplitEntry(state, "w", 1, {{"a", kColumns / 2}, {"b", kColumns - kColumns / 2}});
    EXPECT_EQ(Save(path, parts, {.sync = false}), absl::OkStatus());
    StateDict loaded = parts;
    const int64_t load =
        GrowthDuring([&] { EXPECT_EQ(Load(path, loaded, {.threads = 2}), absl::OkStatus()); });
    if (load < 0) GTEST_SKIP() << "/proc/self/clear_refs cannot be written";
    EXPECT_LT(load, 16 * kMiB);
    EXPECT_EQ(x.local().data<float>()[kRows * kColumns - 1], 1.5F);
  });
}

}  // namespace
}  // namespace shardmesh::checkpoint
