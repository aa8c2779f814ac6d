// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/signature.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "shardmesh/base/error.h"
#include "xxhash.h"

namespace shardmesh::internal {
namespace {

template <typename T>
constexpr bool kIsItems = false;
template <typename Item>
constexpr bool kIsItems<std::vector<Item>> = true;

class Writer {
 public:
  void Add(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Add(std::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  void Add(const Tensor& tensor) {
    Add(static_cast<int64_t>(tensor.dtype()));
    Add(int64_t{tensor.num_dims()});
    for (const int64_t extent : tensor.shape()) Add(extent);
  }
  void Add(const std::vector<Tensor>& tensors) {
    Add(static_cast<int64_t>(tensors.size()));
    for (const Tensor& tensor : tensors) Add(tensor);
  }
  std::string Take() { return std::move(bytes_); }
  uint64_t Hash() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  int64_t Int() {
    int64_t value = 0;
    Require(bytes_.size() >= sizeof(value));
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  // A count of things that have at least `each` bytes.
  int64_t Count(int64_t each) {
    const int64_t count = Int();
    Require(count >= 0 && count <= static_cast<int64_t>(bytes_.size()) / each);
    return count;
  }
  std::string Text() {
    const std::string text(bytes_.substr(0, Count(1)));
    bytes_.remove_prefix(text.size());
    return text;
  }
  Tensor ReadTensor() {
    const int64_t dtype = Int();
    Require(dtype >= 0 && dtype <= static_cast<int64_t>(DType::kBool));
    const int64_t num_dims = Count(sizeof(int64_t));
    Require(num_dims <= Dims::kMaxRank);
    Dims shape;
    for (int64_t d = 0; d < num_dims; ++d) shape.push_back(Int());
    return Tensor::Meta(shape, static_cast<DType>(dtype));
  }
  std::vector<Tensor> Tensors() {
    std::vector<Tensor> tensors(Count(2 * sizeof(int64_t)));
    for (Tensor& tensor : tensors) tensor = ReadTensor();
    return tensors;
  }
  void Require(bool holds) const {
    if (!holds) Throw(absl::StatusCode::kInternal, "a collective's signature has wrong bytes");
  }

 private:
  std::string_view bytes_;
};

void AddItem(Writer& out, const AllGatherItem& item) {
  out.Add(item.source);
  out.Add(item.targets);
}
void AddItem(Writer& out, const ReduceScatterItem& item) {
  out.Add(item.sources);
  out.Add(item.target);
}
void AddItem(Writer& out, const AllReduceItem& item) {
  out.Add(item.source);
  out.Add(item.target);
}
void AddItem(Writer& out, const AllToAllItem& item) {
  out.Add(item.sends);
  out.Add(item.receives);
}

void ReadItem(Reader& in, AllGatherItem& item) {
  item.source = in.ReadTensor();
  item.targets = in.Tensors();
}
void ReadItem(Reader& in, ReduceScatterItem& item) {
  item.sources = in.Tensors();
  item.target = in.ReadTensor();
}
void ReadItem(Reader& in, AllReduceItem& item) {
  item.source = in.ReadTensor();
  item.target = in.ReadTensor();
}
void ReadItem(Reader& in, AllToAllItem& item) {
  item.sends = in.Tensors();
  item.receives = in.Tensors();
}

// Of what members pass alike.
void AddCommon(Writer& out, const AllGatherItem& item) { out.Add(item.targets); }
void AddCommon(Writer& out, const ReduceScatterItem& item) { out.Add(item.sources); }
void AddCommon(Writer& out, const AllReduceItem& item) { out.Add(item.source); }
void AddCommon(Writer& out, const AllToAllItem& item) {
  out.Add(static_cast<int64_t>(item.sends[0].dtype()));
}

uint64_t DigestOfPair(const PostedCall& call, std::vector<Tensor> AllToAllItem::*side, int peer) {
  const auto* items = std::get_if<std::vector<AllToAllItem>>(&call.operands);
  if (items == nullptr) return 0;
  Writer out;
  for (const AllToAllItem& item : *items) out.Add((item.*side)[peer]);
  return out.Hash();
}

template <size_t kIndex = 0>
Operands ReadOperands(Reader& in, size_t index) {
  if constexpr (kIndex < std::variant_size_v<Operands>) {
    if (index != kIndex) return ReadOperands<kIndex + 1>(in, index);
    using T = std::variant_alternative_t<kIndex, Operands>;
    T operands{};
    if constexpr (kIsItems<T>) {
      operands.resize(in.Count(2 * sizeof(int64_t)));
      for (auto& item : operands) ReadItem(in, item);
    } else if constexpr (std::is_same_v<T, BroadcastRequest>) {
      operands.root = static_cast<int>(in.Int());
      operands.tensors = in.Tensors();
    }
    return operands;
  } else {
    in.Require(false);
    return BarrierRequest{};
  }
}

}  // namespace

uint64_t Digest(const PostedCall& call) {
  Writer out;
  out.Add(static_cast<int64_t>(call.operands.index()));
  out.Add(call.name.reduction ? static_cast<int64_t>(*call.name.reduction) : -1);
  out.Add(OwnerIn(call.name.op));
  std::visit(
      [&]<typename T>(const T& operands) {
        if constexpr (kIsItems<T>) {
          out.Add(static_cast<int64_t>(operands.size()));
          for (const auto& item : operands) AddCommon(out, item);
        } else if constexpr (std::is_same_v<T, BroadcastRequest>) {
          out.Add(int64_t{operands.root});
          out.Add(operands.tensors);
        }
      },
      call.operands);
  return out.Hash();
}

uint64_t DigestOfSends(const PostedCall& call, int to) {
  return DigestOfPair(call, &AllToAllItem::sends, to);
}

uint64_t DigestOfReceives(const PostedCall& call, int from) {
  return DigestOfPair(call, &AllToAllItem::receives, from);
}

std::string Serialize(const PostedCall& call) {
  Writer out;
  out.Add(static_cast<int64_t>(call.operands.index()));
  out.Add(call.name.reduction ? static_cast<int64_t>(*call.name.reduction) : -1);
  out.Add(std::string_view(call.name.op));
  std::visit(
      [&]<typename T>(const T& operands) {
        if constexpr (kIsItems<T>) {
          out.Add(static_cast<int64_t>(operands.size()));
          for (const auto& item : operands) AddItem(out, item);
        } else if constexpr (std::is_same_v<T, BroadcastRequest>) {
          out.Add(int64_t{operands.root});
          out.Add(operands.tensors);
        }
      },
      call.operands);
  return out.Take();
}

PostedCall ParseCall(std::string_view bytes) {
  Reader in(bytes);
  const int64_t index = in.Int(), reduction = in.Int();
  in.Require(index >= 0 && reduction >= -1 &&
             reduction <= static_cast<int64_t>(ReduceOp::kProduct));
  const std::string op = in.Text();
  Operands operands = ReadOperands(in, static_cast<size_t>(index));
  return PostedCall(std::move(operands),
                    reduction < 0 ? std::nullopt : std::optional(static_cast<ReduceOp>(reduction)),
                    op);
}

}  // namespace shardmesh::internal
