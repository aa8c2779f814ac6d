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
  /// Accounts the memory as another category from now on.
  void set_category(MemoryCategory category);

  /// Null if there are no bytes. Throws Error(kFailedPrecondition) after Release() (naming what was
  /// released) and on meta.
  const void* data() const {
    if (state_ != State::kLive) ThrowNotLive();
    return data_;
  }
  /// As data(), for writing: bumps the version, also if there are no bytes. What is written through
  /// the pointer later, after someone has saved a version, needs a new call.
  void* mutable_data() {
    if (state_ != State::kLive) ThrowNotLive();
    BumpVersion();
    return data_;
  }
  bool IsReleased() const { return state_ == State::kReleased; }

  /// Gives the memory back; every tensor over this storage is unusable until Refill(). `why` names
  /// the owner in the error of a use in between, e.g. "resharded by FullyShard unit layers.3".
  void Release(std::string why);
  /// Allocates again; the contents are undefined and the version does not change.
  void Refill();

  /// Counts in-place writes: ops in place, collectives and mutable_data(). Backward compares it
  /// with the value at the time of saving; caches of moved operands and gathered weights compare it
  /// with that of their source, and communicate if it has changed. So every rank must count a
  /// write, also one that holds no elements. Not thread-safe: kernels leave the counting to the op.
  int64_t version() const { return version_; }
  void BumpVersion() { ++version_; }
  /// Takes back the bumps since version() was `version`. Only for an owner that writes the very
  /// values that were there at that version, as FullyShard does when it gathers weights again: with
  /// other values, backward would be silently wrong.
  void RestoreVersion(int64_t version);

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
