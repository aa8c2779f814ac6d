// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/mpi_world.h"
#include "shardmesh/comm/nccl_world.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;

// Built with or without them, these answer; they run nothing yet.
void ExpectAbsent(const absl::Status& status, const char* config) {
  if (status.code() == absl::StatusCode::kUnavailable) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(config));
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not implemented yet (linked with "));
  }
}

TEST(OptionalBackends, SayWhatIsMissing) {
  const auto never = [](Communicator&) { FAIL(); };
  ExpectAbsent(RunMpi(never), "rebuild with --config=mpi");
  ExpectAbsent(RunNccl(2, never), "rebuild with --config=cuda");
}

}  // namespace
}  // namespace shardmesh
