// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"

#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace shardmesh {
namespace {

TEST(Error, ThrowJoinsThePartsAndKeepsTheCode) {
  try {
    Throw(absl::StatusCode::kDeadlineExceeded, "rank ", 3, " waited ", 0.5, " s");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(error.message(), "rank 3 waited 0.5 s");
    EXPECT_STREQ(error.what(), "rank 3 waited 0.5 s");
    EXPECT_EQ(error.ToStatus(), absl::DeadlineExceededError("rank 3 waited 0.5 s"));
  }
}

// It became an OK status without a text.
TEST(Error, OfCodeOkKeepsItsTextAndIsAnError) {
  const Error error(absl::StatusCode::kOk, "lost");
  EXPECT_EQ(error.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(error.ToStatus(), absl::UnknownError("lost"));
  EXPECT_EQ(Catch([] { Throw(absl::StatusCode::kOk, "lost"); }), absl::UnknownError("lost"));
}

TEST(StatusOf, IsNeverOk) { EXPECT_EQ(StatusOf(nullptr).code(), absl::StatusCode::kInternal); }

TEST(Catch, GivesWhatWasThrownAsAStatus) {
  EXPECT_TRUE(Catch([] {}).ok());
  EXPECT_EQ(Catch([] { ThrowInvalid("axis ", 7); }), absl::InvalidArgumentError("axis 7"));
  EXPECT_EQ(Catch([] { throw std::runtime_error("disk"); }), absl::InternalError("disk"));
  EXPECT_EQ(Catch([] { throw std::bad_alloc(); }).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Catch([] { throw 5; }).code(), absl::StatusCode::kInternal);
}

TEST(ThrowIfError, IsTheInverseOfCatch) {
  const absl::Status status = absl::NotFoundError("no such file");
  EXPECT_EQ(Catch([&] { ThrowIfError(status); }), status);
  EXPECT_TRUE(Catch([] { ThrowIfError(absl::OkStatus()); }).ok());
}

}  // namespace
}  // namespace shardmesh
