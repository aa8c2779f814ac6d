// SPDX-License-Identifier: Apache-2.0
//
// Which backend a program gets, by its arguments and its environment. What processes do is in the
// tests that mpirun runs.
#include "shardmesh/comm/launch.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest() { Clear(); }
  ~LaunchTest() override { Clear(); }
  static void Clear() {
    for (const char* variable :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
          "SLURM_STEP_NUM_TASKS", "SHARDMESH_BACKEND"}) {
      unsetenv(variable);
    }
  }
  static void Set(const char* variable, const char* value) { setenv(variable, value, 1); }
  static std::string ErrorOf(int num_ranks, Backend backend = Backend::kAuto) {
    return std::string(Launch(
                           num_ranks, [](Communicator&) { FAIL(); }, {}, backend)
                           .message());
  }
};

TEST_F(LaunchTest, RanksAreThreadsWhereNoLauncherIs) {
  std::atomic<int> ranks = 0;
  EXPECT_EQ(Launch(3,
                   [&](Communicator& world) {
                     EXPECT_EQ(world.size(), 3);
                     ranks += 1 << world.rank();
                   }),
            absl::OkStatus());
  EXPECT_EQ(ranks, 7);
  EXPECT_FALSE(GetLaunchedProcess().by_launcher);
  EXPECT_EQ(GetLaunchedProcess().rank, 0);
}

TEST_F(LaunchTest, KnowsTheLaunchersVariables) {
  for (const auto& [rank, size] :
       {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        std::pair{"PMI_RANK", "PMI_SIZE"}, std::pair{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}) {
    Clear();
    Set(rank, "2");
    EXPECT_FALSE(GetLaunchedProcess().by_launcher) << rank;
    Set(size, "5");
    EXPECT_TRUE(GetLaunchedProcess().by_launcher) << rank;
    EXPECT_EQ(GetLaunchedProcess().rank, 2);
    EXPECT_EQ(GetLaunchedProcess().size, 5);
    Set(size, "five");
    EXPECT_FALSE(GetLaunchedProcess().by_launcher) << rank;
  }
}

TEST_F(LaunchTest, WhatDoesNotFitIsSaidBeforeAnythingRuns) {
  EXPECT_THAT(ErrorOf(4, Backend::kMpi), HasSubstr("mpirun -n 4"));
  Set("OMPI_COMM_WORLD_RANK", "0");
  Set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_THAT(ErrorOf(4), HasSubstr("needs 4 ranks, but 2 processes were started"));
  Set("SHARDMESH_BACKEND", "tcp");
  EXPECT_THAT(ErrorOf(4), HasSubstr("SHARDMESH_BACKEND: unknown backend 'tcp'"));
}

TEST_F(LaunchTest, ThreadsMayBeAskedForUnderALauncher) {
  Set("OMPI_COMM_WORLD_RANK", "1");
  Set("OMPI_COMM_WORLD_SIZE", "2");
  std::atomic<int> ranks = 0;
  const auto count = [&](Communicator&) { ++ranks; };
  EXPECT_EQ(Launch(4, count, {}, Backend::kInprocess), absl::OkStatus());
  Set("SHARDMESH_BACKEND", "inprocess");
  EXPECT_EQ(Launch(4, count), absl::OkStatus());
  EXPECT_EQ(ranks, 8);
}

}  // namespace
}  // namespace shardmesh
