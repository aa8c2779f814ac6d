// SPDX-License-Identifier: Apache-2.0
//
// Faults at random points of a 2-D training: a run never hangs, it ends with one first cause that
// names the fault, and the next run is bit for bit as if nothing had been.
//
//   fault_fuzz_test --seconds=25      # or --minutes=20; --seed=N begins there
//   fault_fuzz_test --seed=N --cases=1
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/testing/failing_system.h"
#include "shardmesh/comm/testing/sample_tensors.h"
#include "shardmesh/tests/fuzz/faulty_training.h"

namespace shardmesh::testing {

struct FuzzOptions {
  double seconds = 25;
  uint64_t seed = 1;
  int64_t cases = -1;  // Negative: as many as the time allows.
};
FuzzOptions fuzz_options;

namespace {

using Clock = std::chrono::steady_clock;

// Of runs in which a rank comes late, or waits or polls for what never comes; elsewhere nobody
// times out.
constexpr absl::Duration kShortTimeout = absl::Milliseconds(300);
// No run may take as long, on a machine with many other things to do.
constexpr std::chrono::seconds kHang(100);

struct FuzzCase {
  uint64_t seed;
  TrainingSetup setup;
  Fault fault;

  std::string ToString() const {
    return absl::StrCat("seed ", seed, ": ", fault.ToString(), ", ", setup.ToString());
  }
};

// Ends the process with the case's name if it hangs.
class Watchdog {
 public:
  explicit Watchdog(const FuzzCase& fuzz_case)
      : name_(fuzz_case.ToString()), thread_([this] { Watch(); }) {}
  ~Watchdog() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void Watch() {
    const Clock::time_point end = Clock::now() + kHang;
    while (!is_over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (Clock::now() < end) continue;
      std::fprintf(stderr, "HANG: %s\n", name_.c_str());
      std::abort();
    }
  }

  const std::string name_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

FuzzCase CaseOf(uint64_t seed, int num_points) {
  const auto draw = [&](int salt, int below) {
    return static_cast<int>(Mix(seed, 1000 + salt) % below);
  };
  FuzzCase result;
  result.seed = seed;
  TrainingSetup& setup = result.setup;
  setup.dp = draw(0, 4) == 0 ? 3 : 2;
  setup.sequence_parallel = draw(1, 2) == 0;
  setup.bf16 = draw(2, 3) == 0;
  setup.threads_per_rank = 1 + draw(3, 2);
  Fault& fault = result.fault;
  fault.kind = static_cast<FaultKind>(draw(4, kNumFaultKinds));
  // Late ranks cost a second each.
  if (fault.kind == FaultKind::kLate && draw(5, 4) != 0) fault.kind = FaultKind::kThrow;
  fault.rank = draw(6, setup.NumRanks());
  fault.point = draw(7, num_points + num_points / 20 + 1);
  fault.variant = draw(8, 12);
  if (fault.kind == FaultKind::kNoTensorMemory) fault.variant = draw(8, 4);
  fault.text = absl::StrCat("injected fault ", seed);
  fault.benign = Mix(seed, 5);
  fault.has_delays = draw(9, 3) == 0;
  // The other ranks may all come to wait for one that waits in its extra collective.
  if (fault.kind == FaultKind::kLate || fault.kind == FaultKind::kPollExtra ||
      fault.kind == FaultKind::kWaitExtra) {
    setup.timeout = kShortTimeout;
  }
  return result;
}

bool Contains(const absl::Status& status, std::string_view text) {
  return status.message().find(absl::string_view(text.data(), text.size())) !=
         absl::string_view::npos;
}

// Whether the run ended as the fault, if it took effect, must make it end; "" or what is wrong.
std::string WrongEnd(const FuzzCase& fuzz_case, const TrainingResult& result, bool took_effect) {
  const Fault& fault = fuzz_case.fault;
  const absl::Status& status = result.status;
  const auto expect = [&](bool holds, std::string_view what) {
    return holds ? std::string() : absl::StrCat(std::string(what), ", got ", status.ToString());
  };
  if (!took_effect) return expect(status.ok(), "expected OK");
  switch (fault.kind) {
    case FaultKind::kNone:
    case FaultKind::kThrowAndRetry:
      return expect(status.ok(), "expected OK");
    case FaultKind::kThrow: {
      const std::string text =
          fault.variant % 4 == 3 ? "an exception that is not a std::exception" : fault.text;
      return expect(
          absl::StartsWith(status.message(), absl::StrCat("rank ", fault.rank, ": ", text)),
          "expected the exception");
    }
    case FaultKind::kFailWorld:
      return expect(
          absl::StartsWith(status.message(), absl::StrCat("rank ", fault.rank, ": ", fault.text)),
          "expected the cause given to Fail");
    case FaultKind::kLeave:
      return expect(status.ok() || (status.code() == absl::StatusCode::kAborted &&
                                    Contains(status, "returned") &&
                                    Contains(status, absl::StrCat("rank ", fault.rank))),
                    "expected OK or the rank that has returned");
    case FaultKind::kLate:
      return expect(status.ok() || (status.code() == absl::StatusCode::kDeadlineExceeded &&
                                    Contains(status, "missing: ")),
                    "expected OK or a time-out");
    case FaultKind::kDropExtra:
    case FaultKind::kPollExtra:
    case FaultKind::kWaitExtra:
      return expect(!status.ok() && Contains(status, fault.text), "expected the extra collective");
    case FaultKind::kNoTensorMemory:
      return expect(status.code() == absl::StatusCode::kResourceExhausted &&
                        Contains(status, "out of memory") &&
                        Contains(status, absl::StrCat("rank ", fault.rank)),
                    "expected missing memory");
    case FaultKind::kNoThreads:
      return expect(
          status.code() == absl::StatusCode::kResourceExhausted && Contains(status, "cannot start"),
          "expected a thread that cannot be started");
  }
  return "an unknown kind";
}

// Every rank that did not come to the end has the one first cause.
std::string WrongRank(const Fault& fault, const TrainingResult& result) {
  for (size_t rank = 0; rank < result.by_rank.size(); ++rank) {
    const absl::Status& status = result.by_rank[rank];
    if (status.ok()) continue;
    // While the exception of a rank without memory unwinds, works are dropped whose sources cannot
    // be copied. That fails the world first.
    if (fault.kind == FaultKind::kNoTensorMemory && static_cast<int>(rank) == fault.rank &&
        Contains(result.status, absl::StrCat("rank ", rank, " dropped ")) &&
        Contains(status, "out of memory")) {
      continue;
    }
    // Without what the failure kept the rank from.
    const std::string cause(status.message().substr(0, status.message().find("; ")));
    if (!Contains(result.status, cause)) {
      return absl::StrCat("rank ", rank, " has another cause: ", status.ToString(),
                          ", the world's ", result.status.ToString());
    }
  }
  return "";
}

class FaultFuzz {
 public:
  // The case's run, then one without a fault. False if either is wrong.
  bool Run(uint64_t seed) {
    const FuzzCase fuzz_case = CaseOf(seed, NumPoints());
    SCOPED_TRACE(fuzz_case.ToString());
    ++counts_[std::string(Name(fuzz_case.fault.kind))];
    const Watchdog watchdog(fuzz_case);
    const int failed_before = failed_blocks;
    const TrainingResult result = TrainWithFault(fuzz_case.setup, fuzz_case.fault);
    const bool took_effect = TookEffect(fuzz_case, result, failed_blocks - failed_before);
    num_effective_ += took_effect;
    std::string wrong = WrongEnd(fuzz_case, result, took_effect);
    if (wrong.empty()) wrong = WrongRank(fuzz_case.fault, result);
    if (wrong.empty() && result.status.ok())
      wrong = WrongValues(fuzz_case, result, fuzz_case.fault.kind == FaultKind::kLeave);
    if (!wrong.empty()) {
      ADD_FAILURE() << wrong;
      return false;
    }
    Fault none;
    none.benign = Mix(seed, 6);
    TrainingSetup setup = fuzz_case.setup;
    setup.timeout = absl::Minutes(2);
    const TrainingResult next = TrainWithFault(setup, none);
    if (!next.status.ok()) wrong = absl::StrCat("the next run fails: ", next.status.ToString());
    if (wrong.empty()) wrong = WrongValues(fuzz_case, next, /*may_lack_ranks=*/false);
    if (!wrong.empty()) ADD_FAILURE() << "the next run: " << wrong;
    return wrong.empty();
  }

  std::string Counts() const {
    std::string text;
    int total = 0;
    for (const auto& [name, count] : counts_) {
      absl::StrAppend(&text, ", ", name, " ", count);
      total += count;
    }
    return absl::StrCat(total, " cases, ", num_effective_, " with an effect", text);
  }

 private:
  static bool TookEffect(const FuzzCase& fuzz_case, const TrainingResult& result,
                         int num_failed_blocks) {
    const TrainingSetup& setup = fuzz_case.setup;
    switch (fuzz_case.fault.kind) {
      case FaultKind::kNoTensorMemory:
        return num_failed_blocks > 0;
      case FaultKind::kNoThreads:
        return fuzz_case.fault.variant < setup.NumRanks() * setup.threads_per_rank;
      default:
        return result.has_fired;
    }
  }

  // The values that every run of the setup must give.
  const std::vector<double>& Reference(const TrainingSetup& setup) {
    std::vector<double>& values =
        references_[{setup.dp, setup.tp, setup.sequence_parallel, setup.bf16}];
    if (!values.empty()) return values;
    TrainingSetup reference = setup;
    reference.timeout = absl::Minutes(2);
    const TrainingResult result = TrainWithFault(reference, Fault());
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (result.status.ok()) values = result.values[0];
    return values;
  }

  std::string WrongValues(const FuzzCase& fuzz_case, const TrainingResult& result,
                          bool may_lack_ranks) {
    const std::vector<double>& expected = Reference(fuzz_case.setup);
    for (size_t rank = 0; rank < result.values.size(); ++rank) {
      const std::vector<double>& values = result.values[rank];
      if (values.empty() && may_lack_ranks) continue;
      if (values.size() != expected.size())
        return absl::StrCat("rank ", rank, " has ", values.size(), " values");
      if (std::memcmp(values.data(), expected.data(), values.size() * sizeof(double)) != 0)
        return absl::StrCat("rank ", rank, " has other values than a run without a fault");
    }
    return "";
  }

  int NumPoints() {
    if (num_points_ == 0) num_points_ = TrainWithFault(TrainingSetup(), Fault()).num_points;
    return num_points_;
  }

  int num_points_ = 0;
  int num_effective_ = 0;
  std::map<std::string, int> counts_;
  std::map<std::tuple<int, int, bool, bool>, std::vector<double>> references_;
};

TEST(FaultFuzz, EveryRunEndsWithItsCauseAndLeavesNothingBehind) {
  FaultFuzz fuzz;
  const Clock::time_point end =
      Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * fuzz_options.seconds));
  int num_wrong = 0;
  for (int64_t i = 0; i != fuzz_options.cases && Clock::now() < end && num_wrong < 5; ++i) {
    if (!fuzz.Run(fuzz_options.seed + i)) ++num_wrong;
  }
  std::cout << fuzz.Counts() << "\n";
}

// Reads "--name=value" arguments; what is not known is left to GoogleTest.
void ReadArguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = argument.substr(0, equals);
    const char* const value = argv[i] + equals + 1;
    if (name == "--seconds") fuzz_options.seconds = std::atof(value);
    if (name == "--minutes") fuzz_options.seconds = 60 * std::atof(value);
    if (name == "--seed") fuzz_options.seed = std::strtoull(value, nullptr, 10);
    if (name == "--cases") fuzz_options.cases = std::strtoll(value, nullptr, 10);
  }
}

}  // namespace
}  // namespace shardmesh::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  shardmesh::testing::ReadArguments(argc, argv);
  return RUN_ALL_TESTS();
}
