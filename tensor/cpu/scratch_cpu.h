// SPDX-License-Identifier: Apache-2.0
//
// Working memory of a kernel, or of one of its tiles. It comes from the context's allocator, so
// that it is counted (MemoryCategory::kScratch), and goes back at the end of the scope: between
// kernels none is held. The allocator's pool keeps the pages, as fresh ones cost more than the work
// on them.
//
//   cpu::Scratch scratch(context);
//   float* row = scratch.Get<float>(kRow, n);
#ifndef SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_
#define SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_

#include <cstdint>

#include "shardmesh/tensor/execution_context.h"

namespace shardmesh::cpu {

/// Numbered buffers. Belongs to one thread.
class Scratch {
 public:
  static constexpr int kSlots = 11;

  explicit Scratch(ExecutionContext& context) : allocator_(*context.allocator()) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// At least `count` uninitialised elements, 64-byte aligned; valid until the same slot is asked
  /// for again.
  template <typename T>
  T* Get(int slot, int64_t count) {
    return static_cast<T*>(Bytes(slot, count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  struct Slot {
    void* block = nullptr;
    int64_t bytes = 0;
  };
  void* Bytes(int slot, int64_t bytes);

  Allocator& allocator_;
  Slot slots_[kSlots];
};

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_SCRATCH_CPU_H_
