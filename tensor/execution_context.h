// SPDX-License-Identifier: Apache-2.0
//
// What a kernel needs beside its operands: device, allocator, threads. It is an argument of every
// op on tensors; there is no thread-local state, so that helper threads can serve any rank.
#ifndef SHARDMESH_TENSOR_EXECUTION_CONTEXT_H_
#define SHARDMESH_TENSOR_EXECUTION_CONTEXT_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "shardmesh/tensor/allocator.h"
#include "shardmesh/tensor/device.h"

namespace shardmesh {

class TimeProfile;

/// Belongs to one rank. ParallelFor must not be called from two threads at once.
class ExecutionContext {
 public:
  /// `threads` >= 1 is how many threads work on one kernel, the caller included.
  /// Errors: throws Error(kResourceExhausted) if one of them cannot be started.
  explicit ExecutionContext(Device device = Device::Cpu(), int threads = 1,
                            std::shared_ptr<Allocator> allocator = nullptr);
  ~ExecutionContext();
  ExecutionContext(const ExecutionContext&) = delete;
  ExecutionContext& operator=(const ExecutionContext&) = delete;

  Device device() const { return device_; }
  int threads() const { return threads_; }
  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }

  /// Category of what Tensor::Empty allocates when none is given.
  MemoryCategory default_category() const { return default_category_; }
  void set_default_category(MemoryCategory category) { default_category_ = category; }

  /// What measures this rank (tensor/time_profile.h), or null.
  TimeProfile* time_profile() const { return time_profile_; }
  void set_time_profile(TimeProfile* profile) { time_profile_ = profile; }

  /// Runs fn(0) .. fn(tiles - 1), each once, on all threads, and returns when all are done. Which
  /// thread runs a tile is not defined, so the result must depend on the tile alone: kernels cut
  /// tiles by shapes, never by `threads()`. An exception of a tile is rethrown here.
  void ParallelFor(int64_t tiles, absl::FunctionRef<void(int64_t tile)> fn);

 private:
  class Pool;

  Device device_;
  int threads_;
  std::shared_ptr<Allocator> allocator_;
  MemoryCategory default_category_ = MemoryCategory::kActivations;
  TimeProfile* time_profile_ = nullptr;
  std::unique_ptr<Pool> pool_;  // Null with one thread.
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_EXECUTION_CONTEXT_H_
