// SPDX-License-Identifier: Apache-2.0
//
// The Communicator of a rank that is a process.
#ifndef SHARDMESH_COMM_MPI_MPI_COMMUNICATOR_H_
#define SHARDMESH_COMM_MPI_MPI_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/mpi/process_world.h"

namespace shardmesh::mpi {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<ProcessWorld> world, std::shared_ptr<const GroupIdentity> group,
                  int member, std::shared_ptr<RankContext> context);

  std::unique_ptr<Communicator> Split(int color, int key, std::string name) override;
  void Fail(const absl::Status& cause) override { world_->Fail(cause); }

 private:
  void ThrowIfFailed() override { world_->ThrowIfFailed(); }
  Work DoAllGather(std::vector<AllGatherItem> batch, std::string_view op) override;
  Work DoReduceScatter(std::vector<ReduceScatterItem> batch, ReduceOp reduction,
                       std::string_view op) override;
  Work DoAllReduce(std::vector<AllReduceItem> batch, ReduceOp reduction,
                   std::string_view op) override;
  Work DoAllToAll(std::vector<AllToAllItem> batch, std::string_view op) override;
  Work DoBroadcast(std::vector<Tensor> tensors, int root, std::string_view op) override;
  void DoBarrier(std::string_view op) override;
  std::unique_ptr<Communicator> DoSubgroup(const std::vector<int>& members, std::string name,
                                           int ordinal) override;

  Work Post(internal::PostedCall call);

  const std::shared_ptr<ProcessWorld> world_;
  const std::shared_ptr<const GroupIdentity> group_;
  int64_t next_sequence_ = 0;
};

}  // namespace shardmesh::mpi

#endif  // SHARDMESH_COMM_MPI_MPI_COMMUNICATOR_H_
