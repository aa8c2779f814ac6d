// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"
#include "shardmesh/comm/internal/reduction.h"
#include "shardmesh/comm/internal/signature.h"
#include "shardmesh/comm/internal/strided_view.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh::mpi {
namespace {

using internal::StridedView;

// So little travels in the message that says what was posted: MPI copies that much anyway.
constexpr int64_t kMostInlineBytes = 4096;

void Copy(const Tensor& from, const Tensor& to) {
  const StridedView source(from);
  StridedView::Copy(source, StridedView(to), 0, source.elements());
}

char* BytesOf(const Tensor& tensor) { return static_cast<char*>(internal::OutputData(tensor)); }

struct Chunk {
  int64_t begin, count;
};

// The m-th of p chunks of n elements.
Chunk ChunkOf(int64_t n, int64_t m, int64_t p) {
  const int64_t chunk = (n + p - 1) / p, begin = std::min(n, m * chunk);
  return {begin, std::min(n, begin + chunk) - begin};
}

// One dim; `tensor` is contiguous.
Tensor Elements(const Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.TryView({tensor.NumElements()})->Narrow(0, begin, count);
}

}  // namespace

Exchange::Exchange(ExecutionContext& context, std::shared_ptr<const GroupIdentity> group,
                   int member, int64_t sequence, internal::PostedCall call)
    : context_(context),
      group_(std::move(group)),
      member_(member),
      sequence_(sequence),
      call_(std::move(call)),
      peers_(group_->world_ranks.size()),
      tags_(group_->world_ranks.size(), 0),
      digest_(internal::Digest(call_)) {
  const auto* broadcast = std::get_if<internal::BroadcastRequest>(&call_.operands);
  for (int m = 0; m < static_cast<int>(peers_.size()); ++m) {
    peers_[m].is_needed = m != member_ && (broadcast == nullptr || broadcast->root == m ||
                                           broadcast->root == member_);
    num_missing_ += peers_[m].is_needed ? 1 : 0;
  }
  std::visit(
      [&]<typename T>(const T& operands) {
        if constexpr (std::is_same_v<T, std::vector<AllGatherItem>>) AllGather(operands);
        if constexpr (std::is_same_v<T, std::vector<ReduceScatterItem>>) ReduceScatter(operands);
        if constexpr (std::is_same_v<T, std::vector<AllReduceItem>>) AllReduce(operands);
        if constexpr (std::is_same_v<T, std::vector<AllToAllItem>>) AllToAll(operands);
        if constexpr (std::is_same_v<T, internal::BroadcastRequest>) Broadcast(operands);
        if constexpr (std::is_same_v<T, internal::SplitRequest>) Split(operands);
        if constexpr (std::is_same_v<T, internal::BarrierRequest>) AddPhase();
      },
      call_.operands);
}

// ---- what is sent to whom -----------------------------------------------------------------------

Exchange::Phase& Exchange::AddPhase() {
  Phase& phase = phases_.emplace_back();
  phase.sends.resize(peers_.size());
  phase.receives.resize(peers_.size());
  return phase;
}

Tensor Exchange::ScratchLike(const Tensor& tensor) const {
  return Tensor::Empty(context_, tensor.shape(), tensor.dtype(), MemoryCategory::kCommunication);
}

// The tensor itself, or a contiguous copy.
Tensor Exchange::Flat(const Tensor& source) const {
  if (source.IsContiguous()) return source;
  const Tensor copy = ScratchLike(source);
  if (source.NumElements() > 0) Copy(source, copy);
  return copy;
}

// The tensor itself, or contiguous memory for it.
Tensor Exchange::FlatResult(const Tensor& target) const {
  return target.IsContiguous() ? target : ScratchLike(target);
}

void Exchange::AllGather(const std::vector<AllGatherItem>& batch) {
  Phase& phase = AddPhase();
  for (const AllGatherItem& item : batch) {
    const Tensor source = Flat(item.source);
    for (size_t m = 0; m < peers_.size(); ++m) {
      const Tensor& target = item.targets[m];
      if (static_cast<int>(m) == member_) {
        results_.push_back({item.source, target});
        continue;
      }
      phase.sends[m].push_back(source);
      results_.push_back({FlatResult(target), target});
      phase.receives[m].push_back(results_.back().flat);
    }
  }
}

void Exchange::ReduceScatter(const std::vector<ReduceScatterItem>& batch) {
  Phase& phase = AddPhase();
  for (const ReduceScatterItem& item : batch) {
    Sum sum = {0, item.target.NumElements(), {}};
    for (size_t m = 0; m < peers_.size(); ++m) {
      if (static_cast<int>(m) == member_) {
        sum.summands.push_back(Flat(item.sources[m]));
        continue;
      }
      phase.sends[m].push_back(Flat(item.sources[m]));
      sum.summands.push_back(ScratchLike(item.target));
      phase.receives[m].push_back(sum.summands.back());
    }
    sums_.push_back(std::move(sum));
    results_.push_back({FlatResult(item.target), item.target});
  }
  phase.finish = [this] { Reduce(); };
}

// Little: everybody gets everything, and reduces all of it. Much: member m reduces the m-th chunk
// and sends it to all others. The order of the reduction is that of the members in both cases.
void Exchange::AllReduce(const std::vector<AllReduceItem>& batch) {
  const auto p = static_cast<int64_t>(peers_.size());
  int64_t bytes = 0;
  for (const AllReduceItem& item : batch) bytes += item.source.Bytes();
  const bool is_little = bytes <= kMostInlineBytes;
  Phase& phase = AddPhase();
  for (const AllReduceItem& item : batch) {
    const Tensor source = Flat(item.source);
    const int64_t n = source.NumElements();
    const auto chunk_of = [&](int64_t m) { return is_little ? Chunk{0, n} : ChunkOf(n, m, p); };
    Sum sum = {chunk_of(member_).begin, chunk_of(member_).count, {}};
    for (int64_t m = 0; m < p; ++m) {
      if (m == member_) {
        sum.summands.push_back(Elements(source, sum.begin, sum.count));
        continue;
      }
      phase.sends[m].push_back(Elements(source, chunk_of(m).begin, chunk_of(m).count));
      sum.summands.push_back(ScratchLike(
          sum.summands.empty() ? Elements(source, sum.begin, sum.count) : sum.summands[0]));
      phase.receives[m].push_back(sum.summands.back());
    }
    sums_.push_back(std::move(sum));
    results_.push_back({FlatResult(item.target), item.target});
  }
  if (is_little) {
    phase.finish = [this] { Reduce(); };
    return;
  }
  phase.finish = [this] {
    Reduce();
    ShareChunks();
  };
  AddPhase();
}

void Exchange::Reduce() {
  for (size_t i = 0; i < sums_.size(); ++i) {
    const Sum& sum = sums_[i];
    const absl::InlinedVector<StridedView, 8> views(sum.summands.begin(), sum.summands.end());
    const StridedView target(Elements(results_[i].flat, sum.begin, sum.count));
    internal::Reduce(*call_.name.reduction, results_[i].flat.dtype(), {views.data(), views.size()},
                     {&target, 1}, 0, sum.count);
  }
}

// The second phase of an all-reduce: each member has reduced its chunk.
void Exchange::ShareChunks() {
  Phase& phase = phases_[1];
  for (size_t i = 0; i < sums_.size(); ++i) {
    const Tensor& flat = results_[i].flat;
    const auto p = static_cast<int64_t>(peers_.size());
    for (int64_t m = 0; m < p; ++m) {
      if (m == member_) continue;
      const Chunk chunk = ChunkOf(flat.NumElements(), m, p);
      phase.sends[m].push_back(Elements(flat, sums_[i].begin, sums_[i].count));
      phase.receives[m].push_back(Elements(flat, chunk.begin, chunk.count));
    }
  }
}

void Exchange::AllToAll(const std::vector<AllToAllItem>& batch) {
  Phase& phase = AddPhase();
  for (const AllToAllItem& item : batch) {
    for (size_t m = 0; m < peers_.size(); ++m) {
      const Tensor& target = item.receives[m];
      if (static_cast<int>(m) == member_) {
        results_.push_back({item.sends[m], target});
        continue;
      }
      phase.sends[m].push_back(Flat(item.sends[m]));
      results_.push_back({FlatResult(target), target});
      phase.receives[m].push_back(results_.back().flat);
    }
  }
}

void Exchange::Broadcast(const internal::BroadcastRequest& request) {
  Phase& phase = AddPhase();
  for (const Tensor& tensor : request.tensors) {
    if (request.root == member_) {
      const Tensor source = Flat(tensor);
      for (size_t m = 0; m < peers_.size(); ++m) {
        if (static_cast<int>(m) != member_) phase.sends[m].push_back(source);
      }
      continue;
    }
    results_.push_back({FlatResult(tensor), tensor});
    phase.receives[request.root].push_back(results_.back().flat);
  }
}

void Exchange::Split(const internal::SplitRequest& request) {
  AddPhase();
  split_requests_.resize(peers_.size());
  split_requests_[member_] = request;
}

int64_t Exchange::BytesTo(int member) const {
  int64_t bytes = 0;
  for (const Tensor& tensor : phases_[0].sends[member]) bytes += tensor.Bytes();
  return bytes;
}

bool Exchange::SendsInline(int member) const { return BytesTo(member) <= kMostInlineBytes; }

// ---- agreeing -----------------------------------------------------------------------------------

std::string Exchange::PostFor(int member, int tag) {
  tags_[member] = tag;
  PostHead head;
  head.digest = digest_;
  head.sends = internal::DigestOfSends(call_, member);
  head.receives = internal::DigestOfReceives(call_, member);
  head.tag = tag;
  head.has_inline_data = SendsInline(member) ? 1 : 0;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  if (const auto* split = std::get_if<internal::SplitRequest>(&call_.operands)) {
    const int32_t numbers[] = {split->color, split->key};
    bytes.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
    bytes += split->name;
  } else if (head.has_inline_data != 0) {
    for (const Tensor& tensor : phases_[0].sends[member]) {
      if (tensor.NumElements() > 0)
        bytes.append(BytesOf(tensor), static_cast<size_t>(tensor.Bytes()));
    }
  }
  return bytes;
}

bool Exchange::Arrive(int member, std::string_view post) {
  PostHead head;
  std::memcpy(&head, post.data(), sizeof(head));
  if (head.digest != digest_ || head.sends != internal::DigestOfReceives(call_, member) ||
      head.receives != internal::DigestOfSends(call_, member)) {
    return false;
  }
  Peer& peer = peers_[member];
  peer.has_arrived = true;
  peer.tag = head.tag;
  peer.has_inline_data = head.has_inline_data != 0;
  peer.inline_data = post.substr(sizeof(head));
  if (std::holds_alternative<internal::SplitRequest>(call_.operands)) {
    int32_t numbers[2];
    std::memcpy(numbers, peer.inline_data.data(), sizeof(numbers));
    split_requests_[member] = {numbers[0], numbers[1], peer.inline_data.substr(sizeof(numbers))};
  }
  --num_missing_;
  return true;
}

// ---- moving -------------------------------------------------------------------------------------

void Exchange::TakeInlineData(Peer& peer, int member) {
  const char* from = peer.inline_data.data();
  for (const Tensor& tensor : phases_[0].receives[member]) {
    if (tensor.NumElements() == 0) continue;
    std::memcpy(BytesOf(tensor), from, static_cast<size_t>(tensor.Bytes()));
    from += tensor.Bytes();
  }
  peer.inline_data.clear();
}

bool Exchange::Advance(Transport& transport) {
  while (!IsDone()) {
    const Phase& phase = phases_[phase_];
    bool is_over = true;
    for (int m = 0; m < static_cast<int>(peers_.size()); ++m) {
      Peer& peer = peers_[m];
      if (!peer.is_needed) continue;
      if (!peer.has_arrived) {
        is_over = false;
        continue;
      }
      if (!peer.has_begun) {
        peer.has_begun = true;
        const int rank = group_->world_ranks[m];
        if (phase_ == 0 && peer.has_inline_data) {
          TakeInlineData(peer, m);
        } else {
          for (const Tensor& tensor : phase.receives[m]) {
            if (tensor.NumElements() == 0) continue;
            peer.transfers.push_back(
                transport.StartReceive(rank, peer.tag, BytesOf(tensor), tensor.Bytes()));
          }
        }
        if (phase_ > 0 || !SendsInline(m)) {
          for (const Tensor& tensor : phase.sends[m]) {
            if (tensor.NumElements() == 0) continue;
            peer.transfers.push_back(
                transport.StartSend(rank, tags_[m], BytesOf(tensor), tensor.Bytes()));
          }
        }
      }
      while (!peer.transfers.empty() && peer.transfers.back().Test()) peer.transfers.pop_back();
      is_over &= peer.transfers.empty();
    }
    if (!is_over) return false;
    if (phase.finish) phase.finish();
    for (Peer& peer : peers_) peer.has_begun = false;
    ++phase_;
  }
  if (!is_detached_) {
    for (const Result& result : results_) {
      if (result.flat.NumElements() > 0) Copy(result.flat, result.target);
    }
  }
  return true;
}

bool Exchange::HasBegun() const {
  return phase_ > 0 || std::any_of(peers_.begin(), peers_.end(),
                                   [](const Peer& peer) { return !peer.transfers.empty(); });
}

void Exchange::Detach() {
  if (IsDone() || std::exchange(is_detached_, true) || phase_ > 0) return;
  const auto copy_of = [&](const Tensor& tensor) {
    const Tensor copy = ScratchLike(tensor);
    if (tensor.NumElements() > 0) Copy(tensor, copy);
    return copy;
  };
  Phase& phase = phases_[0];
  for (int m = 0; m < static_cast<int>(peers_.size()); ++m) {
    if (peers_[m].has_begun) continue;
    for (Tensor& tensor : phase.sends[m]) tensor = copy_of(tensor);
    if (!sums_.empty()) continue;  // What is reduced is received in memory of its own.
    for (Tensor& tensor : phase.receives[m]) tensor = ScratchLike(tensor);
  }
  for (Sum& sum : sums_) sum.summands[member_] = copy_of(sum.summands[member_]);
  if (sums_.empty()) return;
  for (Result& result : results_) result.flat = ScratchLike(result.flat);
}

void Exchange::Release() {
  phase_ = static_cast<int>(phases_.size());
  for (Phase& phase : phases_) phase = Phase();
  results_.clear();
  sums_.clear();
  call_.operands = internal::BarrierRequest{};
}

void Exchange::Cancel() {
  for (Peer& peer : peers_) {
    for (Transfer& transfer : peer.transfers) transfer.Cancel();
  }
}

std::string Exchange::ToString() const {
  std::vector<int> arrived, missing;
  for (int m = 0; m < static_cast<int>(peers_.size()); ++m) {
    if (m != member_ && !DealsWith(m)) continue;
    (HasArrived(m) ? arrived : missing).push_back(group_->world_ranks[m]);
  }
  std::string text = absl::StrCat("collective ", sequence_, " of group \"", group_->name,
                                  "\" (ranks ", RankList(group_->world_ranks),
                                  "): ", call_.name.ToString(), "; arrived: ", RankList(arrived));
  if (!missing.empty()) absl::StrAppend(&text, "; missing: ", RankList(missing));
  std::vector<int> moving;
  for (int m = 0; m < static_cast<int>(peers_.size()); ++m) {
    if (!peers_[m].transfers.empty()) moving.push_back(group_->world_ranks[m]);
  }
  if (!moving.empty()) absl::StrAppend(&text, "; data in flight with: ", RankList(moving));
  return text;
}

}  // namespace shardmesh::mpi
