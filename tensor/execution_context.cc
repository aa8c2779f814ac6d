// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/execution_context.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

// How long a thread polls before it sleeps: about what it costs to be woken.
constexpr std::chrono::microseconds kSpin{20};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <typename Condition>
bool SpinUntil(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

}  // namespace

/// One job at a time. A thread joins the open job when it wakes; the caller closes the job once
/// every tile is taken, so that a thread which wakes late costs nothing, and returns when those
/// that joined have left.
class ExecutionContext::Pool {
 public:
  explicit Pool(int workers) {
    try {
      while (static_cast<int>(threads_.size()) < workers) threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error& error) {
      Stop();
      Throw(absl::StatusCode::kResourceExhausted, "cannot start kernel thread ",
            threads_.size() + 1, " of ", workers, ": ", error.what());
    } catch (...) {
      Stop();
      throw;
    }
  }

  ~Pool() { Stop(); }

  void Run(int64_t tiles, absl::FunctionRef<void(int64_t)> fn) {
    Job job{fn, tiles};
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      opened_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    RunTiles(job);
    {
      std::lock_guard lock(mutex_);
      job_ = nullptr;
    }
    if (!SpinUntil([&] { return job.workers.load(std::memory_order_acquire) == 0; })) {
      std::unique_lock lock(mutex_);
      left_.wait(lock, [&] { return job.workers.load(std::memory_order_acquire) == 0; });
    }
    if (job.failed.load(std::memory_order_acquire)) std::rethrow_exception(job.exception);
  }

 private:
  struct Job {
    absl::FunctionRef<void(int64_t)> fn;
    int64_t tiles;
    std::atomic<int64_t> next = 0;
    std::atomic<int> workers = 0;
    std::atomic<bool> failed = false;
    std::exception_ptr exception =
        nullptr;  // Written by whoever set `failed`, read after the workers have left.
  };

  static void RunTiles(Job& job) {
    try {
      for (int64_t tile; (tile = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tiles;)
        job.fn(tile);
    } catch (...) {
      job.next.store(job.tiles, std::memory_order_relaxed);
      if (!job.failed.exchange(true)) job.exception = std::current_exception();
    }
  }

  // Ends the threads there are.
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      opened_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Work() {
    uint64_t seen = 0;
    while (true) {
      const auto opened = [&] { return opened_.load(std::memory_order_acquire) != seen; };
      SpinUntil(opened);
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, opened);
        seen = opened_.load(std::memory_order_relaxed);
        if (stop_) return;
        job = job_;
        if (job != nullptr) job->workers.fetch_add(1, std::memory_order_relaxed);
      }
      if (job == nullptr) continue;
      RunTiles(*job);
      // `job` lives until the last worker has left: the count is decremented under the lock, for
      // the caller's sleep, and nothing of the job is touched afterwards.
      {
        std::lock_guard lock(mutex_);
        job->workers.fetch_sub(1, std::memory_order_release);
      }
      left_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::atomic<uint64_t> opened_ = 0;  // Counts jobs; written under the lock.
  Job* job_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

ExecutionContext::ExecutionContext(Device device, int threads, std::shared_ptr<Allocator> allocator)
    : device_(device), threads_(threads), allocator_(std::move(allocator)) {
  if (threads < 1) ThrowInvalid("an execution context needs at least one thread, got ", threads);
  if (allocator_ == nullptr) allocator_ = Allocator::Create();
  if (threads > 1) pool_ = std::make_unique<Pool>(threads - 1);
}

ExecutionContext::~ExecutionContext() = default;

void ExecutionContext::ParallelFor(int64_t tiles, absl::FunctionRef<void(int64_t tile)> fn) {
  if (pool_ == nullptr || tiles <= 1) {
    for (int64_t tile = 0; tile < tiles; ++tile) fn(tile);
    return;
  }
  pool_->Run(tiles, fn);
}

}  // namespace shardmesh
