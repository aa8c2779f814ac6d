// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/time_profile.h"

#include <thread>

#include "gtest/gtest.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {
namespace {

using std::chrono::milliseconds;

void Spend(ExecutionContext& context, TimeKind kind, int ms) {
  const TimeProfile::Span span(context, kind);
  std::this_thread::sleep_for(milliseconds(ms));
}

TEST(TimeProfile, CountsWhatHappensWhileItIsAlive) {
  ExecutionContext context;
  Spend(context, TimeKind::kGemm, 1);
  {
    const TimeProfile profile(context);
    EXPECT_EQ(profile.time(TimeKind::kGemm).count(), 0);
    Spend(context, TimeKind::kGemm, 2);
    Spend(context, TimeKind::kGemm, 3);
    Spend(context, TimeKind::kCommunication, 1);
    EXPECT_GE(profile.time(TimeKind::kGemm), milliseconds(5));
    EXPECT_GE(profile.time(TimeKind::kCommunication), milliseconds(1));
    EXPECT_EQ(profile.time(TimeKind::kOtherKernels).count(), 0);
  }
  EXPECT_EQ(context.time_profile(), nullptr);
  Spend(context, TimeKind::kGemm, 1);
}

TEST(TimeProfile, GivesATimeToTheOutermostSpanAlone) {
  ExecutionContext context;
  const TimeProfile profile(context);
  {
    const TimeProfile::Span span(context, TimeKind::kCommunication);
    Spend(context, TimeKind::kOtherKernels, 2);
  }
  EXPECT_GE(profile.time(TimeKind::kCommunication), milliseconds(2));
  EXPECT_EQ(profile.time(TimeKind::kOtherKernels).count(), 0);
  Spend(context, TimeKind::kOtherKernels, 1);  // No span is left open.
  EXPECT_GE(profile.time(TimeKind::kOtherKernels), milliseconds(1));
}

TEST(TimeProfile, Nests) {
  ExecutionContext context;
  const TimeProfile outer(context);
  {
    const TimeProfile inner(context);
    Spend(context, TimeKind::kGemm, 2);
    EXPECT_EQ(inner.time(TimeKind::kGemm), outer.time(TimeKind::kGemm));
  }
  const auto before = outer.time(TimeKind::kGemm);
  EXPECT_GE(before, milliseconds(2));
  Spend(context, TimeKind::kGemm, 1);
  EXPECT_GE(outer.time(TimeKind::kGemm), before + milliseconds(1));
}

TEST(TimeProfile, SeesKernelsByKind) {
  ExecutionContext context;
  const TimeProfile profile(context);
  const Tensor x = ops::Full(context, {37, 41}, DType::kF32, 0.5);
  const auto others = profile.time(TimeKind::kOtherKernels);
  EXPECT_GT(others.count(), 0);
  EXPECT_EQ(profile.time(TimeKind::kGemm).count(), 0);
  ops::MatMul(context, x, x.Transpose(0, 1));
  EXPECT_GT(profile.time(TimeKind::kGemm).count(), 0);
  EXPECT_EQ(profile.time(TimeKind::kOtherKernels), others);
}

}  // namespace
}  // namespace shardmesh
