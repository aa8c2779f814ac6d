// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/mpi_world.h"
#include "shardmesh/comm/nccl_world.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;

TEST(OptionalBackends, SayWhatIsMissing) {
  int ranks = 0;
  const absl::Status mpi = RunMpi([&](Communicator& world) { ranks = world.size(); });
  if (mpi.ok()) {  // Built with it: alone, as nobody has launched it.
    EXPECT_EQ(ranks, 1);
  } else {
    EXPECT_EQ(mpi.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(mpi.message()), HasSubstr("rebuild with --config=mpi"));
  }
  const absl::Status nccl = RunNccl(2, [](Communicator&) { FAIL(); });
  if (nccl.code() == absl::StatusCode::kUnavailable) {
    EXPECT_THAT(std::string(nccl.message()), HasSubstr("rebuild with --config=cuda"));
  } else {  // It runs nothing yet.
    EXPECT_EQ(nccl.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(nccl.message()), HasSubstr("not implemented yet (linked with "));
  }
}

}  // namespace
}  // namespace shardmesh
