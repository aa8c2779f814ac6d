// SPDX-License-Identifier: Apache-2.0
//
// The nodes of a search, found by state.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_NODE_TABLE_H_
#define SHARDMESH_PLACEMENT_INTERNAL_NODE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardmesh::internal {

/// `Node` has a member `state` with Word(), all of it in 64 bits. Keeps its memory when it is
/// cleared, so that searches one after the other do not allocate.
/// There is room for half of `kMinSlots` before it grows.
template <typename Node, size_t kMinSlots>
class NodeTable {
 public:
  Node& operator[](int index) { return nodes_[index]; }
  const Node& operator[](int index) const { return nodes_[index]; }
  int size() const { return static_cast<int>(nodes_.size()); }

  void Clear() {
    nodes_.clear();
    slots_.assign(kMinSlots, {});
  }

  /// The index of the node of `state`, -1 if there is none; it may be added next.
  template <typename State>
  int Find(const State& state) {
    slot_ = SlotOf(state.Word());
    return slots_[slot_].node;
  }
  int AddFound(const Node& node) {
    slots_[slot_] = {node.state.Word(), size()};
    nodes_.push_back(node);
    if (nodes_.size() * 2 > slots_.size()) Grow();
    return size() - 1;
  }

 private:
  struct Slot {
    uint64_t word = 0;
    int node = -1;
  };

  size_t SlotOf(uint64_t word) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = ((word * 0x9e3779b97f4a7c15u) >> 32) & mask;
    while (slots_[slot].node >= 0 && slots_[slot].word != word) slot = (slot + 1) & mask;
    return slot;
  }
  void Grow() {
    slots_.assign(slots_.size() * 4, {});
    for (int i = 0; i < size(); ++i) {
      const uint64_t word = nodes_[i].state.Word();
      slots_[SlotOf(word)] = {word, i};
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kMinSlots);
  std::vector<Node> nodes_;
  size_t slot_ = 0;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_NODE_TABLE_H_
