// SPDX-License-Identifier: Apache-2.0
//
// What units count about their collectives, for UnitStats.
//
//   {
//     const WaitTimer timer(stats.gather_wait_seconds);
//     work.Wait();
//   }
#ifndef SHARDMESH_FSDP_INTERNAL_COUNTING_H_
#define SHARDMESH_FSDP_INTERNAL_COUNTING_H_

#include <chrono>
#include <cstdint>

#include "shardmesh/comm/collective_event.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh::fsdp::internal {

/// Adds to `total` the bytes of the collectives that this rank posts while it lives.
class CountsSentBytes : public CollectiveObserver {
 public:
  CountsSentBytes(const DeviceMesh& mesh, int64_t& total)
      : any_group_(mesh.shape().num_axes() == 0 ? nullptr : &mesh.Group(0)), total_(total) {
    if (any_group_ != nullptr) any_group_->AddObserver(this);
  }
  ~CountsSentBytes() override {
    if (any_group_ != nullptr) any_group_->RemoveObserver(this);
  }
  CountsSentBytes(const CountsSentBytes&) = delete;
  CountsSentBytes& operator=(const CountsSentBytes&) = delete;
  void OnCollective(const CollectiveEvent& event) override { total_ += event.bytes_sent; }

 private:
  Communicator* any_group_;  // Observers are those of the rank, whatever the group.
  int64_t& total_;
};

/// Adds the seconds that it lives to `total`.
class WaitTimer {
 public:
  explicit WaitTimer(double& total) : total_(total) {}
  ~WaitTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_COUNTING_H_
