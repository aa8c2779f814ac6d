// SPDX-License-Identifier: Apache-2.0
//
// Every operation of a save fails once, in each way, and kills the process once: what was there
// before loads whole, and the new checkpoint loads whole or is not seen.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/failing_files.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

using testing::FailingFiles;
using testing::Failure;

// Of two replicas with two shards each. Tensors of many bytes are written apart from small ones.
struct Saved {
  explicit Saved(const DeviceMesh& mesh, int64_t of_step) : step(of_step) {
    const auto value = static_cast<double>(of_step);
    state.Bind("step", &step);
    state.Add("weight", Full(mesh, {701, 600}, DType::kF32, value, {Replicate(), Shard(0)}));
    state.Add("bias", Full(mesh, {5}, DType::kF64, -value, {Replicate(), Shard(0)}));
  }
  int64_t step;
  StateDict state;
};

void OnRanks(const std::function<void(const DeviceMesh&)>& fn) {
  const MeshShape mesh = {{"dp_replicate", 2}, {"dp", 2}};
  EXPECT_EQ(RunRanks(4, [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus());
}

// Saves `step`; returns the first rank's status, which all have.
absl::Status SaveStep(const std::string& path, int64_t step, const SaveOptions& options) {
  std::vector<absl::Status> statuses(4);
  OnRanks([&](const DeviceMesh& mesh) {
    const Saved saved(mesh, step);
    statuses[mesh.WorldGroup().rank()] = Save(path, saved.state, options);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

// The step that a checkpoint holds, all of it; -1 if it cannot be loaded.
int64_t StepIn(const std::string& path) {
  int64_t step = -1;
  OnRanks([&](const DeviceMesh& mesh) {
    Saved saved(mesh, -5);
    const absl::Status status = Load(path, saved.state, {.verify = true});
    if (!status.ok()) return;
    for (const char* name : {"weight", "bias"}) {
      const auto& x = std::get<DTensor>(saved.state.Find(name)->value);
      for (double value : x.local().ToVector<double>())
        EXPECT_EQ(std::abs(value), static_cast<double>(saved.step));
    }
    if (mesh.WorldGroup().rank() == 0) step = saved.step;
  });
  return step;
}

int CountTemporaries(const std::string& directory) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    count += absl::StartsWith(entry.path().filename().string(), ".") ? 1 : 0;
  return count;
}

// Runs `save` with a file system that fails at each operation in turn, until it reaches none.
// Returns the number of operations.
int AtEachOperation(Failure failure, const std::function<void(FailingFiles&, int at)>& save) {
  for (int at = 0;; ++at) {
    FailingFiles files(failure, at);
    save(files, at);
    if (!files.has_failed() || ::testing::Test::HasFailure()) return at;
  }
}

TEST(Crash, AFailedOperationLeavesTheOldCheckpointOrTheNew) {
  for (const Failure failure : {Failure::kIoError, Failure::kNoSpace, Failure::kShortWrite}) {
    for (const bool overwrite : {false, true}) {
      const std::string folder =
          absl::StrCat(TestFolder(), "/", static_cast<int>(failure), overwrite);
      std::filesystem::create_directories(folder);
      const std::string old = folder + "/old";
      ASSERT_EQ(SaveStep(old, 1, {}), absl::OkStatus());
      const int operations = AtEachOperation(failure, [&](FailingFiles& files, int at) {
        SCOPED_TRACE(absl::StrCat("operation ", at, ", overwrite ", overwrite));
        const std::string path = overwrite ? old : absl::StrCat(folder, "/new-", at);
        const absl::Status status =
            SaveStep(path, at + 2, {.overwrite = overwrite, .files = &files});
        const int64_t step = std::filesystem::exists(path) ? StepIn(path) : 0;
        if (status.ok()) {
          EXPECT_EQ(step, at + 2);
        } else {
          // The one that was there, or the new one where the rename could not be made durable.
          EXPECT_THAT(step, ::testing::AnyOf(overwrite ? 1 : 0, at + 2)) << status;
          EXPECT_EQ(CountTemporaries(folder), 0) << status;
        }
        EXPECT_GT(StepIn(old), 0);
        if (!overwrite) return;
        ASSERT_EQ(SaveStep(old, 1, {.overwrite = true}), absl::OkStatus());
      });
      // 4 files of data and one index: created, written, synced and closed; directories.
      EXPECT_GT(operations, 20);
    }
  }
}

TEST(Crash, ADeadProcessLeavesTheOldCheckpointOrTheNew) {
  for (const bool overwrite : {false, true}) {
    const std::string folder = absl::StrCat(TestFolder(), "/", overwrite);
    std::filesystem::create_directories(folder);
    const std::string old = folder + "/old";
    ASSERT_EQ(SaveStep(old, 1, {}), absl::OkStatus());
    int deaths = 0, seen = 0;
    while (true) {
      const std::string path = overwrite ? old : absl::StrCat(folder, "/new-", deaths);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        FailingFiles files(Failure::kDeath, deaths);
        const absl::Status status = SaveStep(path, 2, {.overwrite = overwrite, .files = &files});
        ::_exit(status.ok() ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status));
      const int64_t step = std::filesystem::exists(path) ? StepIn(path) : 0;
      if (WEXITSTATUS(status) == 0) {
        EXPECT_EQ(step, 2);
        break;
      }
      ASSERT_EQ(WEXITSTATUS(status), testing::kDeathCode);
      EXPECT_THAT(step, ::testing::AnyOf(overwrite ? 1 : 0, 2)) << deaths;
      EXPECT_GT(StepIn(old), 0);
      seen += step == 2 ? 1 : 0;
      ++deaths;
      if (HasFailure()) return;
      if (!overwrite) continue;
      ASSERT_EQ(SaveStep(old, 1, {.overwrite = true}), absl::OkStatus());
    }
    EXPECT_GT(deaths, 20);
    EXPECT_GE(seen, 1);  // Deaths after the rename.
  }
}

}  // namespace
}  // namespace shardmesh::checkpoint
