// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tests/fuzz/fault.h"

#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/testing/failing_system.h"
#include "shardmesh/comm/testing/sample_tensors.h"

namespace shardmesh::testing {
namespace {

using std::chrono::milliseconds;

// Beyond the time-out of runs of this kind.
constexpr milliseconds kLateness(900);

constexpr std::array<std::string_view, kNumFaultKinds> kNames = {
    "none",       "throw",      "fail_world",       "leave",      "late",           "drop_extra",
    "poll_extra", "wait_extra", "no_tensor_memory", "no_threads", "throw_and_retry"};

Tensor Values(ExecutionContext& context, std::vector<double> values) {
  const Dims shape = {static_cast<int64_t>(values.size())};
  return Tensor::FromValues<double>(context, shape, values);
}

}  // namespace

std::string_view Name(FaultKind kind) { return kNames[static_cast<int>(kind)]; }

std::string Fault::ToString() const {
  return absl::StrCat(std::string(Name(kind)), " (variant ", variant, ") on rank ", rank,
                      " at point ", point, has_delays ? " with delays" : "");
}

uint64_t FaultInjector::Bits(uint64_t salt) const { return Mix(fault_.benign, salt); }

void FaultInjector::Pass() {
  const int point = num_points_++;
  if (fault_.has_delays) {
    const uint64_t bits = Bits(1000 * point + rank_);
    if (bits % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits / 8 % 900));
  }
  if (point != fault_.point) return;
  if (fault_.kind == FaultKind::kThrowAndRetry) {
    if (!can_retry_) return;
    has_fired_ = true;
    throw Retry();
  }
  if (rank_ == fault_.rank) Fire();
}

void FaultInjector::ThrowSomething() const {
  switch (fault_.variant % 4) {
    case 0:
      Throw(absl::StatusCode::kDataLoss, fault_.text);
    case 1:
      throw std::runtime_error(fault_.text);
    case 2:
      throw Error(absl::StatusCode::kOk, fault_.text);
    default:
      throw 42;
  }
}

Work FaultInjector::PostExtra() const {
  const std::array<Communicator*, 3> groups = {&mesh_.Group("dp"), &mesh_.Group("tp"),
                                               &mesh_.WorldGroup()};
  const Tensor x = Values(mesh_.context(), {1.5, -2, 0.25, 7, -1});
  return groups[fault_.variant % 3]->AllReduce({{x, x}}, ReduceOp::kMax, fault_.text);
}

void FaultInjector::Fire() {
  if (fault_.kind == FaultKind::kNone || fault_.kind == FaultKind::kNoThreads) return;
  has_fired_ = true;
  switch (fault_.kind) {
    case FaultKind::kThrow:
      ThrowSomething();
    case FaultKind::kFailWorld:
      return mesh_.WorldGroup().Fail(absl::CancelledError(fault_.text));
    case FaultKind::kLeave:
      throw Leave();
    case FaultKind::kLate:
      std::this_thread::sleep_for(kLateness);
      return;
    case FaultKind::kDropExtra:
      PostExtra();
      return;
    case FaultKind::kPollExtra: {
      Work work = PostExtra();
      while (!work.IsDone()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      return work.Wait();
    }
    case FaultKind::kWaitExtra:
      return PostExtra().Wait();
    case FaultKind::kNoTensorMemory:
      blocks_left = fault_.variant;
      return;
    default:
      return;
  }
}

void FaultInjector::PostBenign(int step) {
  const std::array<Communicator*, 3> groups = {&mesh_.Group("dp"), &mesh_.Group("tp"),
                                               &mesh_.WorldGroup()};
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) {
    Communicator& group = *groups[Bits(77 * step + i) % 3];  // The same on all ranks.
    const Tensor x = Values(mesh_.context(), {1.0 + rank_, -0.5 * step, 3});
    works.push_back(group.AllReduce({{x, x}}, ReduceOp::kSum, "benign"));
  }
  for (int i = 0; i < 3; ++i) {
    switch (Bits(991 * step + 31 * rank_ + i) % 3) {
      case 0:
        works[i].Wait();
        break;
      case 1:
        while (!works[i].IsDone()) std::this_thread::yield();
        works[i].Wait();
        break;
      default:
        works[i] = Work();
    }
  }
}

}  // namespace shardmesh::testing
