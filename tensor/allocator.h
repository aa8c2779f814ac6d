// SPDX-License-Identifier: Apache-2.0
//
// Memory of one rank: a pool with exact accounting per category. Bytes are what was asked for (the
// pool's rounding is not counted), so that peaks can be predicted and asserted to the byte.
//
//   std::shared_ptr<Allocator> memory = Allocator::Create();
//   ... memory->stats(MemoryCategory::kParameters).peak_bytes
#ifndef SHARDMESH_TENSOR_ALLOCATOR_H_
#define SHARDMESH_TENSOR_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace shardmesh {

enum class MemoryCategory : uint8_t {
  kActivations,  ///< The default: whatever is not one of the others.
  kParameters,
  kGradients,
  kOptimizer,
  kUnshardedParameters,
  kUnshardedGradients,
  kCommunication,  ///< Buffers that only collectives use.
  kScratch,        ///< Working memory of the kernel that runs; nothing between kernels.
};
inline constexpr int kNumMemoryCategories = 8;

/// "activations", "parameters", "gradients", "optimizer", "unsharded_parameters", ...
std::string_view Name(MemoryCategory category);

struct MemoryStats {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;   ///< Since the last ResetPeaks.
  int64_t allocations = 0;  ///< Ever.
};

/// Thread-safe. Blocks are 64-byte aligned (at least), so that vector kernels may assume it of a
/// fresh tensor.
class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  static std::shared_ptr<Allocator> Create();
  /// Every block must have been freed (a Storage holds its allocator, so this takes care of
  /// itself).
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Uninitialised memory; null for bytes == 0. Throws Error(kInvalidArgument) for a negative size
  /// and Error(kResourceExhausted) naming the size if the system has no memory, after a Trim().
  void* Allocate(int64_t bytes, MemoryCategory category);
  /// `bytes` and `category` as given to Allocate.
  void Free(void* block, int64_t bytes, MemoryCategory category);

  /// Accounts a block of `bytes` as `to`, which was allocated as `from`.
  void Recategorize(int64_t bytes, MemoryCategory from, MemoryCategory to);

  MemoryStats stats(MemoryCategory category) const;
  /// Over all categories; the peak is that of the sum.
  MemoryStats total() const;
  /// Sets every peak to what is held now.
  void ResetPeaks();
  /// Returns cached free blocks to the system.
  void Trim();

 private:
  /// A free block holds the link to the next one of its size class.
  struct FreeBlock {
    FreeBlock* next;
  };
  /// 64, 128, 192, .. 256 bytes, then four classes to each power of two.
  static constexpr int kNumClasses = 4 * 64;

  /// Spin lock: rarely contended, half the cost of a std::mutex, which small ops would notice.
  class SpinLock {
   public:
    void lock();
    void unlock() { held_.store(false, std::memory_order_release); }

   private:
    std::atomic<bool> held_ = false;
  };

  Allocator() = default;
  void Count(MemoryCategory category, int64_t bytes);

  mutable SpinLock mutex_;
  std::array<FreeBlock*, kNumClasses> free_ = {};
  std::array<MemoryStats, kNumMemoryCategories> stats_;
  MemoryStats total_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ALLOCATOR_H_
