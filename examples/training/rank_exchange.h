// SPDX-License-Identifier: Apache-2.0
//
// Exchange of small values between ranks. Collective over the communicator.
#ifndef SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_
#define SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_

#include <vector>

#include "shardmesh/comm/communicator.h"

namespace shardmesh::examples {

/// The values of each rank, in rank order; all ranks pass the same number of values. Integers up to
/// 2^53 are exact.
std::vector<std::vector<double>> GatherFromRanks(Communicator& ranks,
                                                 const std::vector<double>& own);

/// Whether any rank passed true; the same result on all ranks.
bool AnyRank(Communicator& ranks, bool own);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_RANK_EXCHANGE_H_
