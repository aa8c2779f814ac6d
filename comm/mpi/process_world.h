// SPDX-License-Identifier: Apache-2.0
//
// What a process knows of the world of processes that it is a rank of: which collectives are in
// flight, what peers have posted, who has left, and the first failure. Whoever posts, waits or
// polls moves everything that is in flight.
#ifndef SHARDMESH_COMM_MPI_PROCESS_WORLD_H_
#define SHARDMESH_COMM_MPI_PROCESS_WORLD_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/comm/internal/patience.h"
#include "shardmesh/comm/mpi/exchange.h"
#include "shardmesh/comm/mpi/transport.h"

namespace shardmesh::mpi {

/// Where a rank runs.
struct Process {
  std::string host;  ///< Of the same name: its processes see each other's numbers.
  int64_t pid = 0;
  uint64_t start_time = 0;  ///< Tells it from a later process of the same number.
};

/// When process `pid` of this host began, in the kernel's ticks; 0 if it is not there.
uint64_t StartTimeOf(int64_t pid);

/// Thread-safe. Ranks are those of the world.
class ProcessWorld {
 public:
  /// `run` counts the worlds of this program, the same on all processes. A thread of its own moves
  /// what is in flight, if `has_thread`.
  ProcessWorld(Transport& transport, int64_t run, std::vector<Process> processes,
               absl::Duration timeout, bool has_thread);
  ~ProcessWorld();

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }

  /// Throws the first cause if the world has failed.
  std::shared_ptr<Exchange> Post(ExecutionContext& context,
                                 const std::shared_ptr<const GroupIdentity>& group, int member,
                                 int64_t sequence, internal::PostedCall call);
  /// Throws the first cause if the world has failed; nothing is written to the targets then.
  void Wait(Exchange& exchange);
  /// True if Wait would not block. Fails the world where Wait would.
  bool Poll(Exchange& exchange, std::optional<internal::Patience>& patience);
  /// Ends the interest in the result: no buffer is read or written afterwards.
  void Drop(Exchange& exchange) noexcept;

  bool HasFailed() const { return failed_.load(std::memory_order_acquire); }
  void ThrowIfFailed() {
    if (HasFailed()) ThrowFailed();
  }
  /// Becomes the first cause unless there is one, on every rank.
  void Fail(const absl::Status& cause);

  /// This rank posts nothing more. Waits for all others to say so as well, and agrees with them:
  /// OK, or the first cause. `is_whole` says whether all processes have answered.
  absl::Status End(bool& is_whole);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Key = std::pair<uint64_t, int64_t>;  // Group and sequence.

  enum class Kind : uint32_t;
  struct Envelope;
  struct Peer {
    bool has_left = false, has_ended = false;
    absl::Status end;  // What it ended with.
  };
  struct Parked {
    int rank;
    std::string post;
  };

  void SendTo(int rank, Kind kind, const Exchange* exchange, std::string_view body);
  void Take(const Message& message);
  void Deliver(Exchange& exchange, int rank, std::string_view post);
  void CompareWhole(Exchange& exchange, int rank, std::string_view bytes);
  /// Messages, then exchanges. Returns whether something has moved.
  void ProgressLocked();
  void RunThread();
  void CheckPeersOf(const Exchange& exchange);
  bool IsAlive(int rank) const;
  void FailLocked(absl::StatusCode code, std::string message, bool tell);
  void FailWithTimeout(const Exchange& exchange);
  [[noreturn]] void ThrowFailed();
  [[noreturn]] void ThrowFailedLocked(const std::string& hit);
  void Settle(Lock& lock, Exchange& exchange);
  std::string Histories() const;
  std::string Where(int rank) const;
  bool AwaitPeers(Lock& lock, bool Peer::*state);

  Transport& transport_;
  const int64_t run_;
  const std::vector<Process> processes_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  // Guarded by mutex_:
  absl::Status cause_;
  std::string first_hit_;
  std::vector<Peer> peers_;
  std::vector<int> next_tags_;  // Of transfers to each rank.
  absl::flat_hash_map<Key, std::shared_ptr<Exchange>> active_;
  absl::flat_hash_map<Key, std::vector<Parked>> parked_;  // Posted by peers, not yet here.
  std::array<std::string, 4> history_;
  int64_t num_posts_ = 0;
  std::vector<Message> early_;  // Of the next run.
  bool has_ended_ = false;      // End has returned; works may outlive it.
  bool ends_ = false;           // The thread does.
  std::thread thread_;
};

}  // namespace shardmesh::mpi

#endif  // SHARDMESH_COMM_MPI_PROCESS_WORLD_H_
