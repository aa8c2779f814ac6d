// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/inprocess/movement.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "shardmesh/comm/internal/reduction.h"
#include "shardmesh/comm/internal/strided_view.h"

namespace shardmesh::inprocess {
namespace {

using internal::StridedView;
using Views = absl::InlinedVector<StridedView, 4>;

// Bytes read or written by one part, about: much more than it costs to claim one, little enough for
// members to share.
constexpr int64_t kPartBytes = 256 << 10;
// A cut is at a multiple of this many elements: whole cache lines, and whole tiles of a reduction.
constexpr int64_t kCut = 1024;

template <typename Request>
const Request& RequestOf(const Member& member) {
  return std::get<Request>(member.call.operands);
}

// The item of each member's batch.
template <typename Item>
const Item& ItemOf(const Member& member, int item) {
  return RequestOf<std::vector<Item>>(member)[item];
}

}  // namespace

template <typename Fn>
void Movement::ForEachTransfer(std::span<const Member> members, const Fn& fn) {
  const int p = static_cast<int>(members.size());
  // Members' calls have the same shapes but for an all-to-all.
  const Operands& operands = members[0].call.operands;
  const auto transfer = [&fn](size_t item, int from, int to, const Tensor& tensor, int copies) {
    fn(Segment{static_cast<int>(item), from, to, 0, tensor.NumElements()},
       SizeOf(tensor.dtype()) * copies);
  };
  if (const auto* batch = std::get_if<std::vector<AllGatherItem>>(&operands)) {
    for (size_t i = 0; i < batch->size(); ++i) {
      for (int m = 0; m < p; ++m) transfer(i, m, -1, (*batch)[i].targets[m], p);
    }
  } else if (const auto* batch = std::get_if<std::vector<ReduceScatterItem>>(&operands)) {
    for (size_t i = 0; i < batch->size(); ++i) {
      for (int m = 0; m < p; ++m) transfer(i, -1, m, (*batch)[i].sources[m], p);
    }
  } else if (const auto* batch = std::get_if<std::vector<AllReduceItem>>(&operands)) {
    for (size_t i = 0; i < batch->size(); ++i) transfer(i, -1, -1, (*batch)[i].source, p);
  } else if (const auto* batch = std::get_if<std::vector<AllToAllItem>>(&operands)) {
    for (size_t i = 0; i < batch->size(); ++i) {
      for (int to = 0; to < p; ++to) {
        for (int from = 0; from < p; ++from) {
          transfer(i, from, to, ItemOf<AllToAllItem>(members[from], static_cast<int>(i)).sends[to],
                   1);
        }
      }
    }
  } else if (const auto* request = std::get_if<BroadcastRequest>(&operands)) {
    for (size_t i = 0; i < request->tensors.size(); ++i)
      transfer(i, request->root, -1, request->tensors[i], p);
  }
}

Movement::Movement(std::span<const Member> members) {
  int64_t bytes = 0;
  ForEachTransfer(members, [&](const Segment& whole, int64_t element_bytes) {
    bytes += whole.count * element_bytes;
  });
  if (bytes == 0) return;
  num_parts_ = 1;
  if (bytes <= kPartBytes) return;

  int64_t part_bytes = 0;
  ForEachTransfer(members, [&](Segment whole, int64_t element_bytes) {
    const int64_t cut = std::max<int64_t>(1, kPartBytes / element_bytes / kCut) * kCut;
    for (int64_t begin = 0; begin < whole.count; begin += cut) {
      Segment segment = whole;
      segment.begin = begin;
      segment.count = std::min(cut, whole.count - begin);
      if (part_bytes > 0 && part_bytes + segment.count * element_bytes > kPartBytes) {
        part_ends_.push_back(static_cast<int64_t>(segments_.size()));
        part_bytes = 0;
      }
      part_bytes += segment.count * element_bytes;
      segments_.push_back(segment);
    }
  });
  part_ends_.push_back(static_cast<int64_t>(segments_.size()));
  num_parts_ = static_cast<int>(part_ends_.size());
}

void Movement::RunPart(int part, std::span<const Member> members) const {
  if (segments_.empty()) {
    ForEachTransfer(members, [&](const Segment& whole, int64_t) {
      if (whole.count > 0) Run(whole, members);
    });
    return;
  }
  for (int64_t i = part == 0 ? 0 : part_ends_[part - 1]; i < part_ends_[part]; ++i)
    Run(segments_[i], members);
}

namespace {

// Copies a range of `source` to target(member) of every member that still wants it.
template <typename TargetOf>
void CopyToAll(const Tensor& source, std::span<const Member> members, int64_t begin, int64_t count,
               const TargetOf& target_of) {
  const StridedView from(source);
  for (const Member& member : members) {
    if (!member.is_detached) StridedView::Copy(from, StridedView(target_of(member)), begin, count);
  }
}

template <typename SourceOf>
Views SourcesOf(std::span<const Member> members, const SourceOf& source_of) {
  Views views;
  for (const Member& member : members) views.emplace_back(source_of(member));
  return views;
}

}  // namespace

void Movement::Run(const Segment& segment, std::span<const Member> members) {
  const auto& [item, from, to, begin, count] = segment;
  const PostedCall& call = members[0].call;
  if (std::holds_alternative<std::vector<AllGatherItem>>(call.operands)) {
    CopyToAll(ItemOf<AllGatherItem>(members[from], item).source, members, begin, count,
              [&](const Member& m) -> const Tensor& {
                return ItemOf<AllGatherItem>(m, item).targets[from];
              });
  } else if (const auto* batch = std::get_if<std::vector<ReduceScatterItem>>(&call.operands)) {
    if (members[to].is_detached) return;
    const Views sources = SourcesOf(members, [&](const Member& m) -> const Tensor& {
      return ItemOf<ReduceScatterItem>(m, item).sources[to];
    });
    const StridedView target(ItemOf<ReduceScatterItem>(members[to], item).target);
    internal::Reduce(*call.name.reduction, (*batch)[item].target.dtype(), sources, {&target, 1},
                     begin, count);
  } else if (const auto* batch = std::get_if<std::vector<AllReduceItem>>(&call.operands)) {
    const Views sources = SourcesOf(members, [&](const Member& m) -> const Tensor& {
      return ItemOf<AllReduceItem>(m, item).source;
    });
    Views targets;
    for (const Member& m : members) {
      if (!m.is_detached) targets.emplace_back(ItemOf<AllReduceItem>(m, item).target);
    }
    internal::Reduce(*call.name.reduction, (*batch)[item].source.dtype(), sources, targets, begin,
                     count);
  } else if (std::holds_alternative<std::vector<AllToAllItem>>(call.operands)) {
    if (members[to].is_detached) return;
    StridedView::Copy(StridedView(ItemOf<AllToAllItem>(members[from], item).sends[to]),
                      StridedView(ItemOf<AllToAllItem>(members[to], item).receives[from]), begin,
                      count);
  } else {
    const auto tensor_of = [&](const Member& m) -> const Tensor& {
      return RequestOf<BroadcastRequest>(m).tensors[item];
    };
    CopyToAll(tensor_of(members[from]), members, begin, count, tensor_of);
  }
}

}  // namespace shardmesh::inprocess
