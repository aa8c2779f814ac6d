// SPDX-License-Identifier: Apache-2.0
//
// The copies and reductions of a collective, straight from the memory of one member to that of
// another, cut into parts that any thread may run. No part reads or writes an element that another
// part writes, so parts may run concurrently and in any order.
#ifndef SHARDMESH_COMM_INPROCESS_MOVEMENT_H_
#define SHARDMESH_COMM_INPROCESS_MOVEMENT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "shardmesh/comm/internal/posted_call.h"

namespace shardmesh::inprocess {

using internal::BarrierRequest;
using internal::BroadcastRequest;
using internal::CallName;
using internal::Operands;
using internal::PostedCall;
using internal::SplitRequest;

/// A member of a group in one collective.
struct Member {
  bool has_posted = false;
  bool is_detached = false;  ///< Its targets must not be written.
  PostedCall call;
};

/// Made when all members have posted calls that fit; thread-safe from then on.
class Movement {
 public:
  Movement() = default;
  explicit Movement(std::span<const Member> members);

  /// 0 if there is nothing to move.
  int num_parts() const { return num_parts_; }
  void RunPart(int part, std::span<const Member> members) const;

 private:
  // Elements [begin, begin + count) of:
  //   all-gather      item's source of `from`, to all members;
  //   reduce-scatter  item's sources[to] of all members, to `to`;
  //   all-reduce      item's source of all members, to all;
  //   all-to-all      item's sends[to] of `from`, to `to`;
  //   broadcast       tensor `item` of `from`, to all.
  struct Segment {
    int item;
    int from;
    int to;
    int64_t begin;
    int64_t count;
  };

  // Calls fn(segment, bytes an element of it moves) for everything that moves, uncut.
  template <typename Fn>
  static void ForEachTransfer(std::span<const Member> members, const Fn& fn);
  static void Run(const Segment& segment, std::span<const Member> members);

  int num_parts_ = 0;
  // Part i has segments [part_ends_[i - 1], part_ends_[i]). Both are empty where one part is
  // everything.
  std::vector<Segment> segments_;
  std::vector<int64_t> part_ends_;
};

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_MOVEMENT_H_
