// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/rank_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardmesh {

std::string RankList(std::span<const int> ranks) {
  const size_t named = std::min<size_t>(ranks.size(), kMaxRanksInMessages);
  std::string text = absl::StrJoin(ranks.begin(), ranks.begin() + named, ", ");
  if (named < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace shardmesh
