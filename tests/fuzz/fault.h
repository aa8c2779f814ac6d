// SPDX-License-Identifier: Apache-2.0
//
// One fault in one training run: what happens, on which rank, at which of the points that the
// training passes.
#ifndef SHARDMESH_TESTS_FUZZ_FAULT_H_
#define SHARDMESH_TESTS_FUZZ_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh::testing {

enum class FaultKind {
  kNone,
  kThrow,           ///< An Error, a std::exception, an int or an Error of code kOk.
  kFailWorld,       ///< Communicator::Fail, then on with the training.
  kLeave,           ///< The rank leaves the program as if all were well.
  kLate,            ///< The rank sleeps beyond the time-out.
  kDropExtra,       ///< The rank posts a collective that no other rank posts, and drops it,
  kPollExtra,       ///< or polls until it is done and waits,
  kWaitExtra,       ///< or waits for it.
  kNoTensorMemory,  ///< From here on the rank gets only a few new blocks of tensor memory, or none.
  kNoThreads,       ///< The system refuses a thread when the run starts.
  kThrowAndRetry,   ///< Every rank throws here, catches outside the step and does the step again.
};
inline constexpr int kNumFaultKinds = 11;

std::string_view Name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;
  int point = 0;        ///< How many points of the rank come before.
  int variant = 0;      ///< Which exception, group, or number of blocks or threads.
  std::string text;     ///< In the message of what is thrown or posted.
  uint64_t benign = 0;  ///< Seeds delays and polls that change nothing.
  bool has_delays = false;

  std::string ToString() const;
};

/// What kThrowAndRetry throws.
struct Retry {};
/// What kLeave throws: leaves everything between the point and the end of the program.
struct Leave {};

/// Counts the points that one rank passes and carries out the fault at its point.
class FaultInjector {
 public:
  FaultInjector(const DeviceMesh& mesh, int rank, const Fault& fault, std::atomic<bool>& has_fired)
      : mesh_(mesh), rank_(rank), fault_(fault), has_fired_(has_fired) {}

  /// A point.
  void Pass();
  /// Between AllowRetry(true) and AllowRetry(false), Retry may be thrown.
  void AllowRetry(bool allow) { can_retry_ = allow; }
  /// Collectives that all ranks post at the step's start and that each waits for, polls or drops.
  void PostBenign(int step);
  int num_points() const { return num_points_; }

 private:
  void Fire();
  [[noreturn]] void ThrowSomething() const;
  Work PostExtra() const;
  uint64_t Bits(uint64_t salt) const;

  const DeviceMesh& mesh_;
  const int rank_;
  const Fault& fault_;
  std::atomic<bool>& has_fired_;
  int num_points_ = 0;
  bool can_retry_ = false;
};

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_FUZZ_FAULT_H_
