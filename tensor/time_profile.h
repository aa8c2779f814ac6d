// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a rank goes: into matrix products, other kernels, or communication. What is
// left of the wall time is the host's: deciding, recording, allocating.
//
//   TimeProfile profile(world.context());
//   Backward(loss);
//   profile.time(TimeKind::kCommunication);
#ifndef SHARDMESH_TENSOR_TIME_PROFILE_H_
#define SHARDMESH_TENSOR_TIME_PROFILE_H_

#include <array>
#include <chrono>
#include <cstddef>

#include "shardmesh/tensor/execution_context.h"

namespace shardmesh {

enum class TimeKind {
  kGemm,           ///< The matmul kernel.
  kOtherKernels,   ///< Every other kernel; attention with its products.
  kCommunication,  ///< Posting and waiting for collectives, which includes waiting for other ranks.
};
inline constexpr int kNumTimeKinds = 3;

/// Measures the thread of one rank while it is alive. Profiles nest: each counts for itself. It
/// must not outlive the context.
class TimeProfile {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimeProfile(ExecutionContext& context)
      : context_(context), outer_(context.time_profile()) {
    context_.set_time_profile(this);
  }
  ~TimeProfile() { context_.set_time_profile(outer_); }
  TimeProfile(const TimeProfile&) = delete;
  TimeProfile& operator=(const TimeProfile&) = delete;

  /// Wall time of the spans of `kind` that have ended.
  Clock::duration time(TimeKind kind) const { return times_[static_cast<size_t>(kind)]; }

  /// From its construction to its destruction the rank is busy with `kind`, unless another span is
  /// open already: then the time is that one's. Costs a test if no profile is alive.
  class Span {
   public:
    Span(ExecutionContext& context, TimeKind kind) : profile_(context.time_profile()) {
      if (profile_ == nullptr) return;
      if (profile_->is_span_open_) {
        profile_ = nullptr;
        return;
      }
      profile_->is_span_open_ = true;
      kind_ = kind;
      begin_ = Clock::now();
    }
    ~Span() {
      if (profile_ != nullptr) profile_->Add(kind_, Clock::now() - begin_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    TimeProfile* profile_;
    TimeKind kind_ = TimeKind::kGemm;
    Clock::time_point begin_;
  };

 private:
  void Add(TimeKind kind, Clock::duration time) {
    is_span_open_ = false;
    for (TimeProfile* profile = this; profile != nullptr; profile = profile->outer_) {
      profile->times_[static_cast<size_t>(kind)] += time;
    }
  }

  ExecutionContext& context_;
  TimeProfile* const outer_;
  bool is_span_open_ = false;
  std::array<Clock::duration, kNumTimeKinds> times_ = {};
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_TIME_PROFILE_H_
