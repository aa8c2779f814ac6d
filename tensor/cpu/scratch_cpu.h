// SPDX-License-Identifier: Apache-2.0
//
// Working memory of a kernel's tile, kept between calls: fresh pages cost more than the work on
// them. Not counted by the allocator: a tile asks for a bounded amount, or for one linear in a row
// or a sequence.
#ifndef SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_
#define SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_

#include <cstdint>

namespace shardmesh::cpu {

inline constexpr int kScratchSlots = 12;

/// At least `bytes` bytes, 64-byte aligned, of the calling thread; valid until it asks for the same
/// slot again.
void* ScratchBytes(int slot, int64_t bytes);

template <typename T>
T* Scratch(int slot, int64_t count) {
  return static_cast<T*>(ScratchBytes(slot, count * static_cast<int64_t>(sizeof(T))));
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_
