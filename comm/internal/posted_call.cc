// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/posted_call.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/comm/internal/strided_view.h"

namespace shardmesh::internal {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Of the alternatives of Operands.
constexpr std::array<CollectiveKind, std::variant_size_v<Operands>> kKinds = {
    CollectiveKind::kBarrier,   CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,  CollectiveKind::kBroadcast,
    CollectiveKind::kSplit};

bool Same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape();
}

std::string Against(const Tensor& a, const Tensor& b, size_t item, std::string_view operand,
                    int index = -1) {
  return absl::StrCat(a.ToString(), " against ", b.ToString(), " (item ", item, ", ", View(operand),
                      index < 0 ? "" : absl::StrCat("[", index, "]"), ")");
}

std::string ListDifference(const std::vector<Tensor>& a, const std::vector<Tensor>& b, size_t item,
                           std::string_view operand) {
  for (size_t m = 0; m < a.size(); ++m) {
    if (!Same(a[m], b[m])) return Against(a[m], b[m], item, operand, static_cast<int>(m));
  }
  return "";
}

std::string ItemDifference(const AllGatherItem& a, const AllGatherItem& b, size_t item) {
  return ListDifference(a.targets, b.targets, item, "targets");
}
std::string ItemDifference(const ReduceScatterItem& a, const ReduceScatterItem& b, size_t item) {
  return ListDifference(a.sources, b.sources, item, "sources");
}
std::string ItemDifference(const AllReduceItem& a, const AllReduceItem& b, size_t item) {
  return Same(a.source, b.source) ? "" : Against(a.source, b.source, item, "source");
}
std::string ItemDifference(const AllToAllItem& a, const AllToAllItem& b, size_t item) {
  const Tensor& x = a.sends[0];
  const Tensor& y = b.sends[0];
  return x.dtype() == y.dtype() ? "" : Against(x, y, item, "sends", 0);
}
std::string ItemDifference(const Tensor& a, const Tensor& b, size_t item) {
  return Same(a, b) ? "" : Against(a, b, item, "tensor");
}

template <typename Item>
std::string BatchDifference(const std::vector<Item>& a, const std::vector<Item>& b) {
  if (a.size() != b.size())
    return absl::StrCat("a batch of ", a.size(), " items against one of ", b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::string difference = ItemDifference(a[i], b[i], i); !difference.empty())
      return difference;
  }
  return "";
}

std::string OperandsDifference(const BarrierRequest&, const BarrierRequest&) { return ""; }
std::string OperandsDifference(const SplitRequest&, const SplitRequest&) { return ""; }
std::string OperandsDifference(const BroadcastRequest& a, const BroadcastRequest& b) {
  if (a.root != b.root) return absl::StrCat("root ", a.root, " against ", b.root);
  return BatchDifference(a.tensors, b.tensors);
}
template <typename Item>
std::string OperandsDifference(const std::vector<Item>& a, const std::vector<Item>& b) {
  return BatchDifference(a, b);
}

Tensor Snapshot(ExecutionContext& context, const Tensor& tensor) {
  Tensor copy =
      Tensor::Empty(context, tensor.shape(), tensor.dtype(), MemoryCategory::kCommunication);
  const StridedView from(tensor);
  StridedView::Copy(from, StridedView(copy), 0, from.elements());
  return copy;
}

Tensor ShapeOf(const Tensor& tensor) { return Tensor::Meta(tensor.shape(), tensor.dtype()); }

struct Detacher {
  ExecutionContext& context;
  int rank;

  // The member's own part is read by nobody else, so it is not copied.
  void Sources(std::vector<Tensor>& sources) const {
    for (size_t m = 0; m < sources.size(); ++m) {
      sources[m] =
          static_cast<int>(m) == rank ? ShapeOf(sources[m]) : Snapshot(context, sources[m]);
    }
  }
  void Targets(std::vector<Tensor>& targets) const {
    for (Tensor& target : targets) target = ShapeOf(target);
  }

  void operator()(BarrierRequest&) const {}
  void operator()(SplitRequest&) const {}
  void operator()(std::vector<AllGatherItem>& batch) const {
    for (AllGatherItem& item : batch) {
      item.source = Snapshot(context, item.source);
      Targets(item.targets);
    }
  }
  void operator()(std::vector<ReduceScatterItem>& batch) const {
    for (ReduceScatterItem& item : batch) {
      Sources(item.sources);
      item.target = ShapeOf(item.target);
    }
  }
  void operator()(std::vector<AllReduceItem>& batch) const {
    for (AllReduceItem& item : batch) {
      item.source = Snapshot(context, item.source);
      item.target = ShapeOf(item.target);
    }
  }
  void operator()(std::vector<AllToAllItem>& batch) const {
    for (AllToAllItem& item : batch) {
      Sources(item.sends);
      Targets(item.receives);
    }
  }
  void operator()(BroadcastRequest& request) const {
    for (Tensor& tensor : request.tensors) {
      tensor = request.root == rank ? Snapshot(context, tensor) : ShapeOf(tensor);
    }
  }
};

}  // namespace

std::string_view OwnerIn(std::string_view op) {
  const size_t begin = op.find(" of ");
  return begin == std::string_view::npos ? std::string_view() : op.substr(begin);
}

std::string CallName::ToString() const {
  std::string text(Name(kind));
  if (reduction) absl::StrAppend(&text, " ", View(Name(*reduction)));
  if (!op.empty()) absl::StrAppend(&text, " (op \"", op, "\")");
  return text;
}

PostedCall::PostedCall(Operands operands, std::optional<ReduceOp> reduction, std::string_view op)
    : operands(std::move(operands)),
      name{kKinds[this->operands.index()], reduction, std::string(op)} {}

std::string Difference(const PostedCall& a, const PostedCall& b) {
  if (a.operands.index() != b.operands.index() || a.name.reduction != b.name.reduction ||
      OwnerIn(a.name.op) != OwnerIn(b.name.op)) {
    return absl::StrCat(a.name.ToString(), " against ", b.name.ToString());
  }
  return std::visit(
      [&]<typename T>(const T& operands) {
        return OperandsDifference(operands, std::get<T>(b.operands));
      },
      a.operands);
}

std::string PairDifference(const PostedCall& a, int i, const PostedCall& b, int j) {
  const auto& from = std::get<std::vector<AllToAllItem>>(a.operands);
  const auto& to = std::get<std::vector<AllToAllItem>>(b.operands);
  for (size_t item = 0; item < from.size(); ++item) {
    if (!Same(from[item].sends[j], to[item].receives[i])) {
      return absl::StrCat("member ", i, " sends ", from[item].sends[j].ToString(), " to member ", j,
                          ", which expects ", to[item].receives[i].ToString(), " (item ", item,
                          ")");
    }
  }
  return "";
}

void Detach(ExecutionContext& context, int rank, PostedCall& call) {
  std::visit(Detacher{context, rank}, call.operands);
}

}  // namespace shardmesh::internal
