// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/scratch_cpu.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "shardmesh/base/check.h"

namespace shardmesh::cpu {
namespace {

struct Free {
  void operator()(void* block) const { std::free(block); }
};

struct Slot {
  std::unique_ptr<void, Free> block;
  int64_t bytes = 0;
};

}  // namespace

void* ScratchBytes(int slot, int64_t bytes) {
  thread_local std::array<Slot, kScratchSlots> slots;
  SHARDMESH_CHECK(0 <= slot && slot < kScratchSlots) << "scratch slot " << slot;
  Slot& own = slots[slot];
  if (own.bytes < bytes || own.block == nullptr) {
    constexpr int64_t kAlignment = 64;
    const int64_t rounded = (bytes / kAlignment + 1) * kAlignment;
    own.bytes = 0;
    own.block.reset();
    own.block.reset(std::aligned_alloc(kAlignment, rounded));
    if (own.block == nullptr) throw std::bad_alloc();
    own.bytes = rounded;
  }
  return own.block.get();
}

}  // namespace shardmesh::cpu
