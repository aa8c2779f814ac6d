// SPDX-License-Identifier: Apache-2.0
//
// What an observer sees of a collective that its rank posts.
#ifndef SHARDMESH_COMM_COLLECTIVE_EVENT_H_
#define SHARDMESH_COMM_COLLECTIVE_EVENT_H_

#include <cstdint>
#include <string_view>

namespace shardmesh {

enum class CollectiveKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kSplit,
};

/// "all_gather".
constexpr std::string_view Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSplit:
      return "split";
  }
  return "?";
}

struct CollectiveEvent {
  std::string_view group;  ///< The communicator's name: the mesh axis, or merged axes "a+b".
  int group_size;
  CollectiveKind kind;
  std::string_view op;  ///< The caller's name for it, as "clip_grad_norm".
  /// Sent by this rank, in the dtype on the wire, without padding; p is the group size.
  ///   all-gather      (p - 1) x own source
  ///   reduce-scatter  all sources but the own
  ///   all-reduce      a reduce-scatter and an all-gather of the flattened elements in p chunks
  ///   all-to-all      all sends but the own
  ///   broadcast       (p - 1) x the tensors on the root, 0 elsewhere
  /// A batch is one event.
  int64_t bytes_sent;
};

class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  virtual void OnCollective(const CollectiveEvent& event) = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_COLLECTIVE_EVENT_H_
