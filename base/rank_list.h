// SPDX-License-Identifier: Apache-2.0
//
// Lists of ranks in messages.
//
//   RankList(ranks)  // "0, 2, 4"; the end for a thousand ranks: "13, 14, 15 and 984 more"
#ifndef SHARDMESH_BASE_RANK_LIST_H_
#define SHARDMESH_BASE_RANK_LIST_H_

#include <span>
#include <string>

namespace shardmesh {

/// How many ranks a message names: a world may have thousands.
inline constexpr int kMaxRanksInMessages = 16;

/// The first kMaxRanksInMessages of `ranks`, in their order, and how many more there are.
std::string RankList(std::span<const int> ranks);

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_RANK_LIST_H_
