// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of a run, and saves in the background.
#include "shardmesh/checkpoint/manager.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/testing/failing_files.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FailingFiles;
using testing::Failure;
using ::testing::HasSubstr;

void OnRanks(const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(3,
                     [&](Communicator& world) {
                       fn(DeviceMesh::Create(world, {{"dp", 3}}));
                     }),
            absl::OkStatus());
}

// A state whose every value is the step.
struct Values {
  explicit Values(const DeviceMesh& mesh)
      : x(Full(mesh, {17, 5}, DType::kF32, 0.0, {Shard(0)})),
        y(Full(mesh, {7}, DType::kF64, 0.0, {Replicate()})) {
    state.Add("x", x);
    state.Add("y", y);
    state.Bind("step", &step);
  }
  void Set(int64_t value) {
    step = value;
    FillInPlace(x, static_cast<double>(value));
    FillInPlace(y, static_cast<double>(value));
  }
  void Expect(int64_t value) const {
    EXPECT_EQ(step, value);
    for (const DTensor& tensor : {x, y}) {
      for (double element : tensor.local().ToVector<double>())
        EXPECT_EQ(element, static_cast<double>(value));
    }
  }
  DTensor x, y;
  int64_t step = 0;
  StateDict state;
};

std::unique_ptr<CheckpointManager> Opened(const std::string& directory, const DeviceMesh& mesh,
                                          const ManagerOptions& options) {
  auto manager = CheckpointManager::Open(directory, mesh.WorldGroup(), options);
  EXPECT_TRUE(manager.ok()) << manager.status();
  return manager.ok() ? *std::move(manager) : nullptr;
}

TEST(AsyncSaver, WritesWhatWasThereWhenItWasCalled) {
  const std::string folder = TestFolder();
  OnRanks([&](const DeviceMesh& mesh) {
    AsyncSaver saver;
    Values values(mesh);
    for (int64_t step = 1; step <= 4; ++step) {
      values.Set(step);
      // Each begins with the end of the one before.
      EXPECT_EQ(saver.Save(absl::StrCat(folder, "/", step), values.state), absl::OkStatus());
      values.Set(-step);
      EXPECT_GT(saver.stall_seconds(), 0);
      if (step > 1) {
        EXPECT_EQ(Load(absl::StrCat(folder, "/", step - 1), values.state, {.verify = true}),
                  absl::OkStatus());
        values.Expect(step - 1);
      }
    }
    EXPECT_EQ(saver.Wait(), absl::OkStatus());
    EXPECT_TRUE(saver.is_written());
    EXPECT_EQ(saver.Wait(), absl::OkStatus());
    EXPECT_EQ(Load(folder + "/4", values.state), absl::OkStatus());
    values.Expect(4);
  });
}

TEST(AsyncSaver, ErrorsComeWithTheNextCall) {
  const std::string folder = TestFolder();
  OnRanks([&](const DeviceMesh& mesh) {
    Values values(mesh);
    AsyncSaver saver;
    FailingFiles own(Failure::kNoSpace, mesh.LocalRank("dp") == 1 ? 1 : 100000);
    values.Set(1);
    // The second operation of rank 1 is a write.
    EXPECT_EQ(saver.Save(folder + "/failing", values.state, {.files = &own}), absl::OkStatus());
    const absl::Status status = saver.Save(folder + "/next", values.state);
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith("rank 1: cannot write to"));
    EXPECT_EQ(saver.Wait(), absl::OkStatus());
    // One that is never waited for is not there.
    EXPECT_EQ(saver.Save(folder + "/given-up", values.state), absl::OkStatus());
  });
  EXPECT_FALSE(std::filesystem::exists(folder + "/failing"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/next"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/given-up"));
}

TEST(CheckpointManager, KeepsTheLastAndEverySoManySteps) {
  const std::string folder = TestFolder();
  for (const bool async : {false, true}) {
    const std::string directory = absl::StrCat(folder, "/", async);
    OnRanks([&](const DeviceMesh& mesh) {
      const auto manager =
          Opened(directory, mesh, {.keep_last = 2, .keep_every = 4, .async = async});
      EXPECT_EQ(manager->Latest(), std::nullopt);
      Values values(mesh);
      for (int64_t step = 1; step <= 10; ++step) {
        values.Set(step);
        EXPECT_EQ(manager->Save(step, values.state), absl::OkStatus());
        values.Set(0);
      }
      EXPECT_EQ(manager->Wait(), absl::OkStatus());
      EXPECT_THAT(manager->Steps(), ElementsAre(4, 8, 9, 10));
      for (int64_t step : manager->Steps()) {
        EXPECT_EQ(Load(manager->PathOf(step), values.state), absl::OkStatus());
        values.Expect(step);
      }
      EXPECT_EQ(manager->Save(-1, values.state).code(), absl::StatusCode::kInvalidArgument);
    });
  }
}

TEST(CheckpointManager, PassesOverWhatIsNotWholeAndRemovesWhatWasLeft) {
  const std::string directory = TestFolder() + "/run";
  OnRanks([&](const DeviceMesh& mesh) {
    const auto manager = Opened(directory, mesh, {.keep_last = 9});
    Values values(mesh);
    for (int64_t step : {3, 5, 7, 8}) {
      values.Set(step);
      EXPECT_EQ(manager->Save(step, values.state), absl::OkStatus());
    }
  });
  namespace fs = std::filesystem;
  fs::resize_file(directory + "/step-8/shard-00002-of-00003.safetensors", 300);
  fs::remove(directory + "/step-7/shardmesh.index.json");
  fs::create_directories(directory + "/step-12");
  fs::create_directories(directory + "/step-0013");
  fs::create_directories(directory + "/.step-14.tmp-5-6-7");
  fs::create_directories(directory + "/.removing-2");
  std::ofstream(directory + "/notes.txt") << "mine";
  OnRanks([&](const DeviceMesh& mesh) {
    const auto manager = Opened(directory, mesh, {.keep_last = 1});
    EXPECT_THAT(manager->Steps(), ElementsAre(3, 5));
    EXPECT_EQ(manager->Latest(), 5);
    Values values(mesh);
    values.Set(8);
    EXPECT_EQ(manager->Save(8, values.state), absl::OkStatus());
    EXPECT_THAT(manager->Steps(), ElementsAre(8));
  });
  EXPECT_FALSE(fs::exists(directory + "/.step-14.tmp-5-6-7"));
  EXPECT_FALSE(fs::exists(directory + "/.removing-2"));
  EXPECT_TRUE(fs::exists(directory + "/notes.txt"));
}

TEST(CheckpointManager, IsForOneProcessAtATime) {
  const std::string directory = TestFolder() + "/run";
  OnRanks([&](const DeviceMesh& mesh) {
    const auto manager = Opened(directory, mesh, {});
    const auto second = CheckpointManager::Open(directory, mesh.WorldGroup(), {});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()),
                AllOf(HasSubstr("rank 0: "), HasSubstr("is in use by"),
                      HasSubstr(absl::StrCat("process ", ::getpid(), " on "))));
  });
  // Whoever had it is gone.
  OnRanks([&](const DeviceMesh& mesh) { Opened(directory, mesh, {}); });
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    OnRanks([&](const DeviceMesh& mesh) {
      const auto manager = Opened(directory, mesh, {});
      ::_exit(0);
    });
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  OnRanks([&](const DeviceMesh& mesh) { Opened(directory, mesh, {}); });
}

TEST(CheckpointManager, RefusesOptionsThatKeepNothing) {
  OnRanks([&](const DeviceMesh& mesh) {
    EXPECT_FALSE(CheckpointManager::Open("x", mesh.WorldGroup(), {.keep_last = 0}).ok());
    EXPECT_THAT(
        std::string(
            CheckpointManager::Open("/no/such/parent/x", mesh.WorldGroup(), {}).status().message()),
        HasSubstr("rank 0: cannot create directory '/no/such/parent/x'"));
  });
}

}  // namespace
}  // namespace shardmesh::checkpoint
