// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of an in-process world share: one failure, who is running, who waits for what.
// Everything that blocks or fails goes through here.
#ifndef SHARDMESH_COMM_INPROCESS_WORLD_H_
#define SHARDMESH_COMM_INPROCESS_WORLD_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/comm/inprocess/collective.h"

namespace shardmesh::inprocess {

/// Thread-safe. `rank` is a rank of the world, `member` a position in the group of a collective.
class World {
 public:
  World(int size, absl::Duration timeout);

  absl::Duration timeout() const { return timeout_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  /// Posts `call` as collective `sequence` of the group. Throws the first cause if the world has
  /// failed or if the call does not fit what another member posted, which fails the world.
  std::shared_ptr<Collective> Post(const std::shared_ptr<Group>& group, int member,
                                   int64_t sequence, PostedCall call);

  /// Helps until the collective is done and lets go of the member's buffers. Throws the first cause
  /// if the world has failed; then too no thread touches the buffers any more.
  void Wait(Collective& collective, int member);
  /// Helps a little. True if Wait would not block.
  bool Poll(Collective& collective, int member);
  /// Gives up waiting: no thread touches the buffers any more.
  void Drop(Collective& collective, int member, ExecutionContext& context) noexcept;

  bool HasFailed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the first cause, if there is one.
  void ThrowIfFailed() {
    if (HasFailed()) ThrowFailed();
  }
  /// Becomes the first cause unless there is one.
  void Fail(int rank, const absl::Status& cause);
  /// The rank posts nothing any more.
  void Leave(int rank);
  /// OK, or the first cause and which collective it hit first.
  absl::Status status();

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct PostRecord {
    std::string group;
    int64_t sequence = 0;
    CallName call;
  };
  struct RankState {
    bool has_left = false;
    Collective* blocked_on = nullptr;
    std::condition_variable wake;
    std::array<PostRecord, 4> history;  ///< Of the last posts, the latest at (num_posts - 1) % 4.
    int64_t num_posts = 0;
  };

  Lock LockWorld();
  [[noreturn]] void ThrowFailed();
  /// `hit` says what the failure kept the caller from, "; rank 0 was in ...".
  [[noreturn]] void ThrowFailedLocked(const std::string& hit);
  void FailLocked(absl::StatusCode code, std::string message);
  void Help(Collective& collective, int member);
  void WakeLocked(const Collective& collective);
  /// Helps and waits until the collective is done, or failed before it was ready.
  void WaitUntilSettled(Collective& collective, int member);
  /// Sleeps until there is a reason to look at the collective again.
  void Block(Collective& collective, int rank, std::chrono::steady_clock::time_point deadline);
  /// Fails the world if `rank`, blocked, waits for a rank that has left or, over other blocked
  /// ranks, for itself.
  void FailIfStuck(int rank);
  bool FindCycle(int rank, int target, std::vector<bool>& visited, std::vector<int>& path) const;
  void RecordPost(int rank, const GroupIdentity& group, int64_t sequence, const CallName& call);
  /// "; last posted: rank 0: 3 of "dp" all_gather (op "x"), ...; rank 1: ...".
  std::string Histories() const;

  const absl::Duration timeout_;
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  // Guarded by mutex_:
  absl::Status cause_;
  std::string first_hit_;
  std::vector<RankState> ranks_;
};

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_WORLD_H_
