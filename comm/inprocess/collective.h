// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks of an in-process world, and one collective of it from the first post to the last
// read.
//
// All members post. The last post seals the collective: it is ready, and what it moves is cut into
// parts. Any thread that waits for it runs parts, also those that move other members' memory; when
// the last part has run it is done. So the order of waiting does not matter: once all members have
// posted, one waiter is enough.
#ifndef SHARDMESH_COMM_INPROCESS_COLLECTIVE_H_
#define SHARDMESH_COMM_INPROCESS_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shardmesh/comm/inprocess/movement.h"
#include "shardmesh/comm/internal/posted_call.h"

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

  /// Shared with the collectives, which must not own the group that owns them.
  const std::shared_ptr<const GroupIdentity> identity;
  /// Collectives that some member has posted and some has not; the first has number `first_open`.
  std::deque<std::shared_ptr<Collective>> open;
  int64_t first_open = 0;
  bool is_remembered = false;  ///< By the world, which reports what is still open at the end.
  /// By members (positions), name and ordinal: whoever asks first makes it.
  std::map<std::tuple<std::vector<int>, std::string, int>, std::weak_ptr<Group>> subgroups;
};

class Collective {
 public:
  Collective(std::shared_ptr<const GroupIdentity> group, int64_t sequence);

  const GroupIdentity& group() const { return *group_; }
  int64_t sequence() const { return sequence_; }
  int size() const { return static_cast<int>(members_.size()); }

  // ---- Under the world's mutex, until it is ready -------------------------------------------
  /// Adds the call of `member`. Returns "" or how it differs from the call that was posted first.
  std::string Join(int member, PostedCall call);
  bool HasPosted(int member) const { return members_[member].has_posted; }
  bool AllHavePosted() const { return num_posted_ == size(); }
  /// After the last Join: makes it ready. Returns "" or what does not fit between two members.
  std::string Seal();
  /// Copies the sources of `member`, so that its buffers are free at once. Throws if there is no
  /// memory.
  void Detach(int member, ExecutionContext& context);
  /// "collective 3 of group "dp" (ranks 0, 2): all_reduce sum (op "grads"); arrived: 0; missing:
  /// 2".
  std::string ToString() const;

  // ---- Any thread ---------------------------------------------------------------------------
  bool IsReady() const { return phase_.load() != Phase::kPosting; }
  bool IsDone() const { return phase_.load() == Phase::kDone; }
  /// True if a part has not been taken yet.
  bool HasParts() const { return IsReady() && untaken_parts_.load(std::memory_order_relaxed) > 0; }
  /// Runs one part, if one is left, preferably of the stretch of `member`. Returns true if this
  /// made the collective done. A part that throws (a buffer was released) counts as run, so that
  /// nobody waits for it, after `on_error` was called.
  bool RunPart(int member, absl::FunctionRef<void(const absl::Status& error)> on_error);
  int num_parts() const { return movement_.num_parts(); }

  /// Number of threads that sleep until the phase changes. A thread that changes the phase reads
  /// this afterwards, so no wake-up is lost.
  std::atomic<int> sleepers = 0;

  // ---- The member's own thread, when done or when it will never be ready --------------------
  /// Frees the member's buffers.
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
  // The parts are split into one stretch per member. Member m takes parts of stretch m first and
  // then of the others, so that a core finds the same memory in its caches in every collective.
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
