// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks of an in-process world, and one collective of it from the first post to the last
// read.
//
// All members post; the last one seals the collective: it is ready, and what it moves is fixed and
// cut into parts. Any thread that waits for it runs parts, whoever's memory they touch; when the
// last part has run it is done. So it depends on nobody's waiting order: once all have posted, one
// waiter is enough.
#ifndef SHARDMESH_COMM_INPROCESS_COLLECTIVE_H_
#define SHARDMESH_COMM_INPROCESS_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardmesh/comm/inprocess/movement.h"
#include "shardmesh/comm/inprocess/posted_call.h"

namespace shardmesh::inprocess {

class Collective;

struct GroupIdentity {
  std::string name;
  std::vector<int> world_ranks;  ///< Of each member.
};

/// Shared by its members' communicators. Everything but the identity is guarded by the world's
/// mutex.
struct Group {
  Group(std::string name, std::vector<int> world_ranks)
      : identity(std::make_shared<GroupIdentity>(
            GroupIdentity{std::move(name), std::move(world_ranks)})) {}

  /// Apart, for the collectives, which must not own the group that owns them.
  const std::shared_ptr<const GroupIdentity> identity;
  /// Collectives that some member has posted and some has not; the first has number `first_open`.
  std::deque<std::shared_ptr<Collective>> open;
  int64_t first_open = 0;
};

class Collective {
 public:
  Collective(std::shared_ptr<const GroupIdentity> group, int64_t sequence);

  const GroupIdentity& group() const { return *group_; }
  int64_t sequence() const { return sequence_; }
  int size() const { return static_cast<int>(members_.size()); }

  // ---- Under the world's mutex, until it is ready -------------------------------------------
  /// Takes what `member` posts. Returns "" or how it differs from what the first to post has
  /// posted.
  std::string Join(int member, PostedCall call);
  bool HasPosted(int member) const { return members_[member].has_posted; }
  bool AllHavePosted() const { return num_posted_ == size(); }
  /// After the last Join: makes it ready. Returns "" or what does not fit between two members.
  std::string Seal();
  /// Cuts the call of `member` loose from the caller's memory. Throws if there is no memory.
  void Detach(int member, ExecutionContext& context);
  /// "collective 3 of group "dp" (ranks 0, 2): all_reduce sum (op "grads"); arrived: 0; missing:
  /// 2".
  std::string ToString() const;

  // ---- Any thread ---------------------------------------------------------------------------
  bool IsReady() const { return phase_.load() != Phase::kPosting; }
  bool IsDone() const { return phase_.load() == Phase::kDone; }
  /// True if there is a part that nobody has taken yet.
  bool HasParts() const { return IsReady() && untaken_parts_.load(std::memory_order_relaxed) > 0; }
  /// Runs one part, if there is one to take, by preference one that concerns the memory of
  /// `member`. Returns true if this made the collective done.
  bool RunPart(int member);
  int num_parts() const { return movement_.num_parts(); }

  /// Threads about to sleep until this changes. Whoever changes it looks here after, so no wake-up
  /// is lost.
  std::atomic<int> sleepers = 0;

  // ---- By a member's own thread, when done or never to be ready -----------------------------
  /// Lets go of the member's buffers.
  void Release(int member) { members_[member].call.operands = BarrierRequest{}; }
  /// What a split gives to a member: its group (or null) and its position in it.
  std::pair<std::shared_ptr<Group>, int> SplitResult(int member) const {
    return split_results_[member];
  }

 private:
  enum class Phase { kPosting, kReady, kDone };

  std::string SealSplit();
  std::string SealAllToAll() const;
  void Finish();

  const std::shared_ptr<const GroupIdentity> group_;
  const int64_t sequence_;
  std::vector<Member> members_;
  int num_posted_ = 0;
  int first_to_post_ = -1;

  std::vector<std::pair<std::shared_ptr<Group>, int>> split_results_;
  Movement movement_;
  std::atomic<Phase> phase_ = Phase::kPosting;
  // Member m begins with the m-th of equal stretches of the parts and helps with the others later:
  // what a core has in its caches stays there from one collective to the next.
  int FirstPart(int stretch) const {
    return static_cast<int>(int64_t{stretch} * movement_.num_parts() / size());
  }
  int TakePart(int member);
  std::vector<std::atomic<int>> next_parts_;  // In each stretch.
  std::atomic<int> untaken_parts_ = 0;
  std::atomic<int> parts_run_ = 0;
};

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_COLLECTIVE_H_
