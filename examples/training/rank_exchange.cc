// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/rank_exchange.h"

#include <cstdint>
#include <utility>

namespace shardmesh::examples {

std::vector<std::vector<double>> GatherFromRanks(Communicator& ranks,
                                                 const std::vector<double>& own) {
  const Dims shape = {static_cast<int64_t>(own.size())};
  AllGatherItem item;
  item.source = Tensor::FromValues<double>(ranks.context(), shape, own);
  for (int r = 0; r < ranks.size(); ++r) {
    item.targets.push_back(Tensor::Empty(ranks.context(), shape, DType::kF64));
  }
  const std::vector<Tensor> received = item.targets;
  ranks.AllGather({std::move(item)}, "gather_from_ranks").Wait();
  std::vector<std::vector<double>> rows;
  for (const Tensor& row : received) rows.push_back(row.ToVector<double>());
  return rows;
}

bool AnyRank(Communicator& ranks, bool own) {
  Tensor flag = Tensor::FromValues<int32_t>(ranks.context(), {1}, {own ? 1 : 0});
  ranks.AllReduce({{.source = flag, .target = flag}}, ReduceOp::kMax, "any_rank").Wait();
  return flag.Item() != 0;
}

}  // namespace shardmesh::examples
