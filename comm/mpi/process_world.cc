// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi/process_world.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/comm/internal/signature.h"

namespace shardmesh::mpi {

using internal::Patience;
using internal::PostedCall;

namespace {

using Clock = std::chrono::steady_clock;

// How long a waiter looks for news without giving up its core, and then without sleeping.
constexpr int kLooksBeforeYield = 64;
constexpr std::chrono::milliseconds kSpinTime(2);
constexpr std::chrono::microseconds kNap(50);
// How often a waiter asks whether those it waits for still live.
constexpr std::chrono::milliseconds kTimeBetweenRounds(100);
// How long transfers that had begun when the world failed may take to end.
constexpr std::chrono::milliseconds kTimeToSettle(500);

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

int MemberOf(const GroupIdentity& group, int rank) {
  const std::vector<int>& ranks = group.world_ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// Passes the time between two looks.
class Waiter {
 public:
  void Pause() {
    if (++looks_ <= kLooksBeforeYield) return;
    if (looks_ == kLooksBeforeYield + 1) spin_end_ = Clock::now() + kSpinTime;
    if (is_sleepy_ || (is_sleepy_ = Clock::now() > spin_end_)) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();
    }
  }
  /// Every kTimeBetweenRounds.
  bool IsTimeForRound() {
    if (looks_ <= kLooksBeforeYield || (!is_sleepy_ && looks_ % 64 != 0)) return false;
    const Clock::time_point now = Clock::now();
    if (now < next_round_) return false;
    next_round_ = now + kTimeBetweenRounds;
    return true;
  }

 private:
  int64_t looks_ = 0;
  bool is_sleepy_ = false;
  Clock::time_point spin_end_, next_round_ = Clock::now() + kTimeBetweenRounds;
};

}  // namespace

// When the process began, in the kernel's ticks; 0 if it is not there or has ended.
uint64_t StartTimeOf(int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // The name may contain anything.
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;  // The 22nd of all.
  return std::strtoull(field.c_str(), nullptr, 10);
}

enum class ProcessWorld::Kind : uint32_t {
  kPost,   // PostHead and data.
  kWhole,  // The serialised call, after digests that differ.
  kFail,   // The code, and the message of the first cause.
  kLeave,  // Nothing more will be posted.
  kEnd,    // As kFail: with what the run ended, OK included.
};

struct ProcessWorld::Envelope {
  Kind kind;
  int32_t code = 0;
  int64_t run = 0;
  uint64_t group = 0;
  int64_t sequence = 0;
};

ProcessWorld::ProcessWorld(Transport& transport, int64_t run, std::vector<Process> processes,
                           absl::Duration timeout, bool has_thread)
    : transport_(transport),
      run_(run),
      processes_(std::move(processes)),
      timeout_(timeout),
      peers_(static_cast<size_t>(transport.size())),
      next_tags_(static_cast<size_t>(transport.size()), 0) {
  if (has_thread && transport.allows_threads()) thread_ = std::thread([this] { RunThread(); });
}

ProcessWorld::~ProcessWorld() {
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

// Moves what is in flight while the rank computes.
void ProcessWorld::RunThread() {
  while (true) {
    bool is_busy = false;
    {
      const Lock lock(mutex_);
      if (ends_) return;
      is_busy = !active_.empty();
      if (is_busy) ProgressLocked();
    }
    std::this_thread::sleep_for(is_busy ? kNap : 10 * kNap);
  }
}

// ---- messages -----------------------------------------------------------------------------------

void ProcessWorld::SendTo(int rank, Kind kind, const Exchange* exchange, std::string_view body) {
  Envelope envelope = {kind, static_cast<int32_t>(cause_.raw_code()), run_};
  if (exchange != nullptr) {
    envelope.group = exchange->group().id;
    envelope.sequence = exchange->sequence();
  }
  std::string bytes;
  bytes.reserve(sizeof(envelope) + body.size());
  bytes.append(reinterpret_cast<const char*>(&envelope), sizeof(envelope));
  bytes += body;
  transport_.Send(rank, std::move(bytes));
}

void ProcessWorld::Take(const Message& message) {
  Envelope envelope;
  std::memcpy(&envelope, message.bytes.data(), sizeof(envelope));
  const std::string_view body = std::string_view(message.bytes).substr(sizeof(envelope));
  if (envelope.run != run_) {
    if (envelope.run > run_) early_.push_back(message);
    return;  // Else of a run that a process has given up.
  }
  const auto found = active_.find(Key{envelope.group, envelope.sequence});
  switch (envelope.kind) {
    case Kind::kPost:
      if (found != active_.end()) {
        Deliver(*found->second, message.sender, body);
      } else {
        parked_[Key{envelope.group, envelope.sequence}].push_back(
            {message.sender, std::string(body)});
      }
      return;
    case Kind::kWhole:
      if (found != active_.end()) CompareWhole(*found->second, message.sender, body);
      return;
    case Kind::kFail:
      FailLocked(static_cast<absl::StatusCode>(envelope.code), std::string(body), /*tell=*/false);
      return;
    case Kind::kLeave:
      peers_[message.sender].has_left = true;
      return;
    case Kind::kEnd:
      peers_[message.sender].has_ended = true;
      peers_[message.sender].end =
          absl::Status(static_cast<absl::StatusCode>(envelope.code), View(body));
      return;
  }
}

void ProcessWorld::Deliver(Exchange& exchange, int rank, std::string_view post) {
  if (exchange.Arrive(MemberOf(exchange.group(), rank), post)) return;
  SendTo(rank, Kind::kWhole, &exchange, internal::Serialize(exchange.call()));
}

// Both sides do this, and say the same.
void ProcessWorld::CompareWhole(Exchange& exchange, int rank, std::string_view bytes) {
  const PostedCall theirs = internal::ParseCall(bytes);
  const PostedCall& ours = exchange.call();
  std::string difference = Difference(theirs, ours);
  if (rank > transport_.rank()) difference = Difference(ours, theirs);
  if (difference.empty() && std::holds_alternative<std::vector<AllToAllItem>>(ours.operands)) {
    const int member = MemberOf(exchange.group(), rank);
    difference = PairDifference(theirs, member, ours, exchange.member());
    if (difference.empty()) difference = PairDifference(ours, exchange.member(), theirs, member);
  }
  const bool is_first = transport_.rank() < rank;
  const std::string own =
                        absl::StrCat("rank ", transport_.rank(), " posted ", ours.name.ToString()),
                    other = absl::StrCat("rank ", rank, " posted ", theirs.name.ToString());
  FailLocked(absl::StatusCode::kInvalidArgument,
             absl::StrCat("mismatch: ", is_first ? own : other, ", ", is_first ? other : own, ": ",
                          difference, ", in ", exchange.ToString(), Histories()),
             /*tell=*/true);
}

void ProcessWorld::ProgressLocked() {
  if (has_ended_) return;  // What arrives now is for the next run.
  try {
    while (const std::optional<Message> message = transport_.Receive()) Take(*message);
    std::vector<Key> done;
    for (const auto& [key, exchange] : active_) {
      // In a failed world what both sides have agreed on still ends; nothing else does.
      if (exchange->Advance(transport_)) done.push_back(key);
    }
    for (const Key& key : done) active_.erase(key);
  } catch (...) {
    const absl::Status status = StatusOf(std::current_exception());
    FailLocked(status.code(),
               absl::StrCat("rank ", transport_.rank(), ": moving data: ", status.message()),
               /*tell=*/true);
  }
}

// ---- posting and waiting ------------------------------------------------------------------------

std::shared_ptr<Exchange> ProcessWorld::Post(ExecutionContext& context,
                                             const std::shared_ptr<const GroupIdentity>& group,
                                             int member, int64_t sequence, PostedCall call) {
  std::string record = absl::StrCat(sequence, " of \"", group->name, "\" ", call.name.ToString());
  const auto exchange =
      std::make_shared<Exchange>(context, group, member, sequence, std::move(call));
  const Lock lock(mutex_);
  if (failed_) {
    ThrowFailedLocked(absl::StrCat("; rank ", rank(), " was about to post ",
                                   exchange->call().name.ToString(), " as collective ", sequence,
                                   " of group \"", group->name, "\""));
  }
  history_[num_posts_++ % static_cast<int64_t>(history_.size())] = std::move(record);
  for (int m = 0; m < static_cast<int>(group->world_ranks.size()); ++m) {
    if (!exchange->DealsWith(m)) continue;
    const int peer = group->world_ranks[m];
    const int tag = next_tags_[peer];
    next_tags_[peer] = (tag + 1) % transport_.num_tags();
    SendTo(peer, Kind::kPost, exchange.get(), exchange->PostFor(m, tag));
  }
  const Key key = {group->id, sequence};
  active_.emplace(key, exchange);
  if (const auto parked = parked_.find(key); parked != parked_.end()) {
    for (const Parked& post : parked->second) Deliver(*exchange, post.rank, post.post);
    parked_.erase(parked);
  }
  ProgressLocked();
  return exchange;
}

void ProcessWorld::Wait(Exchange& exchange) {
  Waiter waiter;
  std::optional<Patience> patience;
  while (true) {
    Lock lock(mutex_);
    ProgressLocked();
    if (exchange.IsDone()) {
      exchange.Release();
      if (failed_) ThrowFailedLocked("");
      return;
    }
    if (!failed_ && waiter.IsTimeForRound()) {
      if (!patience) patience.emplace(absl::ToChronoNanoseconds(timeout_));
      CheckPeersOf(exchange);
      if (!failed_ && Clock::now() >= patience->NextLook() && patience->IsExhausted()) {
        FailWithTimeout(exchange);
      }
    }
    if (failed_) {
      const std::string hit =
          exchange.AllHaveArrived()
              ? std::string()
              : absl::StrCat("; rank ", rank(), " was in ", exchange.ToString());
      Settle(lock, exchange);
      ThrowFailedLocked(hit);
    }
    lock.unlock();
    waiter.Pause();
  }
}

bool ProcessWorld::Poll(Exchange& exchange, std::optional<Patience>& patience) {
  const Lock lock(mutex_);
  ProgressLocked();
  if (exchange.IsDone() || failed_) return true;
  const bool is_first = !patience.has_value();
  if (is_first) patience.emplace(absl::ToChronoNanoseconds(timeout_));
  if (Clock::now() < patience->NextLook()) return false;
  CheckPeersOf(exchange);
  if (!failed_ && patience->IsExhausted()) FailWithTimeout(exchange);
  return failed_;
}

// Ends what is in flight of an exchange that nobody waits for any more.
void ProcessWorld::Settle(Lock& lock, Exchange& exchange) {
  exchange.Detach();
  const Clock::time_point end = Clock::now() + kTimeToSettle;
  while (exchange.HasBegun() && !exchange.IsDone() && !has_ended_ && Clock::now() < end) {
    lock.unlock();
    std::this_thread::sleep_for(kNap);
    lock.lock();
    ProgressLocked();
  }
  if (exchange.HasBegun() && !exchange.IsDone()) exchange.Cancel();
}

void ProcessWorld::Drop(Exchange& exchange) noexcept {
  Lock lock(mutex_);
  try {
    ProgressLocked();
    exchange.Detach();
    // Peers that have posted take and give their data soon.
    Waiter waiter;
    while (exchange.HasBegun() && !exchange.IsDone() && !failed_) {
      lock.unlock();
      waiter.Pause();
      lock.lock();
      ProgressLocked();
    }
    if (failed_ && !exchange.IsDone()) Settle(lock, exchange);
  } catch (...) {
    const absl::Status status = StatusOf(std::current_exception());
    FailLocked(status.code(),
               absl::StrCat("rank ", rank(), " dropped ", exchange.ToString(),
                            " without waiting: ", status.message()),
               /*tell=*/true);
  }
}

// ---- failing ------------------------------------------------------------------------------------

void ProcessWorld::FailLocked(absl::StatusCode code, std::string message, bool tell) {
  if (failed_) return;
  cause_ = absl::Status(code, message);
  failed_.store(true, std::memory_order_release);
  if (!tell) return;
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) SendTo(r, Kind::kFail, nullptr, message);
  }
}

void ProcessWorld::FailWithTimeout(const Exchange& exchange) {
  FailLocked(absl::StatusCode::kDeadlineExceeded,
             absl::StrCat("rank ", rank(), " waited ", absl::FormatDuration(timeout_), " in ",
                          exchange.ToString(), Histories()),
             /*tell=*/true);
}

void ProcessWorld::Fail(const absl::Status& cause) {
  const Lock lock(mutex_);
  if (cause.ok()) {
    FailLocked(absl::StatusCode::kUnknown,
               absl::StrCat("rank ", rank(), ": failed the world with the status OK"),
               /*tell=*/true);
  } else {
    FailLocked(cause.code(), absl::StrCat("rank ", rank(), ": ", cause.message()), /*tell=*/true);
  }
}

void ProcessWorld::ThrowFailed() {
  const Lock lock(mutex_);
  ThrowFailedLocked("");
}

void ProcessWorld::ThrowFailedLocked(const std::string& hit) {
  if (first_hit_.empty()) first_hit_ = hit;
  throw Error(cause_.code(), absl::StrCat(cause_.message(), hit));
}

// A process that has ended without saying so, or that is not there any more.
bool ProcessWorld::IsAlive(int rank) const {
  const Process& process = processes_[rank];
  if (process.host != processes_[transport_.rank()].host) return true;  // Not known.
  if (kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH) return false;
  return StartTimeOf(process.pid) == process.start_time;
}

void ProcessWorld::CheckPeersOf(const Exchange& exchange) {
  const std::vector<int>& ranks = exchange.group().world_ranks;
  for (int m = 0; m < static_cast<int>(ranks.size()); ++m) {
    if (!exchange.DealsWith(m)) continue;
    const int peer = ranks[m];
    if (!exchange.HasArrived(m) && peers_[peer].has_left) {
      return FailLocked(absl::StatusCode::kAborted,
                        absl::StrCat("rank ", peer, " has returned while rank ", rank(),
                                     " waits in ", exchange.ToString(), Histories()),
                        /*tell=*/true);
    }
    if (!peers_[peer].has_left && !IsAlive(peer)) {
      return FailLocked(absl::StatusCode::kUnavailable,
                        absl::StrCat(Where(peer), " has ended while rank ", rank(), " waits in ",
                                     exchange.ToString(), Histories()),
                        /*tell=*/true);
    }
  }
}

std::string ProcessWorld::Where(int rank) const {
  return absl::StrCat("rank ", rank, " (process ", processes_[rank].pid, " on ",
                      processes_[rank].host.substr(0, processes_[rank].host.find(' ')), ")");
}

std::string ProcessWorld::Histories() const {
  std::string text = absl::StrCat("; last posted: rank ", transport_.rank(), ":");
  const auto kept = static_cast<int64_t>(history_.size());
  if (num_posts_ == 0) absl::StrAppend(&text, " nothing");
  const int64_t begin = std::max<int64_t>(0, num_posts_ - kept);
  for (int64_t i = begin; i < num_posts_; ++i)
    absl::StrAppend(&text, i == begin ? " " : ", ", history_[i % kept]);
  return text;
}

// ---- the end ------------------------------------------------------------------------------------

// Until all peers have `state`, or one of them is gone, or the time-out.
bool ProcessWorld::AwaitPeers(Lock& lock, bool Peer::*state) {
  Waiter waiter;
  Patience patience(absl::ToChronoNanoseconds(timeout_));
  while (true) {
    ProgressLocked();
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !(peers_[r].*state)) missing.push_back(r);
    }
    if (missing.empty()) return true;
    if (waiter.IsTimeForRound()) {
      for (const int r : missing) {
        if (IsAlive(r)) continue;
        FailLocked(absl::StatusCode::kUnavailable,
                   absl::StrCat(Where(r), " has ended without saying so", Histories()),
                   /*tell=*/true);
        return false;
      }
      if (Clock::now() >= patience.NextLook() && patience.IsExhausted()) {
        FailLocked(absl::StatusCode::kDeadlineExceeded,
                   absl::StrCat("rank ", rank(), " waited ", absl::FormatDuration(timeout_),
                                " for ", Where(missing[0]), " to return", Histories()),
                   /*tell=*/true);
        return false;
      }
    }
    lock.unlock();
    waiter.Pause();
    lock.lock();
  }
}

absl::Status ProcessWorld::End(bool& is_whole) {
  Lock lock(mutex_);
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) SendTo(r, Kind::kLeave, nullptr, "");
  }
  is_whole = AwaitPeers(lock, &Peer::has_left);
  ProgressLocked();
  // Posted here or there, and not by all.
  if (!active_.empty()) {
    FailLocked(absl::StatusCode::kAborted,
               absl::StrCat("all ranks have returned, but some never posted ",
                            active_.begin()->second->ToString(), Histories()),
               /*tell=*/true);
  } else if (!parked_.empty()) {
    FailLocked(
        absl::StatusCode::kAborted,
        absl::StrCat("all ranks have returned, but rank ", rank(), " never posted collective ",
                     parked_.begin()->first.second, " that rank ", parked_.begin()->second[0].rank,
                     " has posted", Histories()),
        /*tell=*/true);
  }
  if (is_whole) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) SendTo(r, Kind::kEnd, nullptr, std::string(cause_.message()));
    }
    is_whole = AwaitPeers(lock, &Peer::has_ended);
    // All say the same: what the first rank that failed has said.
    for (int r = 0; r < size() && is_whole; ++r) {
      const absl::Status& end = r == rank() ? cause_ : peers_[r].end;
      if (end.ok()) continue;
      if (!failed_ || r != rank()) cause_ = end;
      failed_ = true;
      break;
    }
  }
  for (auto& [key, exchange] : active_) {
    exchange->Cancel();
    // MPI may still read or write what is in flight to a process that is gone.
    static auto* const given_up = new std::vector<std::shared_ptr<Exchange>>;
    if (exchange->HasBegun()) given_up->push_back(exchange);
  }
  active_.clear();
  has_ended_ = true;
  transport_.PutBack(std::move(early_));  // Now: works may keep this world for long.
  if (failed_) return absl::Status(cause_.code(), absl::StrCat(cause_.message(), first_hit_));
  cause_ = absl::FailedPreconditionError("RunMpi has returned");
  failed_ = true;
  return absl::OkStatus();
}

}  // namespace shardmesh::mpi
