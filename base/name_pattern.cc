// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/name_pattern.h"

namespace shardmesh {

bool MatchesNamePattern(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || name.empty()) return pattern.empty() && name.empty();
  if (pattern[0] != '*') {
    return pattern[0] == name[0] && MatchesNamePattern(pattern.substr(1), name.substr(1));
  }
  for (size_t taken = 1; taken <= name.size() && name[taken - 1] != '.'; ++taken) {
    if (MatchesNamePattern(pattern.substr(1), name.substr(taken))) return true;
  }
  return false;
}

}  // namespace shardmesh
