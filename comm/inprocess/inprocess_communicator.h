// SPDX-License-Identifier: Apache-2.0
//
// The Communicator of one rank of an in-process world.
#ifndef SHARDMESH_COMM_INPROCESS_INPROCESS_COMMUNICATOR_H_
#define SHARDMESH_COMM_INPROCESS_INPROCESS_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/inprocess/world.h"

namespace shardmesh::inprocess {

class InprocessCommunicator final : public Communicator {
 public:
  InprocessCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int member,
                        std::shared_ptr<RankContext> context);

  std::unique_ptr<Communicator> Split(int color, int key, std::string name) override;
  void Fail(const absl::Status& cause) override { world_->Fail(world_rank(), cause); }

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

  Work Post(PostedCall call);

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<RankContext> context_;
  int64_t next_sequence_ = 0;
};

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_INPROCESS_COMMUNICATOR_H_
