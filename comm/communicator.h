// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks that exchange tensors. One contract for every backend.
//
//   Work work = comm.AllReduce({{.source = x, .target = x}}, ReduceOp::kSum, "clip_grad_norm");
//   ...                       // x must be neither read nor written here
//   work.Wait();              // x is the sum over all members; throws if the collective failed
//
// Contract:
//   * Every member calls the same collectives in the same order. Each call has a sequence number in
//     its group and a signature (kind, dtypes, the whole vector of counts, reduction, root, and the
//     owner in the caller's name for it: " of layers.3" in "fsdp_gather of layers.3"), which is
//     checked in every build: members that differ end in an error on every rank of the world. The
//     owner tells apart what has the same shape by chance.
//   * A collective posts and returns. Until Wait() returns, the caller must neither write sources
//     nor read or write targets. After Wait() no peer reads a source any more.
//   * A Work keeps its buffers alive. Dropping it without waiting is allowed: its targets are then
//     undefined, peers still get theirs, and the buffers can be reused at once (a source that a
//     peer still needs is copied). It must still be posted by every member.
//   * Counts may be uneven and zero. Tensors may be strided on every backend.
//   * Reductions run in rank order: bitwise repeatable, and the same bits on every member. bf16 and
//     f16 are accumulated in f32 and rounded once. Max and min propagate NaN. Bool cannot be
//     reduced.
//   * A collective is an in-place write of its targets: when it is posted, the version of each
//     storage under a target (tensor/storage.h) rises by one, on every member: also under a target
//     that is empty, on the root of a broadcast, and in a group of one. So backward refuses a value
//     that it saved before. A caller that receives the values that were there already takes the
//     bump back with Storage::RestoreVersion(). Neither Storage::Release() nor Refill() may be
//     called while a buffer is in use.
//   * Nothing waits for ever. A mismatch, an absent member, a member that threw or a time-out fails
//     the world: every pending and later Wait() on every rank throws one Error that names the first
//     cause, the group, the sequence number, the op, and which ranks arrived and which did not
//     (at most 16 of each).
#ifndef SHARDMESH_COMM_COMMUNICATOR_H_
#define SHARDMESH_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/base/reduce_op.h"
#include "shardmesh/comm/collective_event.h"
#include "shardmesh/comm/rank_context.h"
#include "shardmesh/comm/work.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

/// Part of an all-gather: targets[i] receives member i's source, so their shapes agree
/// (targets[rank()] may be the source itself: in place). The targets may be strided views of one
/// tensor.
struct AllGatherItem {
  Tensor source;
  std::vector<Tensor> targets;
};
/// Part of a reduce-scatter: target of member i = reduction over members m of m's sources[i]. The
/// target may be the own part of the sources.
struct ReduceScatterItem {
  std::vector<Tensor> sources;
  Tensor target;
};
/// Part of an all-reduce: target = reduction over members of source; both may be the same view.
struct AllReduceItem {
  Tensor source;
  Tensor target;
};
/// Part of an all-to-all: receives[i] = member i's sends[rank()]. Shapes of the pair agree; no send
/// overlaps a receive.
struct AllToAllItem {
  std::vector<Tensor> sends;
  std::vector<Tensor> receives;
};

/// Belongs to one rank and is used from that rank's thread. Group communicators made by Split share
/// the rank's context and the world's failure state.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// Position in the group, and the group's size.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  /// Rank in the world of each member, in group order.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  int world_rank() const { return world_ranks_[rank_]; }
  /// "world", or the name given to Split: "tp", "dp+cp".
  const std::string& name() const { return name_; }

  /// What the rank owns, whatever the group.
  const std::shared_ptr<RankContext>& rank_context() const { return context_; }
  ExecutionContext& context() const { return context_->execution; }
  TypeMap& locals() const { return context_->locals; }
  absl::Duration timeout() const { return context_->timeout; }
  const std::shared_ptr<RankLifetime>& lifetime() const { return context_->lifetime; }

  // Collectives: all members must call, in the same order. A batch is one collective. `op` names
  // the caller in traces and errors. Errors: throws Error(kInvalidArgument) for operands that do
  // not fit each other on this rank, before anything is posted; Error(...) of the first cause if
  // the world has failed.
  Work AllGather(std::vector<AllGatherItem> batch, std::string_view op = "");
  Work ReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                     std::string_view op = "");
  Work AllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction, std::string_view op = "");
  Work AllToAll(std::vector<AllToAllItem> batch, std::string_view op = "");
  /// In place: every member's `tensors` become those of member `root`.
  Work Broadcast(std::vector<Tensor> tensors, int root, std::string_view op = "");
  /// Returns when all members have called.
  void Barrier(std::string_view op = "barrier");

  /// Collective over this group. Members with one `color` form a group, ordered by (key, rank); a
  /// negative color gives null. Waits.
  virtual std::unique_ptr<Communicator> Split(int color, int key, std::string name) = 0;

  /// The group of `members` of this one, in their order, of which this rank is one. Local: only the
  /// members need to ask, each when it likes, and as often as the others for the same members and
  /// name. Errors: throws Error(kInvalidArgument) if a member is not in this group or given twice,
  /// or this rank is none.
  std::unique_ptr<Communicator> Subgroup(const std::vector<int>& members, std::string name);

  /// Fails the world with `cause` from this rank: all pending and later waits on every rank throw
  /// it. Thread-safe.
  virtual void Fail(const absl::Status& cause) = 0;

  /// Observers see every collective that this rank posts, on its own thread, in any group of the
  /// world but those of size 1. They must be removed before they are destroyed, and not from within
  /// OnCollective.
  void AddObserver(CollectiveObserver* observer);
  void RemoveObserver(CollectiveObserver* observer);

 protected:
  Communicator(int rank, std::vector<int> world_ranks, std::string name,
               std::shared_ptr<RankContext> context);

  // What a backend implements, for groups of more than one; operands have been checked.
  /// Throws the first cause if the world has failed.
  virtual void ThrowIfFailed() = 0;
  virtual Work DoAllGather(std::vector<AllGatherItem> batch, std::string_view op) = 0;
  virtual Work DoReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                               std::string_view op) = 0;
  virtual Work DoAllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                           std::string_view op) = 0;
  virtual Work DoAllToAll(std::vector<AllToAllItem> batch, std::string_view op) = 0;
  virtual Work DoBroadcast(std::vector<Tensor> tensors, int root, std::string_view op) = 0;
  virtual void DoBarrier(std::string_view op) = 0;
  /// `ordinal` counts the groups of these members and name that this communicator has made.
  virtual std::unique_ptr<Communicator> DoSubgroup(const std::vector<int>& members,
                                                   std::string name, int ordinal) = 0;

 private:
  /// Tells the observers, if there are any; `bytes_sent` is called then.
  void Observe(CollectiveKind kind, std::string_view op, absl::FunctionRef<int64_t()> bytes_sent);

  int rank_;
  std::vector<int> world_ranks_;
  std::string name_;
  std::shared_ptr<RankContext> context_;
  std::map<std::pair<std::vector<int>, std::string>, int> num_subgroups_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_COMMUNICATOR_H_
