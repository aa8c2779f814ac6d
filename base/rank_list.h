// SPDX-License-Identifier: Apache-2.0
//
// Lists of ranks in messages.
//
//   RankList({0, 2, 4})  ->  "0, 2, 4"
//   RankList(ranks 0 to 999)  ->  "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 984 more"
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
