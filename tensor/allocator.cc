// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace shardmesh {
namespace {

constexpr int64_t kAlignment = 64;
// Above this no size is accepted, so that rounding cannot overflow.
constexpr int64_t kLargest = int64_t{1} << 60;

struct SizeClass {
  int index;
  int64_t bytes;  // What a block of this class has.
};

// With u = the number of 64-byte units: u itself up to 4, then steps of a quarter of the power of
// two below.
SizeClass ClassOf(int64_t bytes) {
  const uint64_t units = (static_cast<uint64_t>(bytes) + kAlignment - 1) / kAlignment;
  if (units <= 4) return {static_cast<int>(units), static_cast<int64_t>(units) * kAlignment};
  const int shift = std::bit_width(units - 1) - 3;
  const uint64_t quarters = ((units - 1) >> shift) + 1;  // 5 .. 8
  return {4 * shift + static_cast<int>(quarters),
          static_cast<int64_t>(quarters << shift) * kAlignment};
}

// Under AddressSanitizer, makes the bytes of a block from `begin` to `end` an error to touch. It
// sees neither the pool's free blocks nor its rounding by itself.
void Guard([[maybe_unused]] void* block, [[maybe_unused]] int64_t begin,
           [[maybe_unused]] int64_t end) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(static_cast<char*>(block) + begin, end - begin);
#endif
}

void Unguard([[maybe_unused]] void* block, [[maybe_unused]] int64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(block, bytes);
#endif
}

}  // namespace

std::string_view Name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kUnshardedParameters:
      return "unsharded_parameters";
    case MemoryCategory::kUnshardedGradients:
      return "unsharded_gradients";
    case MemoryCategory::kCommunication:
      return "communication";
    case MemoryCategory::kScratch:
      return "scratch";
  }
  return "?";
}

void Allocator::SpinLock::lock() {
  for (int tries = 1; held_.exchange(true, std::memory_order_acquire); ++tries) {
    // The holder may have been preempted.
    if (tries % 64 == 0) std::this_thread::yield();
  }
}

std::shared_ptr<Allocator> Allocator::Create() { return std::shared_ptr<Allocator>(new Allocator); }

Allocator::~Allocator() { Trim(); }

void* Allocator::Allocate(int64_t bytes, MemoryCategory category) {
  if (bytes < 0) ThrowInvalid("cannot allocate ", bytes, " bytes");
  if (bytes == 0) return nullptr;
  if (bytes > kLargest)
    Throw(absl::StatusCode::kResourceExhausted, "cannot allocate ", bytes, " bytes");
  const SizeClass size_class = ClassOf(bytes);
  {
    std::lock_guard lock(mutex_);
    if (FreeBlock* block = free_[size_class.index]; block != nullptr) {
      Unguard(block, size_class.bytes);
      free_[size_class.index] = block->next;
      Guard(block, bytes, size_class.bytes);
      Count(category, bytes);
      return block;
    }
  }
  void* block = std::aligned_alloc(kAlignment, size_class.bytes);
  if (block == nullptr) {
    Trim();
    block = std::aligned_alloc(kAlignment, size_class.bytes);
  }
  std::lock_guard lock(mutex_);
  if (block == nullptr) {
    Throw(absl::StatusCode::kResourceExhausted, "out of memory: cannot allocate ", bytes,
          " bytes for ", std::string(Name(category)), "; ", total_.bytes, " bytes are held");
  }
  Guard(block, bytes, size_class.bytes);
  Count(category, bytes);
  return block;
}

void Allocator::Count(MemoryCategory category, int64_t bytes) {
  for (MemoryStats* stats : {&stats_[static_cast<int>(category)], &total_}) {
    stats->bytes += bytes;
    stats->peak_bytes = std::max(stats->peak_bytes, stats->bytes);
    ++stats->allocations;
  }
}

void Allocator::Free(void* pointer, int64_t bytes, MemoryCategory category) {
  if (bytes == 0) return;
  const SizeClass size_class = ClassOf(bytes);
  FreeBlock* block = static_cast<FreeBlock*>(pointer);
  std::lock_guard lock(mutex_);
  MemoryStats& stats = stats_[static_cast<int>(category)];
  SHARDMESH_CHECK(stats.bytes >= bytes) << "more " << Name(category) << " freed than allocated";
  stats.bytes -= bytes;
  total_.bytes -= bytes;
  Unguard(block, size_class.bytes);
  block->next = free_[size_class.index];
  free_[size_class.index] = block;
  Guard(block, 0, size_class.bytes);
}

void Allocator::Recategorize(int64_t bytes, MemoryCategory from, MemoryCategory to) {
  if (from == to) return;
  std::lock_guard lock(mutex_);
  MemoryStats &old_stats = stats_[static_cast<int>(from)],
              &new_stats = stats_[static_cast<int>(to)];
  SHARDMESH_CHECK(old_stats.bytes >= bytes) << "more " << Name(from) << " moved than allocated";
  old_stats.bytes -= bytes;
  new_stats.bytes += bytes;
  new_stats.peak_bytes = std::max(new_stats.peak_bytes, new_stats.bytes);
}

MemoryStats Allocator::stats(MemoryCategory category) const {
  std::lock_guard lock(mutex_);
  return stats_[static_cast<int>(category)];
}

MemoryStats Allocator::total() const {
  std::lock_guard lock(mutex_);
  return total_;
}

void Allocator::ResetPeaks() {
  std::lock_guard lock(mutex_);
  for (MemoryStats& stats : stats_) stats.peak_bytes = stats.bytes;
  total_.peak_bytes = total_.bytes;
}

void Allocator::Trim() {
  std::lock_guard lock(mutex_);
  for (FreeBlock*& first : free_) {
    while (first != nullptr) {
      FreeBlock* block = first;
      Unguard(block, sizeof(FreeBlock));
      first = block->next;
      std::free(block);
    }
  }
}

}  // namespace shardmesh
