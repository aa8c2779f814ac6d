// SPDX-License-Identifier: Apache-2.0
//
// Small facts that ranks tell each other. Collective over the communicator.
#ifndef SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_
#define SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_

#include <vector>

#include "shardmesh/comm/communicator.h"

namespace shardmesh::examples {

/// What each rank passed, in rank order; all pass equally many. Byte counts up to 2^53 are exact.
std::vector<std::vector<double>> GatherFromRanks(Communicator& ranks,
                                                 const std::vector<double>& own);

/// Whether any rank passed true: the same answer on all.
bool AnyRank(Communicator& ranks, bool own);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_
