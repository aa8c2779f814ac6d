// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/inprocess/world.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"

namespace shardmesh::inprocess {
namespace {

using Clock = std::chrono::steady_clock;

// How long a waiter looks for news before it sleeps: about what sleeping and waking would cost.
constexpr std::chrono::microseconds kSpinTime(60);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Passes the time between two looks. Ranks may outnumber cores, so it soon lets others run.
class Spinner {
 public:
  // False when it is time to sleep.
  bool Spin() {
    if (++looks_ <= 64) {
      Pause();
      return true;
    }
    if (looks_ == 65) end_ = Clock::now() + kSpinTime;
    std::this_thread::yield();
    return Clock::now() < end_;
  }

 private:
  int looks_ = 0;
  Clock::time_point end_;
};

}  // namespace

World::World(int size, absl::Duration timeout) : timeout_(timeout), ranks_(size) {}

// The mutex is held for well under a microsecond, so that sleeping on it would cost far more than
// trying again.
World::Lock World::LockWorld() {
  Lock lock(mutex_, std::try_to_lock);
  for (int tries = 0; !lock.owns_lock() && tries < 200; ++tries) {
    if (tries < 100) {
      Pause();
    } else {
      std::this_thread::yield();
    }
    (void)lock.try_lock();
  }
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

// ---- Posting --------------------------------------------------------------------------------

std::shared_ptr<Collective> World::Post(const std::shared_ptr<Group>& group, int member,
                                        int64_t sequence, PostedCall call) {
  const GroupIdentity& identity = *group->identity;
  const int rank = identity.world_ranks[member];
  std::shared_ptr<Collective> collective;
  {
    const Lock lock = LockWorld();
    if (failed_) {
      ThrowFailedLocked(absl::StrCat("; rank ", rank, " was about to post ", call.name.ToString(),
                                     " as collective ", sequence, " of group \"", identity.name,
                                     "\" (ranks ", RankList(identity.world_ranks), ")"));
    }
    if (!group->is_remembered) Remember(group);
    const auto index = static_cast<size_t>(sequence - group->first_open);
    if (index == group->open.size())
      group->open.push_back(std::make_shared<Collective>(group->identity, sequence));
    collective = group->open[index];
    RecordPost(rank, identity, sequence, call.name);
    std::string misfit = collective->Join(member, std::move(call));
    if (misfit.empty() && collective->AllHavePosted()) {
      // It is the first of the open ones: whoever posts a later one has posted this one.
      group->open.pop_front();
      ++group->first_open;
      misfit = collective->Seal();
    }
    if (!misfit.empty()) {
      FailLocked(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("mismatch: ", misfit, ", in ", collective->ToString(),
                              Histories(*collective)));
      collective->Release(member);
      ThrowFailedLocked("");
    }
    if (collective->IsReady() && (collective->IsDone() || collective->num_parts() > 1))
      WakeLocked(*collective);
  }
  // What is small costs less than telling others about it.
  if (collective->IsReady() && collective->num_parts() == 1) Help(*collective, member);
  return collective;
}

std::shared_ptr<Group> World::Subgroup(Group& parent, const std::vector<int>& members,
                                       const std::string& name, int ordinal) {
  const Lock lock = LockWorld();
  // Now and then, those that nobody has any more are forgotten.
  if (std::has_single_bit(parent.subgroups.size()))
    std::erase_if(parent.subgroups, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Group>& known = parent.subgroups[{members, name, ordinal}];
  // One that nobody has any more and in which nothing is open may begin anew: all members that had
  // it have left it.
  std::shared_ptr<Group> group = known.lock();
  if (group == nullptr) {
    std::vector<int> world_ranks;
    for (const int member : members) world_ranks.push_back(parent.identity->world_ranks[member]);
    group = std::make_shared<Group>(name, std::move(world_ranks));
    known = group;
  }
  return group;
}

void World::RecordPost(int rank, const GroupIdentity& group, int64_t sequence,
                       const CallName& call) {
  RankState& state = ranks_[rank];
  PostRecord& record = state.history[state.num_posts++ % state.history.size()];
  record.group = group.name;
  record.sequence = sequence;
  record.call = call;
}

// ---- Waiting --------------------------------------------------------------------------------

void World::RunPart(Collective& collective, int member) {
  const auto fail = [&](const absl::Status& error) {
    const Lock lock = LockWorld();
    FailLocked(error.code(), absl::StrCat("moving the data of ", collective.ToString(), ": ",
                                          error.message(), Histories(collective)));
  };
  const bool is_done = collective.RunPart(member, fail);
  // Done is stored before sleepers is read, and a sleeper does it the other way round: one of
  // them sees the other.
  if (!is_done || collective.sleepers.load() == 0) return;
  const Lock lock = LockWorld();
  WakeLocked(collective);
}

void World::Help(Collective& collective, int member) {
  while (collective.HasParts()) RunPart(collective, member);
}

void World::WakeLocked(const Collective& collective) {
  if (collective.sleepers.load() == 0) return;
  for (const int rank : collective.group().world_ranks) {
    if (ranks_[rank].blocked_on == &collective) ranks_[rank].wake.notify_one();
  }
}

void World::WaitUntilSettled(Collective& collective, int member) {
  Spinner spinner;
  while (!collective.IsDone()) {
    if (collective.HasParts()) {
      Help(collective, member);
    } else if (HasFailed() && !collective.IsReady()) {
      return;  // Nobody posts in a failed world, so it never will be ready.
    } else if (!spinner.Spin()) {
      Block(collective, collective.group().world_ranks[member]);
    }
  }
}

void World::Block(Collective& collective, int rank) {
  Lock lock = LockWorld();
  RankState& state = ranks_[rank];
  state.blocked_on = &collective;
  collective.sleepers.fetch_add(1);
  const auto has_news = [&] {
    return collective.IsDone() || collective.HasParts() || (HasFailed() && !collective.IsReady());
  };
  if (!has_news() && !collective.IsReady()) FailIfStuck(rank);
  Patience patience(absl::ToChronoNanoseconds(timeout_));
  while (!has_news()) {
    if (collective.IsReady()) {
      state.wake.wait(lock);  // For a part that a peer is running: no time-out needed.
      continue;
    }
    state.wake.wait_until(lock, patience.NextLook());
    if (!has_news() && !collective.IsReady() && patience.IsExhausted())
      FailWithTimeout(collective, rank);
  }
  collective.sleepers.fetch_sub(1);
  state.blocked_on = nullptr;
}

void World::Wait(Collective& collective, int member) {
  const int rank = collective.group().world_ranks[member];
  WaitUntilSettled(collective, member);
  collective.Release(member);
  if (!HasFailed()) return;
  const Lock lock = LockWorld();
  // A collective that all have reached has nothing to do with the failure.
  ThrowFailedLocked(collective.IsReady()
                        ? std::string()
                        : absl::StrCat("; rank ", rank, " was in ", collective.ToString()));
}

bool World::Poll(Collective& collective, int member, std::optional<PollRecord>& record) {
  if (collective.HasParts()) RunPart(collective, member);
  if (!collective.IsReady() && !HasFailed()) CheckPolled(collective, member, record);
  return collective.IsDone() || (HasFailed() && !collective.IsReady());
}

void World::CheckPolled(const Collective& collective, int member,
                        std::optional<PollRecord>& record) {
  const bool is_first = !record.has_value();
  if (is_first) record.emplace(PollRecord{Patience(absl::ToChronoNanoseconds(timeout_))});
  const bool is_exhausted = !is_first && record->patience.IsExhausted();
  const int num_left = num_left_.load(std::memory_order_acquire);
  if (!is_exhausted && num_left == record->num_left) return;
  record->num_left = num_left;
  const Lock lock = LockWorld();
  if (collective.IsReady()) return;
  const int rank = collective.group().world_ranks[member];
  FailIfMemberLeft(collective, rank);
  if (is_exhausted) FailWithTimeout(collective, rank);
}

void World::Drop(Collective& collective, int member, ExecutionContext& context) noexcept {
  const int rank = collective.group().world_ranks[member];
  {
    const Lock lock = LockWorld();
    if (!collective.IsReady() && !HasFailed()) {
      try {
        collective.Detach(member, context);
        return;
      } catch (...) {
        const absl::Status status = StatusOf(std::current_exception());
        FailLocked(status.code(), absl::StrCat("rank ", rank, " dropped ", collective.ToString(),
                                               " without waiting: ", status.message()));
      }
    }
  }
  // Ready, which ends soon, or never to be ready.
  WaitUntilSettled(collective, member);
  collective.Release(member);
}

// ---- Failing --------------------------------------------------------------------------------

void World::FailLocked(absl::StatusCode code, std::string message) {
  if (failed_) return;
  cause_ = absl::Status(code, message);
  failed_.store(true, std::memory_order_release);
  for (RankState& state : ranks_) state.wake.notify_one();
  rank_left_or_failed_.notify_all();
}

void World::FailWithTimeout(const Collective& collective, int rank) {
  FailLocked(absl::StatusCode::kDeadlineExceeded,
             absl::StrCat("rank ", rank, " waited ", absl::FormatDuration(timeout_), " in ",
                          collective.ToString(), Histories(collective)));
}

void World::ThrowFailed() {
  const Lock lock = LockWorld();
  ThrowFailedLocked("");
}

void World::ThrowFailedLocked(const std::string& hit) {
  if (first_hit_.empty()) first_hit_ = hit;
  throw Error(cause_.code(), absl::StrCat(cause_.message(), hit));
}

void World::Fail(int rank, const absl::Status& cause) {
  const Lock lock = LockWorld();
  if (cause.ok()) {
    FailLocked(absl::StatusCode::kUnknown,
               absl::StrCat("rank ", rank, ": failed the world with the status OK"));
  } else {
    FailLocked(cause.code(), absl::StrCat("rank ", rank, ": ", cause.message()));
  }
}

void World::Leave(int rank) {
  const Lock lock = LockWorld();
  ranks_[rank].has_left = true;
  num_left_.fetch_add(1, std::memory_order_release);
  rank_left_or_failed_.notify_all();
  if (failed_) return;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Collective* const collective = ranks_[r].blocked_on;
    if (collective != nullptr && !collective->IsReady()) FailIfStuck(static_cast<int>(r));
  }
}

void World::FailIfMemberLeft(const Collective& collective, int rank) {
  for (int m = 0; m < collective.size(); ++m) {
    const int peer = collective.group().world_ranks[m];
    if (collective.HasPosted(m) || !ranks_[peer].has_left) continue;
    return FailLocked(absl::StatusCode::kAborted,
                      absl::StrCat("rank ", peer, " has returned while rank ", rank, " waits in ",
                                   collective.ToString(), Histories(collective)));
  }
}

void World::FailIfStuck(int rank) {
  const Collective& collective = *ranks_[rank].blocked_on;
  FailIfMemberLeft(collective, rank);
  std::vector<bool> visited(ranks_.size());
  std::vector<int> path;
  if (!FindCycle(rank, rank, visited, path)) return;
  std::string message = "deadlock, each rank waits for the next:";
  const size_t num_named = std::min<size_t>(path.size(), kMaxRanksInMessages);
  for (size_t i = 0; i < num_named; ++i) {
    absl::StrAppend(&message, " rank ", path[i], " waits in ",
                    ranks_[path[i]].blocked_on->ToString(), ";");
  }
  message.pop_back();
  if (num_named < path.size())
    absl::StrAppend(&message, "; and ", path.size() - num_named, " more");
  FailLocked(absl::StatusCode::kAborted, absl::StrCat(message, Histories(collective)));
}

// Appends to `path` the ranks from `rank` on of which each is blocked in a collective that the next
// has not posted, and the last waits for `target`. A rank that is blocked posts nothing until its
// own collective is ready, so such a cycle never ends.
bool World::FindCycle(int rank, int target, std::vector<bool>& visited,
                      std::vector<int>& path) const {
  const Collective* const collective = ranks_[rank].blocked_on;
  if (collective == nullptr || collective->IsReady() || visited[rank]) return false;
  visited[rank] = true;
  path.push_back(rank);
  for (int m = 0; m < collective->size(); ++m) {
    if (collective->HasPosted(m)) continue;
    const int peer = collective->group().world_ranks[m];
    if (peer == target || FindCycle(peer, target, visited, path)) return true;
  }
  path.pop_back();
  return false;
}

std::string World::Histories(const std::vector<int>& ranks) const {
  std::string text = "; last posted:";
  const size_t num_named = std::min<size_t>(ranks.size(), kMaxRanksInMessages);
  for (size_t named = 0; named < num_named; ++named) {
    const RankState& state = ranks_[ranks[named]];
    absl::StrAppend(&text, named == 0 ? " rank " : "; rank ", ranks[named], ":");
    const auto kept = static_cast<int64_t>(state.history.size());
    if (state.num_posts == 0) absl::StrAppend(&text, " nothing");
    const int64_t begin = std::max<int64_t>(0, state.num_posts - kept);
    for (int64_t i = begin; i < state.num_posts; ++i) {
      const PostRecord& record = state.history[i % kept];
      absl::StrAppend(&text, i == begin ? " " : ", ", record.sequence, " of \"", record.group,
                      "\" ", record.call.ToString());
    }
    if (state.has_left) absl::StrAppend(&text, ", then returned");
  }
  if (num_named < ranks.size()) absl::StrAppend(&text, "; ...");
  return text;
}

std::string World::Histories(const Collective& collective) const {
  std::vector<int> ranks(size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (size() <= kMaxRanksInMessages) return Histories(ranks);
  // Members that have not posted first, then those that have, then the others.
  const auto move_to_front = [&](bool has_posted) {
    std::vector<bool> chosen(size());
    for (int m = 0; m < collective.size(); ++m) {
      if (collective.HasPosted(m) == has_posted) chosen[collective.group().world_ranks[m]] = true;
    }
    std::stable_partition(ranks.begin(), ranks.end(), [&](int rank) { return chosen[rank]; });
  };
  move_to_front(true);
  move_to_front(false);
  return Histories(ranks);
}

// ---- The end --------------------------------------------------------------------------------

std::vector<int> World::AwaitRanks() {
  Lock lock(mutex_);
  const auto all_have_left = [&] { return num_left_ == size(); };
  rank_left_or_failed_.wait(lock, [&] { return failed_ || all_have_left(); });
  Patience patience(absl::ToChronoNanoseconds(timeout_));
  while (!all_have_left()) {
    if (rank_left_or_failed_.wait_until(lock, patience.NextLook()) == std::cv_status::timeout &&
        patience.IsExhausted()) {
      break;
    }
  }
  std::vector<int> remaining;
  for (int rank = 0; rank < size(); ++rank) {
    if (!ranks_[rank].has_left) remaining.push_back(rank);
  }
  return remaining;
}

std::string World::DescribeStuck(const std::vector<int>& ranks) {
  const Lock lock = LockWorld();
  return absl::StrCat(Histories(ranks), "; the first failure: ", cause_.message());
}

void World::Remember(const std::shared_ptr<Group>& group) {
  if (groups_.size() >= max_groups_) {
    std::erase_if(groups_,
                  [](const auto& known) { return known.use_count() == 1 && known->open.empty(); });
    max_groups_ = std::max<size_t>(16, 2 * groups_.size());
  }
  groups_.push_back(group);
  group->is_remembered = true;
}

void World::FailIfLeftOpen() {
  for (const std::shared_ptr<Group>& group : groups_) {
    if (group->open.empty()) continue;
    const Collective& collective = *group->open.front();
    return FailLocked(absl::StatusCode::kAborted,
                      absl::StrCat("all ranks have returned, but some never posted ",
                                   collective.ToString(), Histories(collective)));
  }
}

absl::Status World::End() {
  const Lock lock = LockWorld();
  FailIfLeftOpen();
  groups_.clear();
  if (failed_) return absl::Status(cause_.code(), absl::StrCat(cause_.message(), first_hit_));
  FailLocked(absl::StatusCode::kFailedPrecondition, "RunRanks has returned");
  return absl::OkStatus();
}

}  // namespace shardmesh::inprocess
