// SPDX-License-Identifier: Apache-2.0
//
// A file system that is really full. Needs the right to mount one.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int kRanks = 4;

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return static_cast<bool>(file);
}

// Mounts a file system of 8 MiB at `path`, in a namespace of this process: it is gone with it.
// Returns why not, or "".
std::string MountSmall(const std::string& path) {
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
      return absl::StrCat("unshare: ", std::strerror(errno));
    if (!WriteTo("/proc/self/setgroups", "deny") ||
        !WriteTo("/proc/self/uid_map", absl::StrCat("0 ", user, " 1")) ||
        !WriteTo("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"))) {
      return "the user has no id in a new namespace";
    }
  }
  // So that no other process sees the mount.
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=8m") != 0) {
    return absl::StrCat("mount: ", std::strerror(errno));
  }
  return "";
}

// Of 2 MiB; all ranks' statuses.
std::vector<absl::Status> SaveValue(const std::string& path, double value) {
  std::vector<absl::Status> statuses(kRanks);
  EXPECT_EQ(RunRanks(kRanks,
                     [&](Communicator& world) {
                       const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", kRanks}});
                       StateDict state;
                       state.Add("w", Full(mesh, {512, 1024}, DType::kF32, value, {Shard(0)}));
                       statuses[world.rank()] = Save(path, state);
                     }),
            absl::OkStatus());
  return statuses;
}

double LoadedValue(const std::string& path) {
  ExecutionContext context;
  const Tensor x = Tensor::Empty(context, {512, 1024}, DType::kF32);
  StateDict state;
  state.Add("w", x);
  const absl::Status status = Load(path, state, {.verify = true});
  EXPECT_EQ(status, absl::OkStatus());
  const std::vector<double> values = x.ToVector<double>();
  for (double value : values) EXPECT_EQ(value, values[0]);
  return values[0];
}

TEST(FullDisk, IsTheSameErrorOnAllRanksAndTheRunGoesOnOnceThereIsSpace) {
  const std::string folder = TestFolder() + "/small";
  std::filesystem::create_directories(folder);
  if (const std::string why = MountSmall(folder); !why.empty())
    GTEST_SKIP() << "needs the right to mount a tmpfs: " << why;

  for (const absl::Status& status : SaveValue(folder + "/old", 1.0))
    ASSERT_EQ(status, absl::OkStatus());
  ASSERT_TRUE(WriteTo(folder + "/other", std::string(5 * kMiB, 'x')));
  const std::vector<absl::Status> statuses = SaveValue(folder + "/new", 2.0);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/new"));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_FALSE(absl::StartsWith(entry.path().filename().string(), ".")) << entry.path();
  EXPECT_EQ(LoadedValue(folder + "/old"), 1.0);

  std::filesystem::remove(folder + "/other");
  for (const absl::Status& status : SaveValue(folder + "/new", 3.0))
    EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(LoadedValue(folder + "/new"), 3.0);
  EXPECT_EQ(LoadedValue(folder + "/old"), 1.0);
}

}  // namespace
}  // namespace shardmesh::checkpoint
