// SPDX-License-Identifier: Apache-2.0
//
// How ranks that save or load together come to one result. Collective over the communicator; with
// none there is one rank.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_AGREEMENT_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh::checkpoint::internal {

/// The texts of all ranks, of any bytes and lengths, in rank order.
std::vector<std::string> GatherTexts(Communicator* ranks, const std::string& own);

/// The same on the first rank; nothing on others. Cost: a rank sends its own text.
std::vector<std::string> GatherTextsToFirst(Communicator* ranks, const std::string& own);

/// OK if all ranks pass OK; else the status of the first that does not, the same on all ranks, with
/// "rank 3: " before its message.
absl::Status Agree(Communicator* ranks, const absl::Status& own);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_AGREEMENT_H_
