// SPDX-License-Identifier: Apache-2.0
//
// One collective of this process, from its post to the last byte.
//
// Every pair of members first tells each other in a message what it has posted. When both have, and
// it is the same, their data go straight from tensor to tensor: each sends what the other needs,
// and reduces what it gets in the order of ranks. Little data travels in the message itself. So no
// transfer begins before its peer is there, and nothing of a failed collective is left in MPI.
#ifndef SHARDMESH_COMM_MPI_EXCHANGE_H_
#define SHARDMESH_COMM_MPI_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/comm/internal/posted_call.h"
#include "shardmesh/comm/mpi/transport.h"
#include "shardmesh/tensor/execution_context.h"

namespace shardmesh::mpi {

/// Of a group, the same on all members.
struct GroupIdentity {
  uint64_t id;  ///< Of no other group of the world.
  std::string name;
  std::vector<int> world_ranks;  ///< Of each member.
};

/// What a member tells each other one of what it has posted, followed by `inline_bytes` of data.
struct PostHead {
  uint64_t digest = 0;               ///< internal::Digest
  uint64_t sends = 0, receives = 0;  ///< internal::DigestOfSends and ..Receives, of this pair.
  int32_t tag = 0;                   ///< Of the sender's transfers to this peer.
  int32_t has_inline_data = 0;       ///< All of them follow here.
};

/// Not thread-safe: guarded by the world's mutex.
class Exchange {
 public:
  Exchange(ExecutionContext& context, std::shared_ptr<const GroupIdentity> group, int member,
           int64_t sequence, internal::PostedCall call);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const GroupIdentity& group() const { return *group_; }
  int member() const { return member_; }
  int64_t sequence() const { return sequence_; }
  const internal::PostedCall& call() const { return call_; }

  /// The members that this one deals with: all others, but in a broadcast only the root does.
  bool DealsWith(int member) const { return peers_[member].is_needed; }
  bool HasArrived(int member) const { return member == member_ || peers_[member].has_arrived; }
  bool AllHaveArrived() const { return num_missing_ == 0; }

  /// What to tell `member`: a PostHead and perhaps data.
  std::string PostFor(int member, int tag);
  /// `member` has posted. Returns false if it is not the same.
  bool Arrive(int member, std::string_view post);

  /// Starts and finishes what it can. Returns whether all is done.
  bool Advance(Transport& transport);
  bool IsDone() const { return phase_ == static_cast<int>(phases_.size()); }

  /// The targets will not be written, nor the sources read, once what has begun is over
  /// (HasBegun): what has not reads copies. Throws if there is no memory.
  void Detach();
  /// Whether some transfer is in flight.
  bool HasBegun() const;
  /// Gives back all memory. Nothing may be in flight.
  void Release();
  /// Gives up what is in flight.
  void Cancel();

  /// Of a split: what each member passed, in order.
  const std::vector<internal::SplitRequest>& split_requests() const { return split_requests_; }

  /// "collective 3 of group "dp" (ranks 0, 2): all_reduce sum (op "grads"); arrived: 0; missing:
  /// 2".
  std::string ToString() const;

 private:
  // Contiguous tensors, sent to and received from each member; then `finish` runs.
  struct Phase {
    std::vector<std::vector<Tensor>> sends, receives;
    std::function<void()> finish;
  };
  struct Peer {
    bool is_needed = false, has_arrived = false, has_begun = false;
    int tag = 0;
    bool has_inline_data = false;
    std::string inline_data;
    std::vector<Transfer> transfers;
  };

  Phase& AddPhase();
  Tensor Flat(const Tensor& source) const;
  Tensor FlatResult(const Tensor& target) const;
  Tensor ScratchLike(const Tensor& tensor) const;
  void Reduce();
  void ShareChunks();
  void AllGather(const std::vector<AllGatherItem>& batch);
  void ReduceScatter(const std::vector<ReduceScatterItem>& batch);
  void AllReduce(const std::vector<AllReduceItem>& batch);
  void AllToAll(const std::vector<AllToAllItem>& batch);
  void Broadcast(const internal::BroadcastRequest& request);
  void Split(const internal::SplitRequest& request);
  int64_t BytesTo(int member) const;
  bool SendsInline(int member) const;
  void TakeInlineData(Peer& peer, int member);

  ExecutionContext& context_;
  const std::shared_ptr<const GroupIdentity> group_;
  const int member_;
  const int64_t sequence_;
  internal::PostedCall call_;
  std::vector<Peer> peers_;
  std::vector<int> tags_;  // Of transfers to each member.
  int num_missing_ = 0;
  uint64_t digest_;

  std::vector<Phase> phases_;
  int phase_ = 0;
  // Where results lie before they go to targets that are strided, or not at all (Detach).
  struct Result {
    Tensor flat, target;
  };
  std::vector<Result> results_;
  // Elements [begin, begin + count) of a result of a reduction, and what each member has of them.
  struct Sum {
    int64_t begin, count;
    std::vector<Tensor> summands;
  };
  std::vector<Sum> sums_;  // One for each result.
  bool is_detached_ = false;
  std::vector<internal::SplitRequest> split_requests_;
};

}  // namespace shardmesh::mpi

#endif  // SHARDMESH_COMM_MPI_EXCHANGE_H_
