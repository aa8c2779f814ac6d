// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of an in-process world share: the first failure, which ranks are running, and what
// each of them waits for. Everything that blocks or fails goes through here.
#ifndef SHARDMESH_COMM_INPROCESS_WORLD_H_
#define SHARDMESH_COMM_INPROCESS_WORLD_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/comm/inprocess/collective.h"
#include "shardmesh/comm/internal/patience.h"

namespace shardmesh::inprocess {

using internal::Patience;

/// What one member knows about a collective from its earlier polls.
struct PollRecord {
  Patience patience;
  int num_left = 0;  ///< Of the world's ranks, at the last look for missing members.
};

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

  /// The group of these members of `parent`, one for all who ask for it.
  std::shared_ptr<Group> Subgroup(Group& parent, const std::vector<int>& members,
                                  const std::string& name, int ordinal);

  /// Runs parts until the collective is done and frees the member's buffers. Throws the first cause
  /// if the world has failed; no thread touches the buffers then either.
  void Wait(Collective& collective, int member);
  /// Runs at most one part. True if Wait would not block. Fails the world where Wait would: when
  /// polls go on beyond the time-out and when a missing member has left. `record` belongs to the
  /// member and this collective; the first poll fills it in.
  bool Poll(Collective& collective, int member, std::optional<PollRecord>& record);
  /// Ends the member's interest in the result: no thread touches its buffers afterwards.
  void Drop(Collective& collective, int member, ExecutionContext& context) noexcept;

  bool HasFailed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the first cause, if there is one.
  void ThrowIfFailed() {
    if (HasFailed()) ThrowFailed();
  }
  /// Becomes the first cause unless there is one.
  void Fail(int rank, const absl::Status& cause);
  /// Says that the rank will post nothing more.
  void Leave(int rank);
  /// Blocks until every rank has left or, after a failure, a time-out has passed. Returns the ranks
  /// that have not left.
  std::vector<int> AwaitRanks();
  /// "; last posted: ..." of `ranks`, and the first cause.
  std::string DescribeStuck(const std::vector<int>& ranks);
  /// After all ranks have left: OK, or the first cause and which collective it hit first. A
  /// collective that only some members have posted is a cause. Whatever is posted or waited for
  /// later throws.
  absl::Status End();

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
  /// Runs one part, if there is one, and wakes those who wait for the last.
  void RunPart(Collective& collective, int member);
  /// Runs parts until there are none.
  void Help(Collective& collective, int member);
  void WakeLocked(const Collective& collective);
  /// Helps and waits until the collective is done, or failed before it was ready.
  void WaitUntilSettled(Collective& collective, int member);
  /// Sleeps until there is a reason to look at the collective again.
  void Block(Collective& collective, int rank);
  /// Fails the world if a member that has left never posted the collective; `rank` waits for it.
  void FailIfMemberLeft(const Collective& collective, int rank);
  /// Fails the world if `rank`, blocked, waits for a rank that has left or, over other blocked
  /// ranks, for itself.
  void FailIfStuck(int rank);
  void FailWithTimeout(const Collective& collective, int rank);
  void FailIfLeftOpen();
  /// Poll's look at the clock and at the ranks that have left.
  void CheckPolled(const Collective& collective, int member, std::optional<PollRecord>& record);
  /// Makes the group one of groups_, and forgets those that nobody uses any more.
  void Remember(const std::shared_ptr<Group>& group);
  bool FindCycle(int rank, int target, std::vector<bool>& visited, std::vector<int>& path) const;
  void RecordPost(int rank, const GroupIdentity& group, int64_t sequence, const CallName& call);
  /// "; last posted: rank 0: 3 of "dp" all_gather (op "x"), ...; rank 1: ...".
  std::string Histories(const std::vector<int>& ranks) const;
  /// Of all ranks; in a large world of those that matter most to the collective.
  std::string Histories(const Collective& collective) const;

  const absl::Duration timeout_;
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::atomic<int> num_left_ = 0;  // Written under mutex_.
  // Guarded by mutex_:
  std::condition_variable rank_left_or_failed_;
  std::vector<std::shared_ptr<Group>> groups_;  // In which something was posted.
  size_t max_groups_ = 16;                      // Beyond this, unused groups are forgotten.
  absl::Status cause_;
  std::string first_hit_;
  std::vector<RankState> ranks_;
};

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_WORLD_H_
