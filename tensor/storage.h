// SPDX-License-Identifier: Apache-2.0
//
// The memory under one or several tensors. It can be emptied and refilled under live tensors: this
// is how fully sharded training releases weights that the autograd graph has saved. Use while empty
// is an error.
#ifndef SHARDMESH_TENSOR_STORAGE_H_
#define SHARDMESH_TENSOR_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "shardmesh/tensor/allocator.h"
#include "shardmesh/tensor/device.h"

namespace shardmesh {

/// Belongs to one rank; not thread-safe but for its destruction, which may happen on any thread.
class Storage {
 public:
  /// Allocates `bytes` from `allocator` (none on meta).
  Storage(Device device, int64_t bytes, std::shared_ptr<Allocator> allocator,
          MemoryCategory category);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device() const { return device_; }
  int64_t bytes() const { return bytes_; }
  MemoryCategory category() const { return category_; }

  /// Null if there are no bytes. Throws Error(kFailedPrecondition) after Release() (naming what was
  /// released) and on meta.
  void* data() const {
    if (state_ != State::kLive) ThrowNotLive();
    return data_;
  }
  bool IsReleased() const { return state_ == State::kReleased; }

  /// Gives the memory back; every tensor over this storage is unusable until Refill(). `why` names
  /// the owner in the error of a use in between, e.g. "resharded by FullyShard unit layers.3".
  void Release(std::string why);
  /// Allocates again; the contents are undefined and the version does not change.
  void Refill();

  /// Counts in-place writes. Backward compares it with the value at the time of saving.
  int64_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 private:
  enum class State : uint8_t { kLive, kReleased, kMeta };
  [[noreturn]] void ThrowNotLive() const;

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t version_ = 0;
  Device device_;
  MemoryCategory category_;
  State state_ = State::kLive;
  std::string released_by_;
  std::shared_ptr<Allocator> allocator_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_STORAGE_H_
