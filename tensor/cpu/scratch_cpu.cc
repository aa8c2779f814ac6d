// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/scratch_cpu.h"

#include "shardmesh/base/check.h"

namespace shardmesh::cpu {

Scratch::~Scratch() {
  for (const Slot& slot : slots_) allocator_.Free(slot.block, slot.bytes, MemoryCategory::kScratch);
}

void* Scratch::Bytes(int slot, int64_t bytes) {
  SHARDMESH_CHECK(0 <= slot && slot < kSlots) << "scratch slot " << slot;
  Slot& own = slots_[slot];
  if (own.bytes < bytes) {
    allocator_.Free(own.block, own.bytes, MemoryCategory::kScratch);
    own = Slot();
    own = {allocator_.Allocate(bytes, MemoryCategory::kScratch), bytes};
  }
  return own.block;
}

}  // namespace shardmesh::cpu
