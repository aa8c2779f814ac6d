// SPDX-License-Identifier: Apache-2.0
//
// A collective in flight.
#ifndef SHARDMESH_COMM_WORK_H_
#define SHARDMESH_COMM_WORK_H_

#include <memory>

namespace shardmesh {

/// A shared handle; copies refer to the same collective. Belongs to the rank that posted.
class Work {
 public:
  /// What a backend provides. Its Wait and IsDone are TimeProfile spans of kCommunication. The
  /// destructor of an unfinished collective neither throws nor waits for ever; the buffers stay
  /// alive until no peer needs them.
  class State {
   public:
    virtual ~State() = default;
    virtual void Wait() = 0;
    virtual bool IsDone() = 0;
  };

  /// Nothing to wait for.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Blocks until targets are written and sources are no longer read. Throws Error with the first
  /// cause if the world has failed, and within the world's time-out if members are missing. May be
  /// called again.
  void Wait() {
    if (state_ != nullptr) state_->Wait();
  }
  /// True if Wait() would not block (it may throw). Does not block, but may do a bounded piece of
  /// the work. A loop over IsDone() ends wherever Wait() would: when a missing member has returned
  /// from the program, when the world fails, or after the world's time-out (calls that are more
  /// than an eighth of the time-out apart: after at most 48 of them).
  bool IsDone() const { return state_ == nullptr || state_->IsDone(); }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_COMM_WORK_H_
