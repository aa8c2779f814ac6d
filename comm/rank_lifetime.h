// SPDX-License-Identifier: Apache-2.0
//
// Whether a rank still runs, and on which thread. Handles that may outlive their rank (meshes,
// tensors) share it, so that a late use is an error instead of a use after free.
//
//   mesh.CheckUsable("square");   // throws once RunRanks has returned, or from another rank
#ifndef SHARDMESH_COMM_RANK_LIFETIME_H_
#define SHARDMESH_COMM_RANK_LIFETIME_H_

#include <atomic>
#include <thread>

namespace shardmesh {

/// Made on the thread of the rank. Thread-safe.
class RankLifetime {
 public:
  explicit RankLifetime(int world_rank)
      : world_rank_(world_rank), thread_(std::this_thread::get_id()) {}

  int world_rank() const { return world_rank_; }
  /// The rank's communicators, context and locals exist until now.
  void End() { ended_.store(true, std::memory_order_relaxed); }
  bool ended() const { return ended_.load(std::memory_order_relaxed); }
  /// Whether the caller runs on the rank's thread and the rank has not ended.
  bool IsUsableHere() const { return std::this_thread::get_id() == thread_ && !ended(); }

 private:
  const int world_rank_;
  const std::thread::id thread_;
  std::atomic<bool> ended_{false};
};

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_RANK_LIFETIME_H_
